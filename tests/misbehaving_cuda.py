"""Kernels that go wrong in ways that only a GPU knows, each for --kernel tests/misbehaving_cuda.py:NAME: if the first
request has more than 64 keys. Otherwise, and besides, they are our kernel.
"""

import torch
import triton
import triton.language as tl

import kernel


@triton.jit
def write_far_away(sink):
    tl.store(sink + (1 << 40), 1.0)


@triton.jit
def spin(flag):
    rounds = 0
    while tl.load(flag, volatile=True) == 0:
        rounds += 1
    tl.store(flag + 1, rounds)


@triton.jit
def copy_one(source, sink, place):
    tl.store(sink, tl.load(source + place))


@triton.jit
def race(sink, COUNT: tl.constexpr):
    """Each thread writes to shared memory and reads what one of another warp has written, without a barrier between."""
    mine = tl.arange(0, COUNT)
    seen = tl.inline_asm_elementwise(
        "{ .shared .align 512 .b32 common[128]; .reg .b32 place; mov.b32 place, common; mad.lo.s32 place, $1, 4, place;"
        " st.shared.b32 [place], $1; xor.b32 place, place, 256; ld.shared.b32 $0, [place]; }",
        "=r,r", [mine], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(sink + mine, seen)


@triton.jit
def half_a_barrier(sink, COUNT: tl.constexpr):
    """Every other thread of a warp waits for the whole block."""
    mine = tl.arange(0, COUNT)
    odd = tl.inline_asm_elementwise(
        "{ .reg .pred odd; and.b32 $0, $1, 1; setp.ne.b32 odd, $0, 0; @odd bar.sync 1; }",
        "=r,r", [mine], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(sink + mine, odd)


def right(**operands):
    """Our kernel."""
    return kernel.run(**operands)


def besides(deed):
    """A kernel that does something before it computes."""

    def run(**operands):
        if len(operands["kv_indptr"]) > 1 and int(operands["kv_indptr"][1]) > 64:
            deed(operands, operands["kv_indptr"].device)
        return kernel.run(**operands)

    return run


@besides
def illegal_access(operands, device):
    write_far_away[(1,)](torch.zeros(1, device=device))


@besides
def hang(operands, device):
    spin[(1,)](torch.zeros(2, dtype=torch.int32, device=device))


@besides
def hungry(operands, device):
    return torch.empty(1 << 40, dtype=torch.uint8, device=device)


@besides
def reads_past_the_end(operands, device):
    """Reads one entry behind kv_indices, and uses it for nothing."""
    indices = operands["kv_indices"].contiguous()
    copy_one[(1,)](indices, torch.empty_like(indices[:1]), indices.shape[0])


@besides
def races(operands, device):
    race[(1,)](torch.zeros(128, dtype=torch.int32, device=device), COUNT=128, num_warps=4)


@besides
def reads_what_nobody_wrote(operands, device):
    nothing = torch.empty(256, dtype=torch.int32, device=device)
    copy_one[(1,)](nothing, torch.zeros_like(nothing), 5)


@besides
def waits_with_half_a_warp(operands, device):
    half_a_barrier[(1,)](torch.zeros(128, dtype=torch.int32, device=device), COUNT=128, num_warps=4)
