"""The portable Triton kernel: one pass over the keys that a query sees, in one launch or in up to four.

    short     one query per program: requests of few keys, rows without keys, the padding
    lone      one query per program: requests of one query, chunks of split requests
    prefill   four queries per program: all other requests
    merge     the chunks of split requests; not launched where there are too few keys for one

On Hopper schedule.py and prefill_hopper.py take the place of `lone` and `prefill` where rows move in 16-byte pieces.

Reading order: `run` and `_launch` (host), `prefill` here, attend.py (the loop over keys), then lookup.py (who does
what), short.py, lone.py and split.py.

What each promise of the contract costs:

- hardened: index entries are 64-bit before any arithmetic. Key positions are compared with the size of what they index,
  page ids are clamped, and a row that names a bad one is made NaN at the end.
- nan-contained: no page is read that a live key does not name.
- masked-rows, padding: a row that sees no key keeps total = 0, which becomes +0 and -inf. Rows past qo_indptr[-1]
  form one more request, without keys.
- causal-contained: where a row of a tile met a NaN, the few keys that not every row of the tile sees are looked at. If
  one of them is to blame, the tile is done again up to it.
- repeatable, batch-invariant, page-invariant: a request's own lengths decide which program does what, tiles and chunks
  start at its first query and key, and keys come in order.
"""

import math
from collections.abc import Hashable

import torch
import triton
import triton.language as tl

from . import interpreter
from .attend import attend, first_unsound_key
from .contract import CKV_DIM, NUM_HEADS, Inputs, check_operands, check_results, check_scale
from .launch import is_interpreted, launch, wait_for_launch
from .lone import lone, store_rows
from .lookup import existing_keys, extent, find_request, first_tile
from .plan import Plan, multiprocessors, plan_on
from .schedule import HEADER, ITEM, TILES_PER_PROGRAM, schedule
from .short import short
from .split import is_split, merge

_LOG2_E = math.log2(math.e)


def run(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
    *,
    output: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query over the keys of its request up to its own position.

    Operands as in `kernel.Inputs`, on one device. Query i of a request with q_len queries and kv_len keys sees the keys
    j <= kv_len - q_len + i, with logit sm_scale * (q_nope . ckv_j + q_pe . kpe_j).

    Returns `output` [total_q, 16, 512] in the dtype of q_nope and `lse` [total_q, 16] float32, the base-2 logarithm of
    the sum of exp(logit). A row that sees no key gets output +0 and lse -inf; a row that names a page outside the cache
    gets NaN in both. Buffers given as `output` and `lse` are written and returned.

    Launches on the current stream of the operands' device and does not wait for it. CPU tensors are computed on the
    current GPU and come back, or run in Triton's interpreter where there is none. Raises TypeError or ValueError that
    names the operand; what the index tensors hold is only read on the device, see `kernel.check_inputs`.
    """
    inputs = Inputs(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale)
    check_operands(inputs)
    check_results(inputs, output, lse)
    if inputs.device.type == "cpu" and not _INTERPRETED:
        return _run_on_gpu(inputs, output, lse)
    if output is None:
        output = torch.empty_like(q_nope, memory_format=torch.contiguous_format)
    if lse is None:
        lse = q_nope.new_empty((inputs.total_q, NUM_HEADS), dtype=torch.float32)
    if inputs.total_q:
        _launch(inputs, output, lse)
    return output, lse


def _run_on_gpu(
    inputs: Inputs, output: torch.Tensor | None, lse: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if not torch.cuda.is_available():
        raise RuntimeError(
            "no GPU, and Triton was imported without its interpreter: import kernel before triton, "
            "or set TRITON_INTERPRET=1"
        )
    *tensors, sm_scale = inputs.operands().values()
    results = run(*(tensor.cuda() for tensor in tensors), sm_scale)
    buffers = (
        torch.empty_like(result, device="cpu") if buffer is None else buffer
        for result, buffer in zip(results, (output, lse), strict=True)
    )
    return tuple(buffer.copy_(result) for buffer, result in zip(buffers, results, strict=True))


def _launch(inputs: Inputs, output: torch.Tensor, lse: torch.Tensor) -> None:
    q_nope, q_pe, ckv, kpe = inputs.q_nope, inputs.q_pe, inputs.ckv_cache, inputs.kpe_cache
    qo_indptr, kv_indptr, kv_indices = inputs.qo_indptr, inputs.kv_indptr, inputs.kv_indices
    device, total_q, batch, num_kv_indices = q_nope.device, inputs.total_q, inputs.batch, inputs.num_kv_indices
    num_pages = inputs.num_pages
    vectors = _in_vectors(q_nope, q_pe, ckv, kpe, output)
    fits = 0 < num_pages < 2**31 and max(total_q, num_kv_indices) < 2**30 and kv_indices.stride(0) == 1
    plan = plan_on(device, vectors and fits)
    variant = (q_nope.dtype, qo_indptr.dtype, kv_indptr.dtype, kv_indices.dtype, vectors)
    variant = (*variant, plan.listed)
    tensors = (q_nope, q_pe, ckv, kpe, qo_indptr, kv_indptr, kv_indices, output, lse)
    steps = (qo_indptr.stride(0), kv_indptr.stride(0))
    result_strides = (*output.stride(), *lse.stride())
    scale = check_scale(inputs.sm_scale) * _LOG2_E
    sizes = (total_q, batch, num_kv_indices)
    numbers = (
        *q_nope.stride(), *q_pe.stride(), ckv.stride(0), ckv.stride(2), kpe.stride(0), kpe.stride(2),
        *steps, kv_indices.stride(0), *result_strides, scale, *sizes, num_pages,
    )  # fmt: skip
    longer = num_kv_indices > plan.short and batch > 0 and num_pages > 0
    if plan.listed and longer:
        _launch_list(inputs, output, lse, tensors, numbers, plan, variant, scale)
        return
    rows, programs = plan.short_programs(total_q)
    launch(
        short, programs, device, (*variant, rows), (*tensors, lse), (*numbers, 0),
        plan.short_constants(vectors, rows), plan.options(4),
    )  # fmt: skip
    if not longer:
        return
    slots = plan.slots(num_kv_indices)
    # Without slots nothing is written to scratch, and any float32 tensor will do.
    scratch = torch.empty((slots, NUM_HEADS, CKV_DIM), dtype=torch.float32, device=device) if slots else lse
    scratch_lse = torch.empty((slots, NUM_HEADS, 2), dtype=torch.float32, device=device) if slots else lse
    launch(
        lone, slots + batch, device, variant, (*tensors, scratch, scratch_lse), (*numbers, slots),
        plan.lone_constants(vectors), plan.options(plan.lone.num_warps),
    )  # fmt: skip
    launch(
        prefill, plan.tiles(total_q, batch), device, variant, tensors, (*numbers, slots),
        plan.prefill_constants(vectors), plan.options(plan.tile.num_warps),
    )  # fmt: skip
    if slots:
        launch(
            merge, batch * plan.merge_team(batch), device, variant,
            (scratch, scratch_lse, lse, qo_indptr, kv_indptr, output, lse),
            (*steps, *result_strides, *sizes, plan.merge_team(batch)), plan.merge_constants, plan.options(1),
        )  # fmt: skip


def _launch_list(
    inputs: Inputs, output: torch.Tensor, lse: torch.Tensor, tensors: tuple[torch.Tensor, ...],
    numbers: tuple[int | float, ...], plan: Plan, variant: tuple[Hashable, ...], scale: float,
) -> None:  # fmt: skip
    """Have the list of items made and worked through, see schedule.py."""
    from . import prefill_hopper

    q_nope, q_pe, ckv, kpe = inputs.q_nope, inputs.q_pe, inputs.ckv_cache, inputs.kpe_cache
    qo_indptr, kv_indptr, kv_indices = inputs.qo_indptr, inputs.kv_indptr, inputs.kv_indices
    device, batch = inputs.device, inputs.batch
    steps = (qo_indptr.stride(0), kv_indptr.stride(0))
    sizes = (inputs.total_q, batch, inputs.num_kv_indices)
    slots = plan.slots(inputs.num_kv_indices)
    most = plan.items(*sizes)
    rows_at = (HEADER + most) * ITEM
    items = torch.empty(rows_at + 4 * inputs.total_q, dtype=torch.int32, device=device)
    scratch = torch.empty((slots, NUM_HEADS, CKV_DIM), dtype=torch.float32, device=device) if slots else lse
    scratch_lse = torch.empty((slots, NUM_HEADS, 2), dtype=torch.float32, device=device) if slots else lse
    tile_programs = -(-plan.tiles(inputs.total_q, batch) // TILES_PER_PROGRAM)
    launch(
        schedule, tile_programs + (batch if slots else 0), device, variant,
        (qo_indptr, kv_indptr, items), (*steps, *sizes, tile_programs, rows_at),
        plan.schedule_constants, plan.options(4),
    )  # fmt: skip
    launch(
        prefill_hopper.prefill_hopper, min(most, multiprocessors(device)), device, (*variant, scale > 0),
        (q_nope, q_pe, ckv, kpe, kv_indices, output, lse, scratch, scratch_lse, items),
        (
            *q_nope.stride()[:2], *q_pe.stride()[:2], ckv.stride(0), kpe.stride(0),
            *output.stride()[:2], *lse.stride(), scale, inputs.num_pages,
        ),
        {"POSITIVE": scale > 0, "REGISTERS": prefill_hopper.CONSUMER_REGISTERS}, plan.options(4),
    )  # fmt: skip
    launch(
        short, min(inputs.total_q, 2 * multiprocessors(device)), device, (*variant, "listed"), (*tensors, items),
        (*numbers, rows_at), plan.short_constants(True, "listed"), plan.options(4),
    )  # fmt: skip
    if slots:
        launch(
            merge, batch * plan.merge_team(batch), device, variant,
            (scratch, scratch_lse, items, qo_indptr, kv_indptr, output, lse),
            (*steps, *output.stride(), *lse.stride(), *sizes, plan.merge_team(batch)),
            plan.merge_constants, plan.options(1),
        )  # fmt: skip


def _in_vectors(*tensors: torch.Tensor) -> bool:
    """Whether every row is contiguous, starts at a multiple of 16 bytes and lies less than 2^31 elements from the next.

    Then rows move in 16-byte pieces, and 32 bits hold a stride.
    """
    for tensor in tensors:
        row, other, unit = tensor.stride()
        if unit != 1 or tensor.data_ptr() % 16 or row % 8 or other % 8 or row >= 2**31 or other >= 2**31:
            return False
    return True


# Nothing is specialised on a value, so a new shape never compiles: one variant per combination of dtypes and VECTORS.
@triton.jit(do_not_specialize=list(range(33)))
def prefill(
    q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, output, lse,
    q_nope_row: tl.int64, q_nope_head: tl.int64, q_nope_dim: tl.int64,
    q_pe_row: tl.int64, q_pe_head: tl.int64, q_pe_dim: tl.int64,
    ckv_page: tl.int64, ckv_dim: tl.int64, kpe_page: tl.int64, kpe_dim: tl.int64,
    qo_step: tl.int64, kv_step: tl.int64, index_step: tl.int64,
    output_row: tl.int64, output_head: tl.int64, output_dim: tl.int64, lse_row: tl.int64, lse_head: tl.int64,
    scale: tl.float32,
    total_q: tl.int64, batch: tl.int64, num_kv_indices: tl.int64, num_pages: tl.int64, slots: tl.int64,
    VECTORS: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PIECES: tl.constexpr,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """One tile per program: QUERIES queries of a request that is not split, over all keys that they see."""
    wait_for_launch(WAIT)
    qo = (qo_indptr, qo_step)
    kv = (kv_indptr, kv_step)
    # Later queries see more keys: the longest tiles start first.
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    request = find_request(qo, kv, batch, tile, False, QUERIES, CHUNK)
    q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
    q_first = q_start + QUERIES * (tile - first_tile(q_start, request, QUERIES))
    if (q_first < q_start) | (q_first >= q_end) | (q_first < 0) | (q_first >= total_q):
        return
    sound = existing_keys(kv_start, kv_len, num_kv_indices)
    if (q_end - q_start == 1) | (sound <= SHORT):
        return
    if slots > 0:  # noqa: SIM102 - Triton evaluates both sides of `and`
        if is_split(qo, kv, request, batch, total_q, num_kv_indices, q_start, q_end, kv_start, kv_len, QUERIES, CHUNK):
            return

    # Keys that a row sees, and how many of them there are to see.
    query = q_first + tl.arange(0, QUERIES * HEADS) // HEADS
    q_stop = tl.minimum(tl.minimum(q_first + QUERIES, q_end), total_q)
    live = query < q_stop
    prefix = kv_len - (q_end - q_start)
    sees = tl.minimum(tl.maximum(prefix + (query - q_start) + 1, 0), kv_len)
    least = tl.minimum(tl.maximum(prefix + (q_first - q_start) + 1, 0), kv_len)
    most = tl.minimum(tl.maximum(prefix + (q_stop - q_start), 0), kv_len)

    ckv = (ckv_cache, ckv_page, ckv_dim)
    kpe = (kpe_cache, kpe_page, kpe_dim)
    pages = (kv_indices + kv_start * index_step, index_step, num_pages)
    queries = ((q_nope, q_nope_row, q_nope_head, q_nope_dim), (q_pe, q_pe_row, q_pe_head, q_pe_dim))
    results = ((output, output_row, output_head, output_dim), (lse, lse_row, lse_head))
    end = tl.minimum(most, sound)
    spoilt = _tile(
        queries, ckv, kpe, pages, results, query, live, sees, sound, end, scale,
        BLOCK_N, STAGES, PIECES, HEADS, CKV, KPE, VECTORS,
    )  # fmt: skip
    if spoilt & (least < end):
        # A key with a NaN or Inf spoils the rows that do not see it: 0 * NaN. Those that do see it or a later one are
        # NaN in any case, so the tile is done again up to there.
        sound = first_unsound_key(ckv, kpe, pages, least, end, QUERIES, CKV, KPE, VECTORS)
        if sound < end:
            _tile(
                queries, ckv, kpe, pages, results, query, live, sees, sound, sound, scale,
                BLOCK_N, STAGES, PIECES, HEADS, CKV, KPE, VECTORS,
            )  # fmt: skip


@triton.jit
def _tile(
    queries, ckv, kpe, pages, results, query, live, sees, sound, end, scale,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PIECES: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr,
    KPE: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Results of a tile over its keys up to `end`, NaN in the rows that see more than `sound` keys.

    Returns whether a row met a NaN or an Inf or a page outside the cache.
    """
    spoilt = False
    if end > 0:
        m, total, acc, exist = attend(
            queries[0], queries[1], ckv, kpe, pages, query, live, tl.minimum(sees, end).to(tl.int32), 0,
            end.to(tl.int32), scale, BLOCK_N, STAGES, PIECES, HEADS, CKV, KPE, VECTORS,
        )  # fmt: skip
        spoilt = (not exist) | (tl.max((total != total).to(tl.int32), 0) == 1)
        total = tl.where(exist & (sees <= sound), total, float("nan"))
        store_rows(results[0], results[1], m, total, acc, query, live, HEADS, CKV, VECTORS)
    else:
        nothing = tl.where(sees <= sound, 0.0, float("nan"))
        weighted = (no_keys(query.shape[0], CKV),)
        store_rows(results[0], results[1], nothing, nothing, weighted, query, live, HEADS, CKV, VECTORS)
    return spoilt


@triton.jit
def no_keys(ROWS: tl.constexpr, CKV: tl.constexpr):
    """The weighted sum of no keys."""
    return tl.zeros([ROWS, CKV], tl.float32)


_INTERPRETED = is_interpreted(prefill)
if _INTERPRETED:
    interpreter.repair()
