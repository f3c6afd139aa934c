"""Planted faults: does the suite notice? `python -m fuzz mutants`, and docs/mutants.md for what it found."""
