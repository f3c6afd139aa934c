"""What queries and keys hold.

Each stratum makes the rows of the query operands and of the two caches from numbered rows. A key's content depends on
the position that owns its page, so that patterns along the context (a rising maximum, a needle at the causal edge) work
behind every page table. Steering is done through a few of the 64 rotary columns, "lanes": an integer there times a
power of two in the query is exact in float32. Logits are given for the scale 1/sqrt(192).

Strata named finite keep kv_len * max|v| and every logit below 2^126, so that no float32 value of a correct kernel
overflows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from fuzz.hashing import bell, below, key
from fuzz.strata.stratum import Stratum
from kernel.contract import CKV_DIM, KPE_DIM, NUM_HEADS

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Rows:
    """Query rows or keys: int64 [n] each. `position` counts within the request; row i of a request sees the keys
    `position` <= kv_len - q_len + i."""

    seed: int
    dtype: torch.dtype
    request: torch.Tensor
    position: torch.Tensor
    q_len: torch.Tensor
    kv_len: torch.Tensor

    @property
    def counter(self) -> torch.Tensor:
        return (self.request << 32) + self.position

    @property
    def prefix(self) -> torch.Tensor:
        return self.kv_len - self.q_len

    def bell(self, name: str, columns: int, exponent: int = 0) -> torch.Tensor:
        return bell(key(self.seed, name), self.counter, columns, exponent, self.dtype)

    def zeros(self, *columns: int) -> torch.Tensor:
        return torch.zeros(self.position.shape[0], *columns, dtype=self.dtype, device=self.position.device)

    def below(self, name: str, bound: torch.Tensor | int) -> torch.Tensor:
        """A number for each row."""
        return below(key(self.seed, name), self.counter, bound)

    def table(self, name: str, columns: int, bound: int) -> torch.Tensor:
        """Numbers 0 .. bound - 1 for each row and column, int64 [n, columns]."""
        counters = (self.counter << 10)[:, None] + torch.arange(columns, device=self.counter.device)
        return below(key(self.seed, name), counters, bound)

    def of_request(self, name: str, bound: torch.Tensor | int) -> torch.Tensor:
        """A number for each row that all rows of a request share."""
        return below(key(self.seed, name), self.request, bound)


@dataclass(frozen=True, kw_only=True)
class Values(Stratum):
    """queries(rows)  (q_nope [n, 16, 512], q_pe [n, 16, 64])
    keys(rows)     (ckv [n, 512], kpe [n, 64])
    finite         no NaN or infinity in any query or key
    bell           scores and values vary like independent noise: the statistical bound is a verdict
    contained      needs `causal-contained`: some rows must not see a non-finite key or query of their own request
    """

    queries: Callable[[Rows], Pair]
    keys: Callable[[Rows], Pair]
    finite: bool = True
    bell: bool = False
    contained: bool = False


def _queries(rows: Rows, nope: int | None = 0, pe: int | None = 0, lanes: Mapping[int, float] | None = None) -> Pair:
    """Bell-shaped queries of the given exponents, None for zero, with numbers in some rotary columns of every head."""
    q_nope = rows.zeros(NUM_HEADS, CKV_DIM)
    if nope is not None:
        q_nope = rows.bell("q_nope", NUM_HEADS * CKV_DIM, nope).view(-1, NUM_HEADS, CKV_DIM)
    q_pe = rows.zeros(NUM_HEADS, KPE_DIM)
    if pe is not None:
        q_pe = rows.bell("q_pe", NUM_HEADS * KPE_DIM, pe).view(-1, NUM_HEADS, KPE_DIM)
    for lane, number in (lanes or {}).items():
        q_pe[:, :, lane] = number
    return q_nope, q_pe


def _keys(rows: Rows, ckv: int = 0, kpe: int | None = 0) -> Pair:
    return rows.bell("ckv", CKV_DIM, ckv), rows.zeros(KPE_DIM) if kpe is None else rows.bell("kpe", KPE_DIM, kpe)


def _one_hot_keys(rows: Rows) -> Pair:
    ckv, kpe = rows.zeros(CKV_DIM), rows.bell("kpe", KPE_DIM)
    ckv.scatter_(1, (rows.position % CKV_DIM)[:, None], 1.0)
    return ckv, kpe


def _constant_keys(rows: Rows) -> Pair:
    """The same ckv row for all keys of a request; scores differ through kpe."""
    ckv = bell(key(rows.seed, "ckv"), rows.request, CKV_DIM, 0, rows.dtype)
    return ckv, rows.bell("kpe", KPE_DIM)


def _edge_queries(step: int) -> Callable[[Rows], Pair]:
    """Row i points at the keys of the residue class, mod 64, of the position `step` past its causal edge."""

    def queries(rows: Rows) -> Pair:
        q_nope, q_pe = _queries(rows, nope=-3, pe=None)
        lane = (rows.prefix + rows.position + step) % KPE_DIM
        q_pe.scatter_(2, lane[:, None, None].expand(-1, NUM_HEADS, 1), 512.0)
        return q_nope, q_pe

    return queries


def _edge_keys(rows: Rows) -> Pair:
    ckv, kpe = _keys(rows, kpe=None)
    kpe.scatter_(1, (rows.position % KPE_DIM)[:, None], 1.0)
    return ckv, kpe


def _needle_queries(rows: Rows) -> Pair:
    """Even heads point at the needle, odd ones away from it."""
    q_nope, q_pe = _queries(rows, nope=-3, pe=None)
    q_pe[:, 0::2, 0] = 512.0
    q_pe[:, 1::2, 0] = -512.0
    return q_nope, q_pe


def _needle_keys(rows: Rows) -> Pair:
    """One key of each request at position 0, the last, or k * 16 + {-1, 0, 1}."""
    ckv, kpe = _keys(rows, kpe=None)
    kind = rows.of_request("needle kind", 5)
    edge = 16 * (1 + rows.of_request("needle block", rows.kv_len // 16)) + kind - 3
    where = torch.where(kind == 0, 0, torch.where(kind == 1, rows.kv_len - 1, edge.minimum(rows.kv_len - 1)))
    kpe[:, 0] = (rows.position == where).to(rows.dtype)
    return ckv, kpe


def _power_of_two_queries(rows: Rows) -> Pair:
    """Head h reads lane h."""
    q_nope, q_pe = _queries(rows, nope=None, pe=None)
    q_pe[:, :, :NUM_HEADS] = torch.eye(NUM_HEADS, dtype=rows.dtype, device=q_pe.device)
    return q_nope, q_pe


def _power_of_two_keys(rows: Rows) -> Pair:
    """Integer scores -12 .. 0; the first key has 0 for every head, so that the maximum is known from there on."""
    kpe = -rows.table("score", KPE_DIM, 13)
    kpe[rows.position == 0] = 0
    return rows.bell("ckv", CKV_DIM), kpe.to(rows.dtype)


_SLOPE_LANES = {0: 8.0, 1: 2048.0, 2: 32768.0}


def _slope_keys(sign: int) -> Callable[[Rows], Pair]:
    """Scores 8 * position * sign, from three lanes of 8 bits: 53 in base 2 for every 64 keys."""

    def keys(rows: Rows) -> Pair:
        ckv, kpe = _keys(rows, kpe=None)
        position = rows.position
        for lane, digits in enumerate((position & 255, position >> 8 & 255, (position >> 16) * 16)):
            kpe[:, lane] = (digits * sign).to(rows.dtype)
        return ckv, kpe

    return keys


# -log2(1/2 + 2^-9) in units of 2^-24, rounded down, in base 256: weights just above the middle of two bfloat16 numbers
_MIDPOINT = (254, 143, 99)


def _correlated_keys(rows: Rows) -> Pair:
    """The first key has score 0, all others log2(1/2 + 2^-9); values are positive, so that rounding errors add up."""
    ckv, kpe = _keys(rows, kpe=None)
    later = rows.position > 0
    for lane, digit in enumerate(_MIDPOINT):
        kpe[later, lane] = -digit * 2.0 ** (-8 * (lane + 1))
    return ckv.abs_(), kpe


def _huge_logit_keys(lowest: int, count: int) -> Callable[[Rows], Pair]:
    """Lane 0 holds an integer lowest .. lowest + count - 1, for queries that hold 12288 there."""

    def keys(rows: Rows) -> Pair:
        ckv, kpe = _keys(rows)
        kpe[:, 0] = (lowest + rows.below("score", count)).to(rows.dtype)
        return ckv, kpe

    return keys


def _cancelling_queries(rows: Rows) -> Pair:
    """Neighbouring columns are equal, and eight times as large as usual."""
    q_nope, q_pe = _queries(rows, nope=3)
    q_nope[:, :, 1::2] = q_nope[:, :, 0::2]
    return q_nope, q_pe


def _cancelling_keys(rows: Rows) -> Pair:
    """Neighbouring columns are opposite, but for the last pair: their products with the queries cancel exactly."""
    ckv, kpe = _keys(rows, ckv=3)
    ckv[:, 1:-1:2] = -ckv[:, 0:-2:2]
    ckv[:, -2:] *= 2.0**-6
    return ckv, kpe


def _alternating_keys(rows: Rows) -> Pair:
    """Rows change sign from key to key around a common row, so that a long sum of values nearly vanishes."""
    ckv = bell(key(rows.seed, "ckv"), torch.zeros_like(rows.request), CKV_DIM, 2, rows.dtype)
    ckv[rows.position % 2 == 1] *= -1
    return ckv, rows.bell("kpe", KPE_DIM, -4)


def _subnormal_keys(rows: Rows) -> Pair:
    """Content of the smallest exponent, from bit patterns: no arithmetic that could flush it to zero."""
    mantissa = 7 if rows.dtype == torch.bfloat16 else 10
    bits = rows.table("ckv", CKV_DIM, 2 << mantissa)
    bits = (bits & (1 << mantissa) - 1) - ((bits >> mantissa) << 15)
    return bits.to(torch.int16).view(rows.dtype), rows.bell("kpe", KPE_DIM)


def _huge(rows: Rows) -> int:
    return 100 if rows.dtype == torch.bfloat16 else 12


def _signed_zeros_keys(rows: Rows) -> Pair:
    """A quarter of the content is +0, a quarter -0."""
    ckv, kpe = _keys(rows)
    kind = rows.table("zeros", CKV_DIM, 4)
    return ckv.masked_fill_(kind == 0, 0.0).masked_fill_(kind == 1, -0.0), kpe


def _signed_zeros_queries(rows: Rows) -> Pair:
    """Every other row is zero, its sign that of the column."""
    q_nope, q_pe = _queries(rows)
    zero = rows.position % 2 == 1
    q_nope[zero] = 0.0
    q_nope[:, :, 1::2][zero] = -0.0
    q_pe[zero] = -0.0
    return q_nope, q_pe


def _positive_queries(rows: Rows) -> Pair:
    q_nope, q_pe = _queries(rows)
    return q_nope.abs_(), q_pe.abs_()


def _hidden_keys(rows: Rows) -> Pair:
    """-Inf in a column of each part of a key past an edge, or of all: against positive queries a score of -Inf."""
    ckv, kpe = _keys(rows)
    chosen = _past_an_edge(rows) | (rows.of_request("spoiled keys", 2) == 1)
    at = (chosen & _spoiled_request(rows)).nonzero()[:, 0]
    for part in (ckv, kpe):
        part[at, rows.of_request("spoiled column", part.shape[1])[at]] = float("-inf")
    return ckv, kpe


def _spoil_keys(chosen: Callable[[Rows], torch.Tensor]) -> Callable[[Rows], Pair]:
    """Bell-shaped keys; one column of the chosen ones is NaN, +Inf or -Inf."""

    def keys(rows: Rows) -> Pair:
        ckv, kpe = _keys(rows)
        at = (chosen(rows) & _spoiled_request(rows)).nonzero()[:, 0]
        content = torch.cat((ckv[at], kpe[at]), 1)
        column, number = rows.of_request("spoiled column", CKV_DIM + KPE_DIM)[at, None], _non_finite(rows)[at, None]
        # As integers: torch's scatter on a CPU changes the bits of a NaN.
        content.view(torch.int16).scatter_(1, column, number.view(torch.int16))
        ckv[at], kpe[at] = content.split((CKV_DIM, KPE_DIM), 1)
        return ckv, kpe

    return keys


def _spoiled_request(rows: Rows) -> torch.Tensor:
    """The first request and about half of the others."""
    return (rows.request == 0) | (rows.of_request("spoiled", 2) == 0)


def _non_finite(rows: Rows) -> torch.Tensor:
    kinds = torch.tensor((float("nan"), float("inf"), float("-inf")), dtype=rows.dtype, device=rows.request.device)
    return kinds[rows.of_request("spoiled by", 3)]


def _seen_by_all(rows: Rows) -> torch.Tensor:
    """A key that the request's first query sees, if it sees any."""
    return rows.position == torch.where(rows.prefix >= 0, rows.of_request("spoiled key", rows.prefix + 1), -1)


def _past_an_edge(rows: Rows) -> torch.Tensor:
    """The key just past what one of the request's queries sees; later queries see it. In a quarter of the requests that
    is the first query, in half of them the last but one, which the last key alone is past."""
    last = (rows.q_len - 2).clamp(min=0)
    kind = rows.of_request("spoiled edge", 4)
    query = torch.where(kind == 0, 0, torch.where(kind <= 2, last, rows.of_request("spoiled key", rows.q_len - 1)))
    return rows.position == (rows.prefix + 1 + query).clamp(min=0)


def _spoiled_queries(rows: Rows) -> Pair:
    """One column of one head of one row of a request is NaN, +Inf or -Inf."""
    q_nope, q_pe = _queries(rows)
    row = rows.position == rows.of_request("spoiled row", rows.q_len)
    at = (row & _spoiled_request(rows)).nonzero()[:, 0]
    head, column = rows.of_request("spoiled head", NUM_HEADS)[at], rows.of_request("spoiled column", KPE_DIM)[at]
    q_pe[at, head, column] = _non_finite(rows)[at]
    return q_nope, q_pe


VALUES = {
    "bell": Values(
        doc="bell-shaped queries and keys with full mantissas",
        source="F16, F18, F20, F22",
        queries=_queries,
        keys=_keys,
        bell=True,
    ),
    "all-equal": Values(
        doc="queries are zero: LSE is log2 of the visible count, output the mean of the visible rows",
        source="F05, F06, F08, F17; FlashInfer PR #348, #3716, sparkinfer #3",
        queries=lambda rows: _queries(rows, nope=None, pe=None),
        keys=_keys,
    ),
    "constant": Values(
        doc="all keys of a request have the same ckv row: output is that row whatever the weights, which sum to 1",
        source="F08, F12; FlashInfer #3716",
        queries=_queries,
        keys=_constant_keys,
    ),
    "one-hot": Values(
        doc="ckv rows are one-hot: the output is the weight vector, each weight is seen",
        source="F05, F20; numerics",
        queries=_queries,
        keys=_one_hot_keys,
    ),
    "nope-only": Values(
        doc="q_pe is zero and kpe large: rotary keys neither score nor mix into the output",
        source="F20; Triton #10821, vLLM PR #40705",
        queries=lambda rows: _queries(rows, pe=None),
        keys=lambda rows: _keys(rows, kpe=6),
        bell=True,
    ),
    "pe-only": Values(
        doc="q_nope is zero: scores come from the rotary part alone, a dropped or misrowed kpe shows",
        source="F20; Triton #10821",
        queries=lambda rows: _queries(rows, nope=None),
        keys=_keys,
        bell=True,
    ),
    "needle-edge": Values(
        doc="each row's dominant key is its last visible one: dropping it changes the output by O(1)",
        source="F05, F07; FlashInfer PR #348",
        queries=_edge_queries(0),
        keys=_edge_keys,
    ),
    "needle-beyond": Values(
        doc="the key just past each row's causal edge would dominate: seeing it changes the output by O(1)",
        source="F05, F07, F14; lattice #361",
        queries=_edge_queries(1),
        keys=_edge_keys,
    ),
    "needle-block": Values(
        doc="one dominant key at the first, the last or a block's edge position; odd heads avoid it",
        source="F07, F16, F23",
        queries=_needle_queries,
        keys=_needle_keys,
    ),
    "power-of-two": Values(
        doc="integer scores: with scale ln2 every weight is a power of two, which no rounding of P changes",
        source="F22; numerics",
        queries=_power_of_two_queries,
        keys=_power_of_two_keys,
    ),
    "rising": Values(
        doc="scores rise with the position, by 53 binades per 64 keys: every tile rescales everything before",
        source="F16; numerics",
        queries=lambda rows: _queries(rows, nope=-3, pe=None, lanes=_SLOPE_LANES),
        keys=_slope_keys(1),
    ),
    "falling": Values(
        doc="scores fall with the position: the maximum comes first and is never replaced",
        source="F16; numerics",
        queries=lambda rows: _queries(rows, nope=-3, pe=None, lanes=_SLOPE_LANES),
        keys=_slope_keys(-1),
    ),
    "correlated": Values(
        doc="with scale ln2 all weights but one lie at the worst bfloat16 midpoint: rounding errors of P add up",
        source="F22; numerics",
        queries=lambda rows: _queries(rows, nope=None, pe=None, lanes={0: 1.0, 1: 1.0, 2: 1.0}),
        keys=_correlated_keys,
    ),
    "logits-1e5": Values(
        doc="logits of both signs up to 1e5: exp without the maximum subtracted overflows",
        source="F15; vLLM #56578",
        queries=lambda rows: _queries(rows, lanes={0: 12288.0}),
        keys=_huge_logit_keys(-127, 255),
    ),
    "logits-below": Values(
        doc="every logit below -5e4: a finite mask value or initial maximum there wins over valid keys",
        source="F14; FlashInfer #4267, #4450, #4451",
        queries=lambda rows: _queries(rows, lanes={0: 12288.0}),
        keys=_huge_logit_keys(-127, 32),
    ),
    "cancelling-scores": Values(
        doc="score products of about 100 cancel down to O(1): accumulators below float32 lose everything",
        source="F22; PyTorch PR #188998, Triton #5895",
        queries=_cancelling_queries,
        keys=_cancelling_keys,
    ),
    "cancelling-values": Values(
        doc="values change sign from key to key at nearly equal weights: the sum nearly vanishes",
        source="F22; PyTorch PR #188998",
        queries=lambda rows: _queries(rows, nope=-8),
        keys=_alternating_keys,
    ),
    "subnormal": Values(
        doc="ckv is subnormal: flushed to zero where conversions or products flush",
        source="F22; numerics",
        queries=_queries,
        keys=_subnormal_keys,
    ),
    "huge": Values(
        doc="ckv near 2^100 (float16: 2^13), queries as small: an unnormalised sum of values must not overflow",
        source="F22; numerics",
        queries=lambda rows: _queries(rows, nope=-_huge(rows)),
        keys=lambda rows: _keys(rows, ckv=_huge(rows)),
    ),
    "signed-zeros": Values(
        doc="half of ckv and every other query row are zeros of both signs",
        source="numerics",
        queries=_signed_zeros_queries,
        keys=_signed_zeros_keys,
    ),
    "nonfinite-seen": Values(
        doc="NaN, +Inf or -Inf in a key that all rows of a request see: they are non-finite, other requests are not",
        source="F12; flash-attention #1745",
        queries=_queries,
        keys=_spoil_keys(_seen_by_all),
        finite=False,
    ),
    "nonfinite-beyond": Values(
        doc="NaN, +Inf or -Inf in the key just past a row's causal edge: rows that do not see it stay finite",
        source="F03, F05; FlashInfer #941, flash-attention #2374",
        queries=_queries,
        keys=_spoil_keys(_past_an_edge),
        finite=False,
        contained=True,
    ),
    "nonfinite-hidden": Values(
        doc="-Inf in the key past a row's edge, or in all, and so is the score: weight 0, but 0 * Inf spoils others",
        source="F03; flash-attention #1745",
        queries=_positive_queries,
        keys=_hidden_keys,
        finite=False,
        contained=True,
    ),
    "nonfinite-query": Values(
        doc="NaN, +Inf or -Inf in one head of one query row: other rows and heads of its tile stay finite",
        source="F18, F26",
        queries=_spoiled_queries,
        keys=_keys,
        finite=False,
        contained=True,
    ),
}
