"""Acceptance rules of published kernel suites beside ours: which faults each lets pass, and what it rejects wrongly.

`python -m fuzz.rules` judges the same faulty outputs by every rule and prints the table of docs/rules.md.
"""
