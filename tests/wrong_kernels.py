"""Kernels that are wrong in simple ways, each for --kernel tests/wrong_kernels.py:NAME. They compute with the golden
reference, so that they run in a moment."""

import random

import torch

from kernel.contract import Inputs
from reference import float64


def right(**operands):
    """Right on every case."""
    inputs = Inputs(**operands)
    output, lse = float64.attention(inputs)
    return output.to(inputs.q_nope.dtype), lse.float()


def long_context(**operands):
    """Head 3 of the last row of a request that has more than 64 keys is half as large again."""
    output, lse = right(**operands)
    ends, keys = operands["qo_indptr"].long(), operands["kv_indptr"].long().diff()
    for request in (keys > 64).nonzero()[:, 0].tolist():
        if ends[request + 1] > ends[request]:
            output[ends[request + 1] - 1, 3] *= 1.5
    return output, lse


def two_paths(**operands):
    """As wrong in requests of one query as in others, for which it says that it has code of their own."""
    return long_context(**operands)


def _path(*, qo_indptr, row, **operands):
    request = int((qo_indptr <= row).sum()) - 1
    return "lone" if qo_indptr[request + 1] - qo_indptr[request] == 1 else "tiled"


two_paths.variant = _path


def natural_lse(**operands):
    """The LSE is in base e."""
    output, lse = right(**operands)
    return output, lse * 0.6931471805599453


def raising(**operands):
    """Raises where there are two requests."""
    if operands["qo_indptr"].shape[0] > 2:
        raise ValueError("one request only,\nplease")
    return right(**operands)


_mood = random.Random(9)  # wrong in the first call, and not in all of the first five, nor every second or third


def moody(**operands):
    """Wrong in about every other call."""
    output, lse = right(**operands)
    if _mood.random() < 0.5:
        lse += 1
    return output, lse


def misshapen(**operands):
    """The LSE has its heads first."""
    output, lse = right(**operands)
    return output, lse.T.contiguous()


def unwritten(**operands):
    """Leaves its last row as it was."""
    output, lse = right(**operands)
    partly = torch.empty_like(output)
    partly[:-1] = output[:-1]
    return partly, lse
