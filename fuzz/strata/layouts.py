"""Where operands and given results lie in memory: strides, storage offsets, fused buffers, index dtypes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from fuzz.guards import allocate
from fuzz.hashing import key, mix
from fuzz.strata.stratum import Stratum
from kernel.contract import CKV_DIM, KPE_DIM, NUM_HEADS, PAGE_SIZE

QUERIES = {"q_nope": (NUM_HEADS, CKV_DIM), "q_pe": (NUM_HEADS, KPE_DIM)}
CACHES = {"ckv_cache": (PAGE_SIZE, CKV_DIM), "kpe_cache": (PAGE_SIZE, KPE_DIM)}
RESULTS = {"output": (NUM_HEADS, CKV_DIM), "lse": (NUM_HEADS,)}
INDICES = ("qo_indptr", "kv_indptr", "kv_indices")
INT32_ELEMENTS = 1 << 31


@dataclass(frozen=True)
class Place:
    """Arguments of `guards.allocate`: strides in elements (None: contiguous), storage offset, zeros in front."""

    strides: tuple[int, ...] | None = None
    offset: int = 0
    front: int = 0


Placing = Callable[[str, tuple[int, ...], int], Place]


def _contiguous(name: str, shape: tuple[int, ...], seed: int) -> Place:
    return Place()


@dataclass(frozen=True, kw_only=True)
class Layout(Stratum):
    """place(name, shape, seed) says where an operand lies, and result(name, shape, seed) where `output` or `lse` does.

    fused   q_nope with q_pe, and ckv_cache with kpe_cache, are columns 0..511 and 512..575 of one buffer, which
            `place` is asked about as "q" and "cache"
    packed  the index tensors are parts of one buffer
    heads   the heads of a query tensor are one row, stride 0
    sparse  row strides near 2^31 elements: most of the storage is zero and untouched
    """

    place: Placing = _contiguous
    result: Placing = _contiguous
    fused: bool = False
    packed: bool = False
    heads: bool = True
    sparse: bool = False


def places(
    layout: Layout, total_q: int, num_pages: int, front: int, seed: int
) -> Iterator[tuple[str, tuple[int, ...], Place]]:
    """Name, shape and place of each buffer that holds values; `front` elements of zeros stand before ckv_cache."""
    for fused, rows, parts in (("q", total_q, QUERIES), ("cache", num_pages, CACHES)):
        heads = next(iter(parts.values()))[0]
        buffers = {fused: (heads, CKV_DIM + KPE_DIM)} if layout.fused else parts
        for name, (inner, columns) in buffers.items():
            shape = (rows, inner if layout.heads else 1, columns)
            place = layout.place(name, shape, seed)
            yield name, shape, replace(place, front=max(place.front, front if name in ("cache", "ckv_cache") else 0))


def allocate_values(
    layout: Layout, total_q: int, num_pages: int, front: int, dtype: torch.dtype, device: torch.device, seed: int
) -> dict[str, torch.Tensor]:
    """q_nope, q_pe, ckv_cache and kpe_cache, guarded and holding the guard pattern.

    `front` is a number of elements of zeros before ckv_cache. With `heads` false the query tensors have one head.
    """
    views: dict[str, torch.Tensor] = {}
    for name, shape, place in places(layout, total_q, num_pages, front, seed):
        buffer = _allocate(shape, place, dtype, device)
        if layout.fused:
            views |= zip(QUERIES if name == "q" else CACHES, buffer.split((CKV_DIM, KPE_DIM), -1), strict=True)
        else:
            views[name] = buffer
    return views


def allocate_indices(
    layout: Layout, lengths: Mapping[str, int], dtypes: Sequence[torch.dtype], device: torch.device, seed: int
) -> dict[str, torch.Tensor]:
    """The index tensors by name, guarded and holding the guard pattern; `lengths` in the order of INDICES."""
    if layout.packed:
        return _pack(lengths, dict(zip(INDICES, dtypes, strict=True)), device)
    return {
        name: _allocate((length,), layout.place(name, (length,), seed), dtype, device)
        for (name, length), dtype in zip(lengths.items(), dtypes, strict=True)
    }


def _pack(
    lengths: Mapping[str, int], dtypes: Mapping[str, torch.dtype], device: torch.device
) -> dict[str, torch.Tensor]:
    """One buffer: kv_indptr ends where kv_indices begins, then comes qo_indptr. int64 lies at multiples of 8 bytes."""
    sizes = {name: lengths[name] * dtypes[name].itemsize for name in INDICES}
    pages_at = -(-sizes["kv_indptr"] // 8) * 8
    rows_at = -(-(pages_at + sizes["kv_indices"]) // 8) * 8
    starts = {"qo_indptr": rows_at, "kv_indptr": pages_at - sizes["kv_indptr"], "kv_indices": pages_at}
    buffer = allocate((-(-(rows_at + sizes["qo_indptr"]) // 8),), torch.int64, device)
    return {
        name: buffer.view(dtypes[name])[start // dtypes[name].itemsize :][: lengths[name]]
        for name, start in starts.items()
    }


def result_places(layout: Layout, total_q: int, seed: int) -> Iterator[tuple[str, tuple[int, ...], Place]]:
    """Name, shape and place of the buffers that a kernel may be given for its results."""
    for name, row in RESULTS.items():
        shape = (total_q, *row)
        yield name, shape, layout.result(name, shape, seed)


def allocate_results(
    layout: Layout, total_q: int, dtype: torch.dtype, device: torch.device, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`output` [total_q, 16, 512] of `dtype` and `lse` [total_q, 16] float32, guarded and holding the guard pattern."""
    (_, shape, place), (_, lse_shape, lse_place) = result_places(layout, total_q, seed)
    return _allocate(shape, place, dtype, device), _allocate(lse_shape, lse_place, torch.float32, device)


def _allocate(shape: tuple[int, ...], place: Place, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return allocate(shape, dtype, device, strides=place.strides, offset=place.offset, front=place.front)


def _is_index(name: str) -> bool:
    return name in INDICES


def _offset(name: str, shape: tuple[int, ...], seed: int) -> Place:
    return Place() if _is_index(name) else Place(offset=1)


def _padded(pad: int, name: str, shape: tuple[int, ...], seed: int) -> Place:
    """`pad` elements after the columns of each head, twice as many after each row."""
    if _is_index(name):
        return Place()
    _, heads, columns = shape
    head = columns + pad
    return Place(strides=(heads * head + 2 * pad, head, 1))


def _transposed(name: str, shape: tuple[int, ...], seed: int) -> Place:
    """[heads, rows, columns] in memory; the caches' dimension of size 1 gets a stride that means nothing."""
    if _is_index(name):
        return Place()
    rows, heads, columns = shape
    return Place(strides=(columns, max(rows, 1) * columns if heads > 1 else 7, 1))


def _columns(name: str, shape: tuple[int, ...], seed: int) -> Place:
    """Rows are innermost: neighbouring columns lie `rows` elements apart."""
    if _is_index(name):
        return Place()
    rows, heads, _ = shape
    return Place(strides=(1, max(rows, 1), max(rows, 1) * heads))


def _stepped(name: str, shape: tuple[int, ...], seed: int) -> Place:
    if _is_index(name):
        return Place()
    _, heads, columns = shape
    return Place(strides=(heads * columns * 2, columns * 2, 2))


def _one_head(name: str, shape: tuple[int, ...], seed: int) -> Place:
    return Place()


def _wide(name: str, shape: tuple[int, ...], seed: int) -> Place:
    """The last row begins 2^31 elements or a little more after the first, if there are two rows.

    Either in both query tensors or in both caches, of the seed's choice, to bound the memory."""
    return _far_apart(shape) if name in (QUERIES, CACHES)[mix(key(seed, "wide")) % 2] else Place()


def _far_apart(shape: tuple[int, ...]) -> Place:
    if shape[0] < 2:
        return Place()
    stride = -(-INT32_ELEMENTS // (shape[0] - 1) // 64) * 64 + 64
    return Place(strides=(max(stride, shape[1] * shape[2]), shape[2], 1), front=INT32_ELEMENTS)


def _index_offset(name: str, shape: tuple[int, ...], seed: int) -> Place:
    return Place(offset=1) if _is_index(name) else Place()


def _index_stepped(name: str, shape: tuple[int, ...], seed: int) -> Place:
    return Place(strides=(2,)) if _is_index(name) else Place()


def _mixed(name: str, shape: tuple[int, ...], seed: int) -> Place:
    """Each operand for itself."""
    if _is_index(name):
        kinds: Sequence[Placing] = (_contiguous, _index_offset, _index_stepped)
    else:
        kinds = (_contiguous, _offset, partial(_padded, 8), partial(_padded, 1), _transposed, _stepped)
    return kinds[mix(key(seed, f"layout {name}")) % len(kinds)](name, shape, seed)


def _given_output(name: str, shape: tuple[int, ...], seed: int) -> Place:
    kinds = (partial(_padded, 8), partial(_padded, 1), _transposed, _stepped, _columns)
    return kinds[mix(key(seed, "given output")) % len(kinds)](name, shape, seed) if name == "output" else Place()


def _stepped_output(name: str, shape: tuple[int, ...], seed: int) -> Place:
    return _stepped(name, shape, seed) if name == "output" else Place()


def _given_lse(name: str, shape: tuple[int, ...], seed: int) -> Place:
    """Heads first, more elements after each row, or every other element; not contiguous for a single row either."""
    if name != "lse":
        return Place()
    rows, heads = shape
    strides = ((1, rows + 1), (heads + 3, 1), (2 * heads, 2))
    return Place(strides=strides[mix(key(seed, "given lse")) % len(strides)], offset=1)


def _wide_output(name: str, shape: tuple[int, ...], seed: int) -> Place:
    return _far_apart(shape) if name == "output" else Place()


LAYOUTS = {
    "contiguous": Layout(
        doc="contiguous and aligned",
        source="definition",
    ),
    "fused": Layout(
        doc="q and cache are column slices of [total_q, 16, 576] and [num_pages, 1, 576] buffers",
        source="F26; FlashInfer #1341, PR #1865, FlagGems #5896",
        fused=True,
    ),
    "offset": Layout(
        doc="storage offset of one element: addresses are not divisible by 16",
        source="F26, F27; Triton #1330, #2229",
        place=_offset,
    ),
    "padded": Layout(
        doc="8 elements after each head, 16 after each row: aligned, not contiguous",
        source="F26; FlashInfer #1341",
        place=partial(_padded, 8),
    ),
    "odd-strides": Layout(
        doc="1 element after each head, 2 after each row: strides are not divisible by 16 bytes",
        source="F26, F27; Triton #1320",
        place=partial(_padded, 1),
    ),
    "transposed": Layout(
        doc="queries stored heads first; the caches' dimension of size 1 has a stride of 7",
        source="F18, F26",
        place=_transposed,
    ),
    "columns": Layout(
        doc="rows innermost: no operand is contiguous along its columns",
        source="F26; FlagGems #5896",
        place=_columns,
    ),
    "stepped": Layout(
        doc="every other element of a buffer twice as wide, of the output too",
        source="F26",
        place=_stepped,
        result=_stepped_output,
    ),
    "one-head": Layout(
        doc="query heads expanded from one, stride 0",
        source="F26",
        place=_one_head,
        heads=False,
    ),
    "wide": Layout(
        doc="rows of queries or caches so far apart that row times stride passes 2^31 early; zeros where it wraps",
        source="F01, F02, F26; SageAttention #386, flash-attention #2611",
        place=_wide,
        sparse=True,
    ),
    "index-offset": Layout(
        doc="index tensors at a storage offset of one element",
        source="F26; Triton #1330",
        place=_index_offset,
    ),
    "index-stepped": Layout(
        doc="index tensors are every other element of a buffer, garbage between",
        source="F26",
        place=_index_stepped,
    ),
    "index-packed": Layout(
        doc="index tensors side by side in one buffer: what lies before and behind kv_indices could be pages",
        source="F04, F30; vLLM #48043",
        packed=True,
    ),
    "mixed": Layout(
        doc="another layout for each operand",
        source="F26; FlashInfer #1341",
        place=_mixed,
    ),
    "given-output": Layout(
        doc="a buffer given as output has gaps, odd strides, heads or columns first, or every other element",
        source="F18, F26; FlashInfer PR #1865, flash-attention PR #2670",
        result=_given_output,
    ),
    "given-lse": Layout(
        doc="a buffer given as lse has heads first, gaps or every other element, and a storage offset of one",
        source="F18, F26; flash-attention PR #2388, vLLM PR #22003, FlashInfer PR #3309",
        result=_given_lse,
    ),
    "wide-output": Layout(
        doc="rows of a buffer given as output so far apart that row times stride passes 2^31 early",
        source="F02, F26; flash-linear-attention #1080",
        result=_wide_output,
        sparse=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class IndexDtypes(Stratum):
    """`dtypes` of qo_indptr, kv_indptr and kv_indices."""

    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]


INDEX_DTYPES = {
    "int32": IndexDtypes(
        doc="all three int32, as the definition says",
        source="definition",
        dtypes=(torch.int32, torch.int32, torch.int32),
    ),
    "int64": IndexDtypes(
        doc="all three int64: a kernel that reads them as int32 sees every other number as zero",
        source="F26",
        dtypes=(torch.int64, torch.int64, torch.int64),
    ),
    "int64-indices": IndexDtypes(
        doc="int64 kv_indices, int32 row pointers",
        source="F26",
        dtypes=(torch.int32, torch.int32, torch.int64),
    ),
    "int64-indptr": IndexDtypes(
        doc="int64 row pointers, int32 kv_indices",
        source="F26",
        dtypes=(torch.int64, torch.int64, torch.int32),
    ),
    "int64-mixed": IndexDtypes(
        doc="int64 qo_indptr alone: the row pointers differ from each other",
        source="F26",
        dtypes=(torch.int64, torch.int32, torch.int32),
    ),
}
