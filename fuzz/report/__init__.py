"""report.html: the page that a person opens in the morning."""
