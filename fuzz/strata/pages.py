"""Page tables: which page of the cache each key position names.

A table is built from the batch alone, so that the same keys stand behind every table of one kind: what a page holds is
that of the position that owns it, and identity, reversed and permuted tables differ in nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fuzz.hashing import below, hashes, key
from fuzz.strata.stratum import Stratum

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
CKV_WRAP = 1 << 22  # page * 512 elements reaches 2^31 here; page * 1024 bytes reaches 2^32


@dataclass(frozen=True)
class Positions:
    """The key positions of a batch, int64 [total_kv] each: which request, where in it, and how long that is.

    `start` is the request's first global position. `counter` names a position whatever stands before its request.
    """

    request: torch.Tensor
    position: torch.Tensor
    kv_len: torch.Tensor
    start: torch.Tensor

    @property
    def counter(self) -> torch.Tensor:
        return (self.request << 32) + self.position

    @property
    def total(self) -> int:
        return self.request.shape[0]

    def arange(self) -> torch.Tensor:
        return torch.arange(self.total, device=self.request.device)


def garbage(count: int, num_pages: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`count` ids that name no page, int64; for int64 tables also some that would if cut to 32 bits."""
    cycle = [-1, INT_MIN, num_pages, INT_MAX]
    if dtype == torch.int64:
        cycle += [(1 << 32) + 1, -(1 << 63), (1 << 63) - 1]
    return torch.tensor(cycle, device=device)[torch.arange(count, device=device) % len(cycle)]


@dataclass(frozen=True, kw_only=True)
class Pages(Stratum):
    """A kind of page table.

    owner(positions, seed)                 global position whose key stands in the page that each position names
    number(owners, total, spare, seed)     page of each owner, all different
    count(total, spare)                    num_pages
    sparse                                 few of many pages are touched: the rest of the cache stays zero
    front                                  pages of zeros before the cache, where wrapped offsets land
    broken                                 some live slots name no page: a quarter, and those past the last page
    absent(count, num_pages, dtype, device)  what those hold, int64
    shared                                 a page may be named by several positions, not only by its owner
    repeats                                among them positions of one request
    """

    owner: Callable[[Positions, int], torch.Tensor]
    number: Callable[[torch.Tensor, int, int, int], torch.Tensor]
    count: Callable[[int, int], int]
    sparse: bool = False
    front: int = 0
    broken: bool = False
    absent: Callable[[int, int, torch.dtype, torch.device], torch.Tensor] = garbage
    shared: bool = False
    repeats: bool = False


def _aliases(count: int, num_pages: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """One id for all, as a row that sees another one is lost whatever becomes of this."""
    if dtype == torch.int32:
        return torch.full((count,), INT_MIN + 1, device=device)
    return torch.full((count,), 1 + (1 << 32 if num_pages % 2 else -(1 << 63)), device=device)


def _own(positions: Positions, seed: int) -> torch.Tensor:
    return positions.arange()


def _twice(positions: Positions, seed: int) -> torch.Tensor:
    """About half as many pages as positions; the first position of each request owns its page."""
    half = (positions.kv_len + 1) // 2
    return positions.start + below(key(seed, "duplicates"), positions.counter, half).minimum(positions.position)


def _prefix_of_first(positions: Positions, seed: int) -> torch.Tensor:
    """The first half of the shorter of the request and the first request with keys is the latter's."""
    if positions.total == 0:
        return positions.arange()
    shared = positions.position < (positions.kv_len.minimum(positions.kv_len[0]) + 1) // 2
    return torch.where(shared, positions.position, positions.arange())


def _first(positions: Positions, seed: int) -> torch.Tensor:
    return torch.zeros_like(positions.request)


def _identity(owners: torch.Tensor, total: int, spare: int, seed: int) -> torch.Tensor:
    return owners + 1


def _from_zero(owners: torch.Tensor, total: int, spare: int, seed: int) -> torch.Tensor:
    return owners


def _reversed(owners: torch.Tensor, total: int, spare: int, seed: int) -> torch.Tensor:
    return total + spare - owners


def _permuted(owners: torch.Tensor, total: int, spare: int, seed: int) -> torch.Tensor:
    """A permutation of all pages but page 0, so that dead pages stand between live ones."""
    numbers = torch.arange(total + spare, device=owners.device)
    return hashes(key(seed, "pages"), numbers).argsort(stable=True)[owners] + 1


def _plain_count(total: int, spare: int) -> int:
    return 1 + total + spare


def _across(boundary: int, doc: str, source: str) -> Pages:
    """Live pages permuted around a boundary, as many below as above; zeros where wrapped offsets land."""

    def number(owners: torch.Tensor, total: int, spare: int, seed: int) -> torch.Tensor:
        return boundary - (total + spare) // 2 - 1 + _permuted(owners, total, spare, seed)

    def count(total: int, spare: int) -> int:
        return boundary + (total + spare + 1) // 2 + 1

    return Pages(doc=doc, source=source, owner=_own, number=number, count=count, sparse=True, front=CKV_WRAP)


PAGES = {
    "identity": Pages(
        doc="pages 1, 2, 3, ... in order, page 0 dead: a safe fallback to page 0 is not safe",
        source="F03; aiter PR #4245, SGLang PR #39288",
        owner=_own,
        number=_identity,
        count=_plain_count,
    ),
    "from-zero": Pages(
        doc="pages 0, 1, 2, ...: page 0 is live, for kernels that take it for none",
        source="F13",
        owner=_own,
        number=_from_zero,
        count=lambda total, spare: total + spare,
    ),
    "reversed": Pages(
        doc="descending pages: logical position used for page, for both caches or one",
        source="F13; ssd #23",
        owner=_own,
        number=_reversed,
        count=_plain_count,
    ),
    "permuted": Pages(
        doc="pages in a random order with dead ones between: results must not depend on it",
        source="F13; FlashInfer #3219, vLLM PR #7018",
        owner=_own,
        number=_permuted,
        count=_plain_count,
    ),
    "duplicates": Pages(
        doc="a request names the same page several times: each counts",
        source="F13",
        owner=_twice,
        number=_permuted,
        count=_plain_count,
        shared=True,
        repeats=True,
    ),
    "shared-prefix": Pages(
        doc="requests share the pages of the first one's beginning: prefix caching",
        source="F13; ssd #23, vLLM PR #7018",
        owner=_prefix_of_first,
        number=_permuted,
        count=_plain_count,
        shared=True,
    ),
    "hot-page": Pages(
        doc="every position names one page: output is its row, LSE its logit plus log2 of the count",
        source="F08, F13; closed form",
        owner=_first,
        number=_permuted,
        count=_plain_count,
        shared=True,
        repeats=True,
    ),
    "one-page": Pages(
        doc="every position names page 0 of a cache of one page: the least that is no empty one",
        source="F13, F30; closed form",
        owner=_first,
        number=_from_zero,
        count=lambda total, spare: 1,
        shared=True,
        repeats=True,
    ),
    "across-2^22": _across(
        1 << 22,
        "ids on both sides of 4,194,304, where page * 512 passes 2^31",
        "F01; FlashInfer #3130, vLLM PR #47671",
    ),
    "across-2^23": _across(
        1 << 23,
        "ids on both sides of 8,388,608, where page * 512 passes 2^32",
        "F01; FlashInfer #3130",
    ),
    "across-2^24": _across(
        1 << 24,
        "ids on both sides of 16,777,216, beyond which float32 and 24-bit products cannot tell neighbours apart",
        "F01",
    ),
    "huge-pool": Pages(
        doc="low ids in a pool of more than 8,388,608 pages: its size passes 2^32 elements, the ids do not",
        source="F01; aiter #2517",
        owner=_own,
        number=_permuted,
        count=lambda total, spare: (1 << 23) + 1 + total + spare,
        sparse=True,
    ),
    "just-past": Pages(
        doc="a quarter of the live slots hold num_pages, the least that is outside: comparisons that are off by one",
        source="F04, F30",
        owner=_own,
        number=_permuted,
        count=_plain_count,
        broken=True,
        absent=lambda count, num_pages, dtype, device: torch.full((count,), num_pages, device=device),
    ),
    "aliases": Pages(
        doc="a quarter of the live slots hold 2^32 + 1 or -2^63 + 1, page 1 when cut to 32 bits; in int32 -2^31 + 1",
        source="F01, F04, F30",
        owner=_own,
        number=_permuted,
        count=_plain_count,
        broken=True,
        absent=_aliases,
    ),
    "no-pages": Pages(
        doc="a cache of no pages: whatever a row names is outside it, and there is no last page to take instead",
        source="F30; Triton PR #10427",
        owner=_own,
        number=_from_zero,
        count=lambda total, spare: 0,
        broken=True,
    ),
    "garbage": Pages(
        doc="a quarter of the live slots hold -1, INT_MIN, num_pages, INT_MAX: rows that see one are NaN, no others",
        source="F04, F30; vLLM PR #56862, FlashMLA's invalid indices",
        owner=_own,
        number=_permuted,
        count=_plain_count,
        broken=True,
    ),
}
