"""How the kernel is proved: cases, checks, verdicts, reproducers."""
