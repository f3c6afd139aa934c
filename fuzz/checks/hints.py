"""What a wrong result looks like: the usual mistakes, tried one after the other on a few rows of a failing case.

A mistake is named when the golden reference, computed as if it were made, explains the result within its own error
bound. That changes no verdict; it only adds words to a finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fuzz.checks.finding import Finding
from fuzz.checks.results import Results, unwritten
from kernel.contract import Inputs
from reference import bounds, float64
from reference.bounds import interval, lse_interval
from reference.profile import Profile

# What is looked at, at most: so many rows, which see so many keys together.
ROWS = 8
KEYS = 1 << 13
# Rows on each side among which the one is looked for whose result stands in the wrong place.
NEIGHBOURS = 16
# A golden row farther away than this, relative to the result, needs no bound to be told from it.
FAR = 0.1
# Roundings that a conversion of the lse to another base adds, relative.
CONVERSION = 4 * 2.0**-24


def hinted(finding: Finding, inputs: Inputs, results: Results, profile: Profile) -> Finding:
    """The finding, with what it looks like where that is one of the usual mistakes."""
    if finding.index is None or finding.check not in ("output", "lse", "written") or not are_valid(inputs):
        return finding
    says = list(_looks(finding, inputs, results, profile))
    return replace(finding, detail=f"{finding.detail}; looks like {', or '.join(says)}") if says else finding


def _looks(finding: Finding, inputs: Inputs, results: Results, profile: Profile) -> Iterator[str]:
    assert finding.index is not None
    owner = _Owner.of(inputs, finding.index[0])
    if owner is None:
        return
    if (tail := _unwritten_tail(finding, owner, results)) is not None:
        yield tail
        return
    if finding.check == "written":
        return
    sample = _Sample.around(inputs, owner)
    if sample is None:
        return
    look = _Look(sample, finding.check, results.named()[finding.check], profile)
    if not look.is_clear:
        return
    found = [*_as_another_lse(look), *_as_another_problem(look)]
    yield from found or _as_another_row(look)


@dataclass(frozen=True, slots=True)
class _Owner:
    """The request that owns a row: where its rows and key positions lie."""

    row: int
    start: int
    q_len: int
    keys: int
    kv_len: int

    @classmethod
    def of(cls, inputs: Inputs, row: int) -> _Owner | None:
        starts = inputs.qo_indptr.long()
        request = int((starts <= row).sum()) - 1
        if not 0 <= request < inputs.batch or row >= starts[-1]:
            return None
        start, end = inputs.qo_indptr[request : request + 2].tolist()
        first, last = inputs.kv_indptr[request : request + 2].tolist()
        return cls(row, start, end - start, first, last - first)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Some rows of one request; each can be shown any number of the request's keys."""

    inputs: Inputs
    owner: _Owner
    rows: Tensor  # int64 [S], the one that is wrong first

    @classmethod
    def around(cls, inputs: Inputs, owner: _Owner) -> _Sample | None:
        """The row with a few others, none where it sees too much to be looked at."""
        last = owner.start + owner.q_len - 1
        spread = torch.linspace(owner.start, last, min(ROWS, owner.q_len)).long().tolist()
        near = [row for row in (owner.row - 1, owner.row + 1) if owner.start <= row <= last]
        rows = list(dict.fromkeys([owner.row, *near, *spread]))[: max(1, KEYS // max(1, owner.kv_len))]
        if owner.kv_len > KEYS:
            return None
        return cls(inputs, owner, torch.tensor(rows, device=inputs.device))

    @property
    def queries(self) -> Tensor:
        """The position of each row in its request."""
        return self.rows - self.owner.start

    def problem(self, visible: Tensor | None = None, scale: float | None = None) -> Inputs:
        """The rows as requests of one query each, which see so many of the first keys; both default to the truth."""
        owner = self.owner
        seen = self.queries + 1 + owner.kv_len - owner.q_len if visible is None else visible
        seen = seen.clamp(0, owner.kv_len)
        ends = torch.nn.functional.pad(seen.cumsum(0), (1, 0))
        position = torch.arange(int(ends[-1]), device=seen.device) - ends[:-1].repeat_interleave(seen)
        return Inputs(
            self.inputs.q_nope[self.rows],
            self.inputs.q_pe[self.rows],
            self.inputs.ckv_cache,
            self.inputs.kpe_cache,
            torch.arange(len(self.rows) + 1, device=seen.device),
            ends,
            self.inputs.kv_indices[owner.keys + position],
            self.inputs.sm_scale if scale is None else scale,
        )


class _Look:
    """The sampled rows of a result, and which of them are wrong."""

    def __init__(self, sample: _Sample, check: str, result: Tensor, profile: Profile) -> None:
        self.sample, self.check, self.result = sample, check, result
        self.given = result[sample.rows]
        self.profile = profile
        truth = bounds.expected(sample.problem(), profile)
        clean = ~(truth.contaminated | truth.lse.isnan()).any(-1)
        self.truth = truth
        self.wrong = clean & ~self._inside(truth)
        self._all = clean

    @property
    def is_clear(self) -> bool:
        """Whether the row that the finding is about is among the wrong ones."""
        return bool(self.wrong[0])

    def explains(self, problem: Inputs) -> bool:
        """Whether the wrong rows are right for another problem."""
        if not problem.kv_indptr.diff()[self.wrong].any():
            return False  # rows without keys: zeros and -inf have many causes
        golden = float64.attention(problem)[0 if self.check == "output" else 1]
        if (_distance(self.given, golden) > FAR)[self.wrong].any():
            return False
        return self.fits(self._inside(bounds.expected(problem, self.profile)))

    def fits(self, right: Tensor) -> bool:
        """Whether rows that are `right` under some assumption, bool [S], have all the wrong ones among them."""
        return bool(right[self.wrong].all())

    def everywhere(self, problem: Inputs) -> bool:
        """Whether all rows are right for another problem, not only the wrong ones."""
        return bool(self._inside(bounds.expected(problem, self.profile))[self._all].all())

    def _inside(self, expected: bounds.Expected) -> Tensor:
        if self.check == "output":
            low, high = interval(expected, self.given.dtype)
        else:
            low, high = lse_interval(expected)
        return ((self.given >= low) & (self.given <= high)).flatten(1).all(-1)


def _as_another_problem(look: _Look) -> list[str]:
    """Mistakes in the scale and in the causal edge."""
    sample = look.sample
    truth = sample.problem()
    problems = {what: sample.problem(scale=scale) for what, scale in _scales(sample.inputs.sm_scale)}
    visible = truth.kv_indptr.diff()
    for what, seen in _edges(sample):
        if not torch.equal(seen.clamp(0, sample.owner.kv_len), visible):
            problems[what] = sample.problem(visible=seen)
    found = [what for what, problem in problems.items() if look.explains(problem)]
    whole = [what for what in found if look.everywhere(problems[what])]
    return whole or [f"{what}, in some rows" for what in found]


def _scales(scale: float) -> Iterator[tuple[str, float]]:
    """Other scales that a kernel may have used, with what that means."""
    candidates = {
        "sm_scale left out": 1.0,
        "sm_scale applied twice": scale * scale,
        "exp2 of logits that were not multiplied by log2(e)": scale * math.log(2),
        "logits multiplied by log2(e) twice": scale / math.log(2),
    } | {f"the scale 1/sqrt({dim}) instead of sm_scale": dim**-0.5 for dim in (64, 128, 192, 256, 512, 576)}
    for what, other in candidates.items():
        if not math.isclose(other, scale, rel_tol=1e-5):
            yield what, other


def _edges(sample: _Sample) -> Iterator[tuple[str, Tensor]]:
    """Other numbers of visible keys for each row, with what that means."""
    owner, queries = sample.owner, sample.queries
    visible = queries + 1 + owner.kv_len - owner.q_len
    yield "a causal edge one key too early", visible - 1
    yield "a causal edge one key too late", visible + 1
    yield "a causal mask aligned to the top left instead of the bottom right", queries + 1
    yield "no causal mask", torch.full_like(visible, owner.kv_len)


def _as_another_lse(look: _Look) -> Iterator[str]:
    """An lse that is right but for its form."""
    if look.check != "lse":
        return
    low, high = lse_interval(look.truth)
    natural = look.given.double() / math.log(2)
    spare = CONVERSION * natural.abs().nan_to_num(0.0, posinf=0.0)
    if look.fits(((natural >= low - spare) & (natural <= high + spare)).all(-1)):
        yield "the natural logarithm (ln instead of log2)"
    rows, heads = look.result.shape
    place = torch.arange(heads, device=low.device) * rows + look.sample.rows[:, None]
    moved = look.result.flatten()[place].double()
    if rows > 1 and look.fits(((moved >= low) & (moved <= high)).all(-1)):
        yield f"an lse transposed, stored as [{heads}, {rows}]"


def _as_another_row(look: _Look) -> Iterator[str]:
    """A result that belongs to another row or another head."""
    sample, owner = look.sample, look.sample.owner
    first, last = max(owner.start, owner.row - NEIGHBOURS), min(owner.start + owner.q_len, owner.row + NEIGHBOURS + 1)
    count = min(last - first, max(1, KEYS // max(1, owner.kv_len)))
    rows = torch.arange(first, last, device=sample.rows.device)
    rows = rows[(rows - owner.row).abs().argsort()][:count].sort().values
    others = _Sample(sample.inputs, owner, rows)
    expected = bounds.expected(others.problem(), look.profile)
    low, high = interval(expected, look.given.dtype) if look.check == "output" else lse_interval(expected)
    given = look.given[0]
    same = ((given >= low) & (given <= high)).flatten(1).all(-1) & (rows != owner.row)
    if same.any():
        yield f"the result of row {int(rows[same][0])} in its place (rows swapped)"
        return
    here = int((rows == owner.row).nonzero()[0])
    for head in range(1, given.shape[0]):
        shifted = given.roll(-head, 0)
        if ((shifted >= low[here]) & (shifted <= high[here])).all():
            yield f"heads in the wrong places (head {head} holds the result of head 0)"
            return


def _unwritten_tail(finding: Finding, owner: _Owner, results: Results) -> str | None:
    """The end of a request's rows, of the heads or of the columns, where nothing was written."""
    kinds: list[tuple[str, Callable[[Tensor], Tensor]]] = [("was never written", unwritten)]
    if finding.check != "written":
        kinds = [("holds zeros, as if never written", lambda tensor: tensor == 0)]
    masked = max(0, owner.q_len - owner.kv_len)
    rows = slice(owner.start + masked, owner.start + owner.q_len)
    for words, is_blank in kinds:
        for name, result in results.named().items():
            if finding.check in ("written", name) and (tail := _tail(is_blank(result[rows]), rows.start)):
                return f"an unwritten tail: {tail} of {name} {words}"
    return None


def _tail(blank: Tensor, first_row: int) -> str | None:
    """'all from row 60 on' where just the last rows are blank, or the last heads or columns of all rows."""
    for axis, name in enumerate(("row", "head", "column")[: blank.ndim]):
        along = blank.movedim(axis, 0).flatten(1)
        whole = along.all(-1)
        count = int(whole.sum())
        if 0 < count < len(whole) and whole[-count:].all() and not along[:-count].any():
            return f"all from {name} {len(whole) - count + (first_row if axis == 0 else 0)} on"
    return None


def _distance(given: Tensor, golden: Tensor) -> Tensor:
    """How far rows are from golden ones, relative to their own size; 0 where both are the same, or not finite."""
    off: Tensor = (given.double() - golden).flatten(1).norm(dim=-1)
    size: Tensor = golden.flatten(1).norm(dim=-1)
    return (off / size.clamp(min=1e-30)).nan_to_num(0.0, 0.0, 0.0)


def are_valid(inputs: Inputs) -> bool:
    """Whether all index tensors are valid, so that each row has the keys that it seems to have."""
    for indptr, most in ((inputs.qo_indptr.long(), inputs.total_q), (inputs.kv_indptr.long(), inputs.num_kv_indices)):
        if not (indptr[0] == 0 and (indptr.diff() >= 0).all() and indptr[-1] <= most):
            return False
    pages = inputs.kv_indices[: int(inputs.kv_indptr[-1])]
    return bool(((pages >= 0) & (pages < inputs.num_pages)).all())
