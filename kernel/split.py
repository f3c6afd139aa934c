"""Split-KV: few queries over many keys, computed in chunks of keys, which `merge` puts together (merge.py).

A request is split if it has more keys than `split_length` says, into chunks of that many keys, and all of them exist.
Nothing but the request's own lengths decides, so its bits do not depend on what else is in the batch. `is_split` tells
where programs search for their requests, `count_chunks` where `schedule` lists them or each finds its own, and
`is_split_in_list` what `schedule` listed.

Partial results lie in slots of scratch, one per query and chunk: query i's of chunk c is number c * q_len + i of its
request. A request fills less than 2 * kv_len / CHUNK slots, so that the scratch grows with the number of keys alone.
"""

import triton
import triton.language as tl

from .attend import elements
from .listing import ITEM_COUNT, SPLITTING
from .lookup import find_request, first_slot, own_slots


@triton.jit
def split_length(q_len, kv_len, QUERIES: tl.constexpr, CHUNK: tl.constexpr):
    """Keys per chunk: few for a short request, which would not fill the GPU, more for a long one, as merging costs.

    Slots are q_len * cdiv(kv_len, length) < q_len * kv_len / length + q_len, and split means q_len < kv_len / CHUNK in
    the first case, cdiv(q_len, QUERIES) < kv_len / (4 * CHUNK) in the second: less than 2 * kv_len / CHUNK in both, as
    QUERIES is at most 4.
    """
    return tl.where(kv_len <= 8 * CHUNK, CHUNK * q_len, 4 * CHUNK * tl.cdiv(q_len, QUERIES))


@triton.jit
def is_split(
    qo, kv, request, batch, total_q, num_kv_indices, q_start, q_end, kv_start, kv_len,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Whether a request is split; every program of every launch comes to the same answer.

    Where row pointers decrease, the search may give slots of the request to another one. All of its slots are its own
    if the first and the last one are, as the search takes the same turns for what lies between. If not, it stays whole.
    """
    q_len = q_end - q_start
    answer = (request < batch) & (q_start >= 0) & (q_len > 0) & (q_end <= total_q)
    answer = answer & (kv_start >= 0) & (kv_start + kv_len <= num_kv_indices)
    answer = answer & (kv_len > split_length(q_len, kv_len, QUERIES, CHUNK))
    if answer:
        slot = first_slot(kv_start, CHUNK)
        last = slot + own_slots(kv_len, CHUNK) - 1
        answer = (find_request(qo, kv, batch, slot, True, QUERIES, CHUNK) == request) & (
            find_request(qo, kv, batch, last, True, QUERIES, CHUNK) == request
        )
    return answer


@triton.jit
def count_chunks(q_len, kv_len, sound, may, QUERIES: tl.constexpr, CHUNK: tl.constexpr):
    """Into how many chunks `schedule` cuts requests of at least one query and key, and how many keys go into each.

    sound   how many of a request's keys exist
    may     where nothing but the lengths is left to decide; elsewhere there is one chunk
    """
    # More queries make no difference with less than 2^30 keys (host.py), and 32 bits hold the product.
    length = split_length(tl.minimum(q_len, 2**22), sound, QUERIES, CHUNK)
    return tl.where(may & (sound == kv_len), tl.cdiv(sound, length), 1), length


@triton.jit
def is_split_in_list(items, q_len, kv_start, kv_len, num_kv_indices, QUERIES: tl.constexpr, CHUNK: tl.constexpr):
    """Whether `schedule` split a request. Slots need no second look: it splits none where key pointers fall."""
    answer = (tl.load(items + ITEM_COUNT) > 0) & (tl.load(items + SPLITTING) > 0)
    answer = answer & (q_len > 0) & (kv_len > split_length(q_len, kv_len, QUERIES, CHUNK))
    return answer & (kv_start >= 0) & (kv_start + kv_len <= num_kv_indices)


@triton.jit
def store_slot(scratch, scratch_lse, slot, m, total, acc, HEADS: tl.constexpr, CKV: tl.constexpr):
    """Write what `attend` returned for one query as it is."""
    WIDTH: tl.constexpr = CKV // len(acc)
    row = slot * HEADS + tl.arange(0, HEADS)
    tl.store(scratch_lse + 2 * row, m)
    tl.store(scratch_lse + 2 * row + 1, total)
    for i in tl.static_range(len(acc)):
        tl.store(elements(scratch + i * WIDTH, row * CKV, 1, WIDTH, True), acc[i])
