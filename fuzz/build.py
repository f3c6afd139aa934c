"""From a Case to the operands of one call.

Integer arithmetic only (`fuzz.hashing`): the same Case gives the same bits on every device and in every version of
torch. Every operand is a view inside a storage with guard bands (`fuzz.guards`), and every page that no live slot names
is poisoned.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fuzz.case import Case
from fuzz.guards import LAZY, extent
from fuzz.hashing import below, key
from fuzz.strata.indptr import INDPTRS
from fuzz.strata.layouts import (
    CACHES,
    INDEX_DTYPES,
    INDICES,
    LAYOUTS,
    QUERIES,
    allocate_indices,
    allocate_values,
    places,
    result_places,
)
from fuzz.strata.pages import PAGES, Positions, garbage
from fuzz.strata.poison import POISONS
from fuzz.strata.scales import SCALES
from fuzz.strata.values import VALUES, Rows
from kernel.contract import CKV_DIM, NUM_HEADS, Inputs

# rows made at a time, so that temporaries stay small beside the operands
_CHUNK = {"queries": 1 << 11, "keys": 1 << 15}


def build(case: Case, device: torch.device | str = "cpu") -> Inputs:
    """The eight operands of `case` on `device`, each a view inside guarded storage.

    Raises RuntimeError (torch's) where the memory does not suffice: see `memory_bytes`.
    """
    device = torch.device(device)
    dtype = getattr(torch, case.dtype)
    requests = _Requests.of(case, device)
    table = _Table.of(case, requests)
    layout = LAYOUTS[case.layout]
    operands = allocate_values(
        layout,
        case.total_q + case.padded_rows,
        table.num_pages,
        PAGES[case.pages].front * CKV_DIM,
        dtype,
        device,
        case.seed,
    )
    _write_queries(case, requests, operands["q_nope"], operands["q_pe"])
    _write_cache(case, requests, table, operands["ckv_cache"], operands["kpe_cache"])
    _poison(case, table, operands)
    if not layout.heads:
        operands |= {name: operands[name].expand(-1, NUM_HEADS, -1) for name in ("q_nope", "q_pe")}
    INDPTRS[case.indptr].spoil(requests.qo_indptr, requests.kv_indptr, case.seed)
    contents = dict(zip(INDICES, (requests.qo_indptr, requests.kv_indptr, table.indices), strict=True))
    lengths = {name: content.shape[0] for name, content in contents.items()}
    indices = allocate_indices(layout, lengths, INDEX_DTYPES[case.index_dtype].dtypes, device, case.seed)
    for name, content in contents.items():
        indices[name].copy_(content)
    return Inputs(**operands, **indices, sm_scale=SCALES[case.scale].value(case.seed))


def poison_anew(inputs: Inputs, case: Case) -> None:
    """Make the operands of a case those of `case`, which differs from it in `poison` alone."""
    values = {name: getattr(inputs, name) for name in (*QUERIES, *CACHES)}
    if not LAYOUTS[case.layout].heads:
        values |= {name: values[name][:, :1] for name in QUERIES}
    _poison(case, _Table.of(case, _Requests.of(case, inputs.device)), values)


def memory_bytes(case: Case, device: torch.device | str) -> int:
    """Bytes that the operands of `case` and the results of two calls with them, which a check may compare, take on
    `device`.

    Where row pointers are not valid the golden result and its bound, in float64, stand in memory whole
    (checks/windows.py), and count too. On the CPU large and sparse storage takes no more than what is touched, a page
    of 4 KiB for each row.
    """
    layout, pages = LAYOUTS[case.layout], PAGES[case.pages]
    rows, num_pages = case.total_q + case.padded_rows, pages.count(case.total_kv, case.spare_pages)
    live = 3 * case.total_kv + 1 if pages.sparse else num_pages
    touched = {"cache": live, "ckv_cache": live, "kpe_cache": live}
    total = 0
    if not INDPTRS[case.indptr].valid:
        total += rows * NUM_HEADS * CKV_DIM * 2 * 8
    operands = places(layout, rows, num_pages, pages.front * CKV_DIM, case.seed)
    results = [*result_places(layout, rows, case.seed)]
    for name, shape, place in (*operands, *results, *results):
        itemsize = 4 if name == "lse" else 2
        nbytes = itemsize * extent(shape, place.strides, place.offset, place.front)
        if torch.device(device).type == "cpu" and nbytes >= LAZY:
            nbytes = min(nbytes, touched.get(name, rows) * max(4096, itemsize * math.prod(shape[1:])))
        total += nbytes
    index_bytes = max(dtype.itemsize for dtype in INDEX_DTYPES[case.index_dtype].dtypes)
    return total + 2 * index_bytes * (case.total_kv + case.spare_indices + 2 * case.batch + 2)


@dataclass(frozen=True)
class _Requests:
    """int64 tensors: lengths [batch] and offsets [batch + 1]."""

    q_len: torch.Tensor
    kv_len: torch.Tensor
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor

    @classmethod
    def of(cls, case: Case, device: torch.device) -> "_Requests":
        runs = torch.tensor(case.lengths, dtype=torch.int64, device=device).view(-1, 3)
        q_len, kv_len = runs[:, 1:].repeat_interleave(runs[:, 0], 0, output_size=case.batch).unbind(1)
        return cls(q_len, kv_len, _offsets(q_len), _offsets(kv_len))

    def positions(self, total_kv: int) -> Positions:
        request = _owner(self.kv_len, total_kv)
        start = self.kv_indptr[request]
        position = torch.arange(total_kv, device=start.device) - start
        return Positions(request, position, self.kv_len[request], start)

    def rows(self, case: Case, request: torch.Tensor, position: torch.Tensor) -> Rows:
        dtype = getattr(torch, case.dtype)
        return Rows(case.seed, dtype, request, position, self.q_len[request], self.kv_len[request])


@dataclass(frozen=True)
class _Table:
    """indices    the content of kv_indices, int64
    owner      global positions whose keys stand in the cache, int64 [live]
    page       the page of each of them
    """

    indices: torch.Tensor
    owner: torch.Tensor
    page: torch.Tensor
    num_pages: int
    positions: Positions

    @classmethod
    def of(cls, case: Case, requests: _Requests) -> "_Table":
        kind, total, spare, seed = PAGES[case.pages], case.total_kv, case.spare_pages, case.seed
        positions = requests.positions(total)
        owner = kind.owner(positions, seed)
        page = kind.number(owner, total, spare, seed)
        num_pages = kind.count(total, spare)
        index_dtype = INDEX_DTYPES[case.index_dtype].dtypes[2]
        indices = torch.cat((page, garbage(case.spare_indices, num_pages, index_dtype, page.device)))
        if kind.broken:
            broken = (below(key(seed, "broken"), positions.counter, 4) == 0) | (page >= num_pages)
            indices[:total][broken] = kind.absent(int(broken.sum()), num_pages, index_dtype, page.device)
            owner, page = owner[~broken], page[~broken]
        if kind.shared:
            owner = owner.unique()
            page = kind.number(owner, total, spare, seed)
        return cls(indices, owner, page, num_pages, positions)


def _write_queries(case: Case, requests: _Requests, q_nope: torch.Tensor, q_pe: torch.Tensor) -> None:
    total, device = case.total_q, q_nope.device
    request = _owner(requests.q_len, total)
    position = torch.arange(total, device=device) - requests.qo_indptr[request]
    heads = q_nope.shape[1]
    for start in range(0, total, _CHUNK["queries"]):
        chunk = slice(start, min(start + _CHUNK["queries"], total))
        nope, pe = VALUES[case.values].queries(requests.rows(case, request[chunk], position[chunk]))
        q_nope[chunk] = nope[:, :heads]
        q_pe[chunk] = pe[:, :heads]


def _write_cache(case: Case, requests: _Requests, table: _Table, ckv: torch.Tensor, kpe: torch.Tensor) -> None:
    request, position = table.positions.request[table.owner], table.positions.position[table.owner]
    for start in range(0, table.owner.shape[0], _CHUNK["keys"]):
        chunk = slice(start, start + _CHUNK["keys"])
        content, rotary = VALUES[case.values].keys(requests.rows(case, request[chunk], position[chunk]))
        ckv[table.page[chunk], 0] = content
        kpe[table.page[chunk], 0] = rotary


def _poison(case: Case, table: _Table, values: Mapping[str, torch.Tensor]) -> None:
    """Write the rows that no request owns and the pages that are dead."""
    total, dead = case.total_q, _dead_pages(case, table)
    padding = torch.arange(total, total + case.padded_rows, device=dead.device)
    for name in QUERIES:
        view = values[name]
        view[total:] = POISONS[case.poison].rows(case.seed, name, padding, view.shape[2], view.dtype)[:, None]
    for name in CACHES:
        view = values[name]
        view[dead, 0] = POISONS[case.poison].rows(case.seed, name, dead, view.shape[2], view.dtype)


def _dead_pages(case: Case, table: _Table) -> torch.Tensor:
    """Pages to poison: all that are not live or, of a sparse cache, page 0 and those next to live ones."""
    if PAGES[case.pages].sparse:
        near = torch.cat((table.page - 1, table.page + 1, torch.zeros_like(table.page[:1])))
        near = near[(near >= 0) & (near < table.num_pages) & ~torch.isin(near, table.page)]
        dead: torch.Tensor = near.unique()
        return dead
    is_dead = torch.ones(table.num_pages, dtype=torch.bool, device=table.page.device)
    is_dead[table.page] = False
    return is_dead.nonzero()[:, 0]


def _owner(lengths: torch.Tensor, total: int) -> torch.Tensor:
    """The request of each row, int64 [total]."""
    return torch.arange(lengths.shape[0], device=lengths.device).repeat_interleave(lengths, output_size=total)


def _offsets(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
