"""What each check demands of the kernel, in words: it passes when ... Nothing here imports torch."""

from __future__ import annotations

# Of one call.
ONCE = {
    "alive": "the call returns: no exception, no crash, no hang",
    "written": "every element of output and lse is overwritten",
    "in-bounds": "memory outside the operands and results stays as it was",
    "inputs-untouched": "the operands are bit for bit the same after the call",
    "output": "every element of output is as close to the golden reference as a correct kernel must come",
    "lse": "every element of lse, in base 2, is as close to the golden reference as a correct kernel must come",
    "empty-rows": "a row that sees no key has output +0 and lse -inf",
}

# Of a second call, with something changed: the checks of `fuzz.checks.invariance`.
AGAIN = {
    "repeatable": "the same call gives the same bits again",
    "page-invariant": "the results do not depend on which pages hold the keys",
    "batch-invariant": "the result of a request does not depend on what else is in the batch",
    "dead-content": "the results do not depend on what pages hold that no request names",
    "causality": "a row does not depend on keys behind its own position",
    "fresh": "new values in the same buffers give new results",
    "side-stream": "the kernel runs on the current stream",
    "graph": "a CUDA graph of the call, replayed with new values, gives their results",
    "other-device": "the kernel runs on the device of its operands, whichever is current",
}

# Of a call under a tool of compute-sanitizer (`fuzz.sanitizer`), which the check is named after.
UNDER_A_TOOL = {
    "memcheck": "compute-sanitizer sees no access outside the tensors, and none that is misaligned",
    "racecheck": "compute-sanitizer sees no two threads in a race for shared memory",
    "initcheck": "compute-sanitizer sees no read of global memory that nobody has written",
    "synccheck": "compute-sanitizer sees no wrong use of a barrier",
}

DEMANDS = ONCE | AGAIN | UNDER_A_TOOL
