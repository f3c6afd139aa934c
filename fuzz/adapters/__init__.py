"""Kernels of other projects behind the calling convention of a kernel under test, one module each:
`--kernel fuzz.adapters.NAME:run`. What each claims stands in `fuzz.claims`.

A module whose package is not installed cannot be imported: the run ends with status 2 and says what is missing.
"""

import os

# vLLM's log goes to standard output otherwise, and a kernel that prints fails.
os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
