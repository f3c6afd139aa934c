"""Kernels under NVIDIA's compute-sanitizer: what a GPU does with memory and barriers that no result shows.

    worker  --spawns-->  compute-sanitizer  -->  a process that judges a batch of cases, its kernel on the GPU
       |   cases and verdicts in files, what the tool saw in its log     |
       +-----------------------------------------------------------------+

Each tool is a check of that name. A batch takes one process, as starting one takes seconds; the log does not say which
case an error belongs to, so that a batch with errors is halved until one case is left. docs/sanitizers.md has more.
"""
