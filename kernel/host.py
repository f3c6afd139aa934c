"""The host's side of a call: checks operands, allocates results, chooses a plan and launches up to four kernels.

    short     one query per program: requests of few keys, rows without keys, the padding
    lone      one query per program: requests of one query, chunks of split requests
    prefill   four queries per program: all other requests
    merge     the chunks of split requests; not launched where there are too few keys for one

On Hopper others take their place where rows move in 16-byte pieces and there may be requests of more than a few keys:

    schedule        lists the work of more than 31 requests; of fewer each program finds its own
    prefill_hopper  four queries per program: requests of more than a few keys, chunks of split requests
    rest            what `short` and `merge` do; in its place `short` goes first where nothing can be split and some
                    request is short

Reading order: `run`, `call` and `_launch` here, prefill.py, attend.py (the loop over keys), then lookup.py (who does
what), short.py, lone.py, split.py and merge.py; for Hopper prefill_hopper.py, found.py,
schedule.py, listing.py and rest.py.
"""

import math
from collections.abc import Callable, Hashable

import torch

from . import interpreter
from .contract import CKV_DIM, NUM_HEADS, Inputs, check_operands, check_results
from .launch import is_interpreted, launch
from .listing import HEADER, ITEM, ROW
from .lone import lone
from .merge import merge
from .plan import Plan, multiprocessors, plan_on
from .prefill import prefill
from .rest import rest
from .schedule import TILES_PER_PROGRAM, schedule
from .short import short

PlanFor = Callable[[torch.device, bool], Plan]

_HEADER, _ITEM, _ROW = HEADER.value, ITEM.value, ROW.value
_LOG2_E = math.log2(math.e)
INTERPRETED = is_interpreted(short)
if INTERPRETED:
    interpreter.repair()


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
    return call(inputs, output, lse, plan_on)


def call(
    inputs: Inputs, output: torch.Tensor | None, lse: torch.Tensor | None, plan_for: PlanFor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `run`; `plan_for` gives the plan, as `plan_on` does."""
    sm_scale = check_operands(inputs)
    check_results(inputs, output, lse)
    if (inputs.device.type == "cpu") != INTERPRETED:
        if INTERPRETED:
            where = inputs.device
            raise RuntimeError(f"operands on {where}, and Triton was imported with TRITON_INTERPRET=1: unset it")
        return _run_on_gpu(inputs, output, lse, plan_for)
    if output is None:
        output = torch.empty_like(inputs.q_nope, memory_format=torch.contiguous_format)
    if lse is None:
        lse = inputs.q_nope.new_empty((inputs.total_q, NUM_HEADS), dtype=torch.float32)
    if inputs.total_q:
        _launch(inputs, sm_scale, output, lse, plan_for)
    return output, lse


def _run_on_gpu(
    inputs: Inputs, output: torch.Tensor | None, lse: torch.Tensor | None, plan_for: PlanFor
) -> tuple[torch.Tensor, torch.Tensor]:
    if not torch.cuda.is_available():
        raise RuntimeError(
            "no GPU, and Triton was imported without its interpreter: import kernel before triton, "
            "or set TRITON_INTERPRET=1"
        )
    q_nope, q_pe, ckv, kpe, qo_indptr, kv_indptr, kv_indices = (tensor.cuda() for tensor in inputs.tensors)
    on_gpu = Inputs(q_nope, q_pe, ckv, kpe, qo_indptr, kv_indptr, kv_indices, inputs.sm_scale)
    gpu_output, gpu_lse = call(on_gpu, None, None, plan_for)
    return (
        gpu_output.cpu() if output is None else output.copy_(gpu_output),
        gpu_lse.cpu() if lse is None else lse.copy_(gpu_lse),
    )


def plan_of(plan_for: PlanFor, inputs: Inputs, *results: torch.Tensor) -> tuple[Plan, bool]:
    """The plan of a call, and whether rows move in 16-byte pieces. Results that are not given are contiguous."""
    vectors = _in_vectors(inputs.q_nope, inputs.q_pe, inputs.ckv_cache, inputs.kpe_cache, *results)
    positions, num_pages = max(inputs.total_q, inputs.num_kv_indices), inputs.num_pages
    fits = 0 < num_pages < 2**31 and positions < 2**30 and inputs.kv_indices.stride(0) == 1
    return plan_for(inputs.device, vectors and fits), vectors


def _launch(inputs: Inputs, sm_scale: float, output: torch.Tensor, lse: torch.Tensor, plan_for: PlanFor) -> None:
    """Launch what computes a call of at least one row: which kernels and how many programs, shapes alone decide."""
    q_nope, q_pe, ckv, kpe = inputs.q_nope, inputs.q_pe, inputs.ckv_cache, inputs.kpe_cache
    qo_indptr, kv_indptr, kv_indices = inputs.qo_indptr, inputs.kv_indptr, inputs.kv_indices
    device, total_q, batch = q_nope.device, q_nope.shape[0], inputs.batch
    num_kv_indices, num_pages = kv_indices.shape[0], ckv.shape[0]
    plan, vectors = plan_of(plan_for, inputs, output)
    variant = (plan, q_nope.dtype, qo_indptr.dtype, kv_indptr.dtype, kv_indices.dtype, vectors)
    tensors = (q_nope, q_pe, ckv, kpe, qo_indptr, kv_indptr, kv_indices, output, lse)
    steps = (qo_indptr.stride(0), kv_indptr.stride(0))
    result_strides = (*output.stride(), *lse.stride())
    scale = sm_scale * _LOG2_E
    sizes = (total_q, batch, num_kv_indices)
    numbers = (
        *q_nope.stride(), *q_pe.stride(), ckv.stride(0), ckv.stride(2), kpe.stride(0), kpe.stride(2),
        *steps, kv_indices.stride(0), *result_strides, scale, *sizes, num_pages,
    )  # fmt: skip
    # No request has more queries or keys than the call.
    longer = not plan.is_short(total_q, num_kv_indices) and batch > 0 and num_pages > 0
    if plan.listed and longer:
        _launch_hopper(inputs, tensors, numbers, scale, plan, variant)
        return
    _launch_short(tensors, numbers, plan, vectors, variant, ahead=False)
    if not longer:
        return
    slots = plan.slots(num_kv_indices)
    scratch, scratch_lse = _scratch(slots, lse)
    launch(
        lone, slots + batch, device, variant, (*tensors, scratch, scratch_lse), (*numbers, slots),
        plan.lone_constants(vectors), plan.options("lone"),
    )  # fmt: skip
    launch(
        prefill, plan.tiles(total_q, batch), device, variant, tensors, (*numbers, slots),
        plan.prefill_constants(vectors), plan.options("prefill"),
    )  # fmt: skip
    if slots:
        team = plan.merge_team(batch)
        launch(
            merge, batch * team, device, variant, (scratch, scratch_lse, qo_indptr, kv_indptr, output, lse),
            (*steps, *result_strides, *sizes, team), plan.merge_constants, plan.options("merge"),
        )  # fmt: skip


def _launch_short(
    tensors: tuple[torch.Tensor, ...], numbers: tuple[int | float, ...], plan: Plan, vectors: bool,
    variant: tuple[Hashable, ...], ahead: bool,
) -> None:  # fmt: skip
    rows, programs = plan.short_programs(tensors[0].shape[0])
    launch(
        short, programs, tensors[0].device, (*variant, rows, ahead), tensors, numbers,
        plan.short_constants(vectors, rows, ahead), plan.options("short"),
    )  # fmt: skip


def _launch_hopper(
    inputs: Inputs, tensors: tuple[torch.Tensor, ...], numbers: tuple[int | float, ...], scale: float, plan: Plan,
    variant: tuple[Hashable, ...],
) -> None:  # fmt: skip
    """Launch what takes the place of all others where there are longer requests and rows move in 16-byte pieces."""
    from .prefill_hopper import prefill_hopper  # not at the top: this Triton's Gluon may lack something that it needs

    output, lse = tensors[-2:]
    device, total_q, batch, num_kv_indices = output.device, inputs.total_q, inputs.batch, inputs.num_kv_indices
    processors = multiprocessors(device)
    slots = plan.slots(num_kv_indices)
    scratch = _scratch(slots, lse)
    most = plan.items(total_q, batch, num_kv_indices)
    way = plan.way_to_items(batch)
    listed = way == "listed"
    variant = (*variant, way)
    rows_at = (_HEADER + most) * _ITEM if listed else _HEADER * _ITEM
    items = torch.empty(rows_at + (_ROW * total_q if listed else 0), dtype=torch.int32, device=device)
    if listed:
        _launch_schedule(inputs, items, rows_at, plan, variant)
    # Some request has no more keys than `short` takes. Its rows begin at once: multiprocessors are left to them.
    some_short = batch > 1 and num_kv_indices <= plan.short * batch
    beside = some_short and not slots
    if beside:
        _launch_short(tensors, numbers, plan, True, variant, ahead=True)
    programs = min(most, processors * 3 // 4 if some_short else processors)
    launch(
        prefill_hopper, programs, device, (*variant, scale > 0, beside), (*tensors, *scratch, items),
        (
            *inputs.q_nope.stride()[:2], *inputs.q_pe.stride()[:2], inputs.ckv_cache.stride(0),
            inputs.kpe_cache.stride(0), *output.stride()[:2], *lse.stride(), scale, inputs.num_pages,
            inputs.qo_indptr.stride(0), inputs.kv_indptr.stride(0), total_q, batch, num_kv_indices,
        ),
        plan.hopper_constants(scale > 0, way, beside), plan.options("prefill_hopper"),
    )  # fmt: skip
    if beside:
        return
    # Without a list, programs take short rows by their numbers: one each, where there may be many of them.
    programs = max(2 * processors, min(total_q, plan.shorts) if some_short and not listed else 0)
    launch(
        rest, programs, device, (*variant, slots > 0), (*tensors, *scratch, items), (*numbers, rows_at),
        plan.rest_constants(listed, slots > 0), plan.options("rest"),
    )  # fmt: skip


def _launch_schedule(
    inputs: Inputs, items: torch.Tensor, rows_at: int, plan: Plan, variant: tuple[Hashable, ...]
) -> None:
    """Launch what lists the items of a call, and rows for `short` from `rows_at` on."""
    qo_indptr, kv_indptr = inputs.qo_indptr, inputs.kv_indptr
    total_q, batch, num_kv_indices = inputs.total_q, inputs.batch, inputs.num_kv_indices
    tile_programs = -(-plan.tiles(total_q, batch) // TILES_PER_PROGRAM)
    programs = tile_programs + (batch if plan.slots(num_kv_indices) else 0)
    launch(
        schedule, programs, items.device, variant, (qo_indptr, kv_indptr, items),
        (qo_indptr.stride(0), kv_indptr.stride(0), total_q, batch, num_kv_indices, tile_programs, rows_at),
        plan.schedule_constants, plan.options("schedule"),
    )  # fmt: skip


def _scratch(slots: int, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial results and what belongs to them of an LSE; without slots `lse` stands for both, and nobody looks."""
    if not slots:
        return lse, lse
    parts = torch.empty((slots, NUM_HEADS, CKV_DIM), dtype=torch.float32, device=lse.device)
    return parts, torch.empty((slots, NUM_HEADS, 2), dtype=torch.float32, device=lse.device)


def _in_vectors(*tensors: torch.Tensor) -> bool:
    """Whether every row is contiguous, starts at a multiple of 16 bytes and lies less than 2^31 elements from the next.

    Then rows move in 16-byte pieces, and 32 bits hold a stride.
    """
    for tensor in tensors:
        row, other, unit = tensor.stride()
        if unit != 1 or tensor.data_ptr() % 16 or row % 8 or other % 8 or row >= 2**31 or other >= 2**31:
            return False
    return True
