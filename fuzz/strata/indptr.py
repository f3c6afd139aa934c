"""Row pointers that no caller should send; the promise `hardened` answers them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fuzz.hashing import key, mix
from fuzz.strata.pages import INT_MAX, INT_MIN
from fuzz.strata.stratum import Stratum


@dataclass(frozen=True, kw_only=True)
class Indptr(Stratum):
    """`spoil(qo_indptr, kv_indptr, seed)` changes the int64 row pointers [batch + 1] in place."""

    spoil: Callable[[torch.Tensor, torch.Tensor, int], None]
    valid: bool = False


def _entry(indptr: torch.Tensor, seed: int) -> int:
    return mix(key(seed, "indptr")) % indptr.shape[0]


def _set(which: int, value: int) -> Callable[[torch.Tensor, torch.Tensor, int], None]:
    """Write `value` to an entry of qo_indptr (0) or kv_indptr (1)."""

    def spoil(qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, seed: int) -> None:
        indptr = (qo_indptr, kv_indptr)[which]
        indptr[_entry(indptr, seed)] = value

    return spoil


def _past_the_end(qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, seed: int) -> None:
    kv_indptr[-1] += 1 + mix(key(seed, "past")) % 200


def _before_the_start(qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, seed: int) -> None:
    kv_indptr[0] -= 1 + mix(key(seed, "before")) % 2


def _rows_before(qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, seed: int) -> None:
    if mix(key(seed, "rows")) % 2:
        qo_indptr[:2] = torch.tensor((-1, 0))[: qo_indptr.shape[0]]
    else:
        qo_indptr[_entry(qo_indptr, seed)] = -1


def _more_rows(qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, seed: int) -> None:
    kind = mix(key(seed, "rows")) % 4
    if kind >= 2:
        qo_indptr[-2:] = qo_indptr[-1]
        qo_indptr[-1] += 1
    else:
        qo_indptr[-1 if kind else _entry(qo_indptr, seed)] = INT_MAX


def _swapped(qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, seed: int) -> None:
    if (batch := kv_indptr.shape[0] - 1) > 0:
        first = mix(key(seed, "swapped")) % batch
        kv_indptr[first : first + 2] = kv_indptr[first : first + 2].flip(0)


def _falling(which: int) -> Callable[[torch.Tensor, torch.Tensor, int], None]:
    def spoil(qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, seed: int) -> None:
        indptr = (qo_indptr, kv_indptr)[which]
        indptr.copy_(indptr.flip(0))

    return spoil


INDPTRS = {
    "valid": Indptr(
        doc="rising from 0 to the number of rows and of positions",
        source="definition",
        spoil=lambda qo_indptr, kv_indptr, seed: None,
        valid=True,
    ),
    "kv-past-end": Indptr(
        doc="the last request claims up to 200 keys more than kv_indices has entries",
        source="F04; vLLM #48043",
        spoil=_past_the_end,
    ),
    "kv-before-start": Indptr(
        doc="the first request claims one or two keys before kv_indices",
        source="F04, F30",
        spoil=_before_the_start,
    ),
    "kv-negative": Indptr(
        doc="an entry of kv_indptr is -1",
        source="F04, F30",
        spoil=_set(1, -1),
    ),
    "kv-min": Indptr(
        doc="an entry of kv_indptr is INT_MIN: differences pass 2^31",
        source="F04, F30",
        spoil=_set(1, INT_MIN),
    ),
    "kv-max": Indptr(
        doc="an entry of kv_indptr is INT_MAX: a loop over the claimed keys never ends",
        source="F04, F30",
        spoil=_set(1, INT_MAX),
    ),
    "kv-falling": Indptr(
        doc="kv_indptr falls: negative lengths",
        source="F09; SGLang #5678",
        spoil=_falling(1),
    ),
    "kv-swapped": Indptr(
        doc="two neighbours of kv_indptr swapped: one request has no keys, those beside it share some",
        source="F09, F11; SGLang #5678",
        spoil=_swapped,
    ),
    "qo-negative": Indptr(
        doc="the first request has a row before the first one, and no other, or an entry of qo_indptr is -1",
        source="F30; FlashInfer #2236",
        spoil=_rows_before,
    ),
    "qo-min": Indptr(
        doc="an entry of qo_indptr is INT_MIN",
        source="F30",
        spoil=_set(0, INT_MIN),
    ),
    "qo-max": Indptr(
        doc="rows past the end are claimed: the last request begins there, or an entry of qo_indptr is INT_MAX",
        source="F30; FlashInfer #2236, SGLang PR #15601",
        spoil=_more_rows,
    ),
    "qo-falling": Indptr(
        doc="qo_indptr falls: a binary search for a row's request does not end, or ends anywhere",
        source="F11, F30; SGLang #5678",
        spoil=_falling(0),
    ),
}
