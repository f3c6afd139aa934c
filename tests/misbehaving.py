"""Kernels that do to their process what kernels do, each for --kernel tests/misbehaving.py:NAME: if the first request
has more than 64 keys, otherwise they are right. They compute with the golden reference, so that they run in a moment.
"""

import ctypes
import os
import sys
import threading
import time

import torch

from kernel.contract import Inputs
from reference import float64


def right(**operands):
    """Right on every case."""
    inputs = Inputs(**operands)
    output, lse = float64.attention(inputs)
    return output.to(inputs.q_nope.dtype), lse.float()


def writes_into(*, output, lse, **operands):
    """Right, into the buffers that it is given."""
    for buffer, result in zip((output, lse), right(**operands), strict=True):
        buffer.copy_(result)


def misbehaves(deed):
    """A kernel that does something before it computes."""

    def run(**operands):
        if int(operands["kv_indptr"][1]) > 64:
            given = deed(operands)
            if given is not None:
                return given
        return right(**operands)

    return run


@misbehaves
def segfault(operands):
    print("about to read address 0", flush=True)
    ctypes.string_at(0)


@misbehaves
def abort(operands):
    sys.stderr.write("assertion failed: tile >= 0\n")
    os.abort()


@misbehaves
def hang(operands):
    while True:
        time.sleep(1)


@misbehaves
def hungry(operands):
    return torch.empty(6 << 30, dtype=torch.uint8)  # most systems would give it, as long as nobody touches it


@misbehaves
def killed(operands):
    os.kill(os.getpid(), 9)


@misbehaves
def sys_exit(operands):
    sys.exit(3)


@misbehaves
def os_exit(operands):
    os._exit(4)


@misbehaves
def leaves_a_thread(operands):
    threading.Thread(target=time.sleep, args=(60,), name="poller", daemon=True).start()


@misbehaves
def raises(operands):
    raise ValueError("tile 65 of 64")


@misbehaves
def gives_numbers(operands):
    return 1.0, 2.0


@misbehaves
def gives_an_operand(operands):
    output, lse = right(**operands)
    operands["q_nope"].copy_(output)
    return operands["q_nope"], lse


@misbehaves
def gives_far_too_much(operands):
    return torch.zeros(1, dtype=torch.bfloat16).expand(1 << 40, 512), torch.zeros(3)


@misbehaves
def closes_all_files(operands):
    os.closerange(3, 1024)
    time.sleep(60)


@misbehaves
def prints(operands):
    print("from", end=" ")
    sys.stdout.write("Python\nand the rest")
    ctypes.CDLL(None).puts(b"from C")  # buffered there, as what device code prints


@misbehaves
def tells_its_device(operands):
    print(os.environ["CUDA_VISIBLE_DEVICES"])


def complains(**operands):
    """Right, and writes a lot to stderr."""
    sys.stderr.write("a warning\n" * 10_000)
    return right(**operands)


def noisy(**operands):
    """Right, and prints a lot, bytes that look like messages among it."""
    os.write(1, bytes(range(256)) * 2000)
    print('{"raised": "no"}' * 1000, flush=True)
    return right(**operands)


def changes_an_operand(**operands):
    """Writes into kv_indices."""
    results = right(**operands)
    operands["kv_indices"][0] += 1
    return results


def writes_before_its_output(*, output, lse, **operands):
    """Writes before its output."""
    writes_into(output=output, lse=lse, **operands)
    output.as_strided((1,), (1,), output.storage_offset() - 1).fill_(0)


def leaves_a_row(**operands):
    """Leaves its last row as it was."""
    output, lse = right(**operands)
    partly = torch.empty_like(output)
    partly[:-1] = output[:-1]
    return partly, lse


def kills_every_tenth(**operands):
    """Kills its process where a request has more than 120 keys, as one case in ten has that is drawn for the CPU."""
    if (operands["kv_indptr"].diff() > 120).any():
        os.kill(os.getpid(), 9)
    return right(**operands)
