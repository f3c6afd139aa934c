"""With this line, `pytest --kernel my_attention:prefill --max-time 10m` is a fuzz run."""

pytest_plugins = ["fuzz.plugin"]
