"""What pages hold that no live slot names, and query rows that no request owns."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fuzz.hashing import bell, key
from fuzz.strata.stratum import Stratum


@dataclass(frozen=True, kw_only=True)
class Poison(Stratum):
    """`rows(seed, name, numbers, columns, dtype)` fills the dead rows [len(numbers), columns] of an operand."""

    rows: Callable[[int, str, torch.Tensor, int, torch.dtype], torch.Tensor]
    finite: bool = False


def _nan(seed: int, name: str, numbers: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((numbers.shape[0], columns), float("nan"), dtype=dtype, device=numbers.device)


def _inf(seed: int, name: str, numbers: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    rows = torch.full((numbers.shape[0], columns), float("inf"), dtype=dtype, device=numbers.device)
    rows[numbers % 2 == 1] = float("-inf")
    return rows


def _decoys(seed: int, name: str, numbers: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return bell(key(seed, f"decoy {name}"), numbers, columns, 4, dtype)


POISONS = {
    "nan": Poison(
        doc="NaN: leaks through a masked score whose value was loaded all the same, 0 * NaN",
        source="F03; FlashInfer #941, vLLM PR #47305, aiter PR #4245",
        rows=_nan,
    ),
    "inf": Poison(
        doc="+Inf in even rows, -Inf in odd ones: passes tests for NaN, and 0 * Inf is NaN too",
        source="F03; flash-attention #1745",
        rows=_inf,
    ),
    "decoys": Poison(
        doc="finite rows sixteen times as large as live ones: what is read by mistake changes the result silently",
        source="F01, F03, F13; FlashInfer #3130",
        rows=_decoys,
        finite=True,
    ),
}
