"""Loads the fuzz plugin: its options, Hypothesis' profiles, and the environment of each worker.

Where there is no GPU that includes TRITON_INTERPRET=1, which has to be set before anything imports Triton.
"""

pytest_plugins = ["fuzz.plugin"]
