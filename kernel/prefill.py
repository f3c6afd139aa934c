"""The portable Triton kernel: one program per tile of a few queries × 16 heads, one pass over the keys that it sees.

Reading order: `run` (host), `_prefill` (one program), then the helpers in the order in which `_prefill` calls them.

What each promise of the contract costs here:

- hardened, nan-contained: index entries are 64-bit before any arithmetic, key positions and page ids are compared with
  the size of what they index, and a key that fails is loaded as zeros and scored NaN.
- masked-rows, padding: a row that sees no key keeps sum 0, which the epilogue turns into +0 and -inf. Rows past
  qo_indptr[-1] form one more request, without keys.
- causal-contained: only tiles on the causal edge hold keys that some row does not see. There a key with a NaN or Inf is
  replaced by zeros and scored NaN, which only reaches the rows that do see it.
- repeatable, batch-invariant, page-invariant: a tile starts at its request's first query and walks its keys in order.
"""

import math

import torch
import triton
import triton.language as tl

from . import interpreter
from .contract import CKV_DIM, KPE_DIM, NUM_HEADS, Inputs, check_operands, check_results, check_scale
from .plan import tile_on

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
        output = torch.empty(q_nope.shape, dtype=q_nope.dtype, device=q_nope.device)
    if lse is None:
        lse = torch.empty((inputs.total_q, NUM_HEADS), dtype=torch.float32, device=q_nope.device)
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
    operands = inputs.operands()
    moved = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in operands.items()}
    results = run(**moved)
    buffers = (torch.empty_like(result, device="cpu") if buffer is None else buffer
               for result, buffer in zip(results, (output, lse), strict=True))
    return tuple(buffer.copy_(result) for buffer, result in zip(buffers, results, strict=True))


def _launch(inputs: Inputs, output: torch.Tensor, lse: torch.Tensor) -> None:
    q_nope, q_pe, ckv, kpe = inputs.q_nope, inputs.q_pe, inputs.ckv_cache, inputs.kpe_cache
    qo_indptr, kv_indptr, kv_indices = inputs.qo_indptr, inputs.kv_indptr, inputs.kv_indices
    tile = tile_on(inputs.device)
    # Request b gets the tiles from qo_indptr[b] // queries + b on, at least as many as it needs. `batch` is the padding.
    grid = (inputs.total_q // tile.queries + inputs.batch + 1,)
    with torch.cuda.device_of(q_nope):
        _prefill[grid](
            q_nope, q_pe, ckv, kpe, qo_indptr, kv_indptr, kv_indices, output, lse,
            *q_nope.stride(), *q_pe.stride(), ckv.stride(0), ckv.stride(2), kpe.stride(0), kpe.stride(2),
            qo_indptr.stride(0), kv_indptr.stride(0), kv_indices.stride(0), *output.stride(), *lse.stride(),
            check_scale(inputs.sm_scale) * _LOG2_E,
            inputs.total_q, inputs.batch, inputs.num_kv_indices, inputs.num_pages,
            VECTORS=all(map(_in_vectors, (q_nope, q_pe, ckv, kpe, output))),
            QUERIES=tile.queries, HEADS=NUM_HEADS, CKV=CKV_DIM, KPE=KPE_DIM, BLOCK_N=tile.keys,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip


def _in_vectors(tensor: torch.Tensor) -> bool:
    """Whether every row is contiguous and starts at a multiple of 16 bytes, so that it can be moved in 16-byte pieces."""
    *rows, unit = tensor.stride()
    return unit == 1 and tensor.data_ptr() % 16 == 0 and not any(stride % 8 for stride in rows)


# Nothing is specialised on a value, so a new shape never compiles: one variant per combination of dtypes and VECTORS.
@triton.jit(do_not_specialize=list(range(32)))
def _prefill(
    q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, output, lse,
    q_nope_row: tl.int64, q_nope_head: tl.int64, q_nope_dim: tl.int64,
    q_pe_row: tl.int64, q_pe_head: tl.int64, q_pe_dim: tl.int64,
    ckv_page: tl.int64, ckv_dim: tl.int64, kpe_page: tl.int64, kpe_dim: tl.int64,
    qo_step: tl.int64, kv_step: tl.int64, index_step: tl.int64,
    output_row: tl.int64, output_head: tl.int64, output_dim: tl.int64, lse_row: tl.int64, lse_head: tl.int64,
    scale: tl.float32,
    total_q: tl.int64, batch: tl.int64, num_kv_indices: tl.int64, num_pages: tl.int64,
    VECTORS: tl.constexpr, QUERIES: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Later queries see more keys: the longest tiles start first.
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    request = _find_request(qo_indptr, qo_step, batch, tile, QUERIES)
    q_start, q_end, kv_start, kv_len = _extent(
        qo_indptr, qo_step, kv_indptr, kv_step, request, batch, total_q
    )
    q_first = q_start + QUERIES * (tile - _first_tile(q_start, request, QUERIES))
    if (q_first < q_start) | (q_first >= q_end) | (q_first < 0) | (q_first >= total_q):
        return

    # Row r of the tile is head r % HEADS of query r // HEADS.
    row = tl.arange(0, QUERIES * HEADS)
    head = (row % HEADS).to(tl.int64)
    query = q_first + row // HEADS
    q_stop = tl.minimum(tl.minimum(q_first + QUERIES, q_end), total_q)
    live = query < q_stop

    # Keys that a row sees, and how many of them lie inside kv_indices.
    prefix = kv_len - (q_end - q_start)
    sees = tl.minimum(tl.maximum(prefix + (query - q_start) + 1, 0), kv_len)
    least = tl.minimum(tl.maximum(prefix + (q_first - q_start) + 1, 0), kv_len)
    most = tl.minimum(tl.maximum(prefix + (q_stop - q_start), 0), kv_len)
    inside = tl.where(kv_start < 0, 0, tl.minimum(tl.maximum(num_kv_indices - kv_start, 0), kv_len))
    edge = (tl.minimum(least, inside) // BLOCK_N * BLOCK_N).to(tl.int32)
    end = tl.minimum(most, inside).to(tl.int32)

    qn = _load(q_nope, query * q_nope_row + head * q_nope_head, q_nope_dim, live, CKV, VECTORS)
    qp = _load(q_pe, query * q_pe_row + head * q_pe_head, q_pe_dim, live, KPE, VECTORS)
    page_of = kv_indices + kv_start * index_step
    m = tl.full([QUERIES * HEADS], -float("inf"), tl.float32)
    l = tl.zeros([QUERIES * HEADS], tl.float32)
    acc = tl.zeros([QUERIES * HEADS, CKV], tl.float32)
    for start in tl.range(0, edge, BLOCK_N):
        m, l, acc = _attend(
            qn, qp, m, l, acc, start, end, sees, page_of, index_step, num_pages, scale,
            ckv_cache, ckv_page, ckv_dim, kpe_cache, kpe_page, kpe_dim, BLOCK_N, CKV, KPE, VECTORS, False,
        )  # fmt: skip
    for start in tl.range(edge, end, BLOCK_N, num_stages=1):
        m, l, acc = _attend(
            qn, qp, m, l, acc, start, end, sees, page_of, index_step, num_pages, scale,
            ckv_cache, ckv_page, ckv_dim, kpe_cache, kpe_page, kpe_dim, BLOCK_N, CKV, KPE, VECTORS, True,
        )  # fmt: skip

    # A row that reaches past kv_indices names pages that do not exist.
    l = tl.where(sees > inside, float("nan"), l)
    empty = l == 0
    value = tl.where(empty[:, None], 0.0, acc / l[:, None])
    value_lse = tl.where(empty, -float("inf"), m + tl.log2(l))
    tl.store(lse + query * lse_row + head * lse_head, value_lse, mask=live)
    elements = _elements(output, query * output_row + head * output_head, output_dim, CKV, VECTORS)
    tl.store(elements, value.to(output.dtype.element_ty), mask=live[:, None])


@triton.jit
def _first_tile(q_start, request, QUERIES: tl.constexpr):
    """The first tile of a request: strictly rising with it, and leaving room for all of the tiles before it."""
    return q_start // QUERIES + request


@triton.jit
def _find_request(qo_indptr, qo_step, batch, tile, QUERIES: tl.constexpr):
    """The last request in 0 .. batch whose first tile is not past `tile`; ends in log2(batch) steps on any content."""
    low = tl.zeros([], tl.int64)
    high = batch
    while low < high:
        middle = (low + high + 1) // 2
        q_start = tl.load(qo_indptr + middle * qo_step).to(tl.int64)
        if _first_tile(q_start, middle, QUERIES) <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _extent(qo_indptr, qo_step, kv_indptr, kv_step, request, batch, total_q):
    """Query rows q_start .. q_end of a request, its first key position and key count; `batch` is the padding."""
    after = tl.minimum(request + 1, batch)
    q_start = tl.load(qo_indptr + request * qo_step).to(tl.int64)
    q_end = tl.load(qo_indptr + after * qo_step).to(tl.int64)
    kv_start = tl.load(kv_indptr + request * kv_step).to(tl.int64)
    kv_end = tl.load(kv_indptr + after * kv_step).to(tl.int64)
    return q_start, tl.where(request < batch, q_end, total_q), kv_start, tl.maximum(kv_end - kv_start, 0)


@triton.jit
def _elements(base, offset, step, WIDTH: tl.constexpr, VECTORS: tl.constexpr):
    """[len(offset), WIDTH] pointers, one row per offset."""
    dim = tl.arange(0, WIDTH)
    if VECTORS:
        return tl.multiple_of(base + offset, [16])[:, None] + dim[None, :]
    else:
        return (base + offset)[:, None] + dim[None, :] * step


@triton.jit
def _load(base, offset, step, mask, WIDTH: tl.constexpr, VECTORS: tl.constexpr):
    """[len(offset), WIDTH] elements, zeros in the rows where `mask` is off."""
    return tl.load(_elements(base, offset, step, WIDTH, VECTORS), mask=mask[:, None], other=0.0)


@triton.jit
def _attend(
    qn, qp, m, l, acc, start, end, sees, page_of, index_step, num_pages, scale,
    ckv_cache, ckv_page, ckv_dim, kpe_cache, kpe_page, kpe_dim,
    BLOCK_N: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr, VECTORS: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax in base 2: keys start .. start + BLOCK_N; EDGE where not every row sees all of them."""
    key = start + tl.arange(0, BLOCK_N)
    if EDGE:
        page = tl.load(page_of + key * index_step, mask=key < end, other=-1).to(tl.int64)
    else:
        page = tl.load(page_of + key * index_step).to(tl.int64)
    exists = (page >= 0) & (page < num_pages)
    k = _load(ckv_cache, page * ckv_page, ckv_dim, exists, CKV, VECTORS)
    kp = _load(kpe_cache, page * kpe_page, kpe_dim, exists, KPE, VECTORS)
    usable = exists
    if EDGE:
        # Weight 0 does not silence a NaN or Inf in the product with P: a row that does not see the key would get it.
        finite = tl.max((tl.abs(k.to(tl.float32)) < float("inf")).to(tl.int32) ^ 1, 1) == 0
        k = tl.where(finite[:, None], k, 0.0)
        usable = exists & finite
    # Scaled apart: chained into one accumulator, the two products would wait for each other on Hopper.
    x = tl.dot(qn, tl.trans(k)) * scale + tl.dot(qp, tl.trans(kp)) * scale
    x = tl.where(usable[None, :], x, float("nan"))
    if EDGE:
        x = tl.where(key[None, :] < sees[:, None], x, -float("inf"))
    m_new = tl.maximum(m, tl.max(x, 1))
    # A row that has seen no key yet would shift by -inf - -inf.
    shift = tl.where(m_new == -float("inf"), 0.0, m_new) if EDGE else m_new
    p = tl.exp2(x - shift[:, None])
    alpha = tl.exp2(m - shift)
    l = l * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(k.dtype), k, acc * alpha[:, None])
    return m_new, l, acc


_INTERPRETED = not isinstance(_prefill, triton.JITFunction)
if _INTERPRETED:
    interpreter.repair()
