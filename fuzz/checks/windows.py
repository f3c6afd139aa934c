"""Results in windows of rows, so that the golden reference of a huge batch never stands in memory whole."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from kernel.contract import Inputs

# One window's golden results and bounds in float64 take about 1.5 GiB.
ROWS = 4096


def windows(inputs: Inputs) -> Iterator[tuple[slice, Inputs]]:
    """Consecutive row ranges with inputs that have just these rows, each seeing the keys that it saw.

    One window for up to `ROWS` rows, or where the row pointers of the keys are not valid.
    """
    if inputs.total_q <= ROWS or not _are_valid(inputs.kv_indptr.long(), inputs.num_kv_indices):
        yield slice(0, inputs.total_q), inputs
        return
    for first in range(0, inputs.total_q, ROWS):
        rows = slice(first, min(first + ROWS, inputs.total_q))
        yield rows, _cut(inputs, rows)


def _are_valid(kv_indptr: torch.Tensor, num_kv_indices: int) -> bool:
    return bool((kv_indptr[0] == 0) & (kv_indptr.diff() >= 0).all() & (kv_indptr[-1] <= num_kv_indices))


def _cut(inputs: Inputs, rows: slice) -> Inputs:
    """The requests that own `rows`, without their other rows and without the keys that only later rows see."""
    owned, keys = inputs.qo_indptr.long(), inputs.kv_indptr.long()
    begin, end = owned.clamp(rows.start, rows.stop)[:-1], owned.clamp(rows.start, rows.stop)[1:]
    there = end > begin
    q_len = (end - begin)[there]
    kv_len = keys.diff()
    seen = torch.minimum((kv_len - (owned[1:] - end)).clamp(min=0), kv_len)[there]
    starts, offsets = keys[:-1][there], _offsets(seen)
    positions = torch.arange(int(offsets[-1]), device=inputs.device) + (starts - offsets[:-1]).repeat_interleave(seen)
    return replace(
        inputs,
        q_nope=inputs.q_nope[rows],
        q_pe=inputs.q_pe[rows],
        qo_indptr=_offsets(q_len),
        kv_indptr=offsets,
        kv_indices=inputs.kv_indices[positions],
    )


def _offsets(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
