"""How far a correct kernel may be from the golden reference: a bound per row, head and column, from the inputs.

docs/error-bound.md derives it. In short, with w the softmax weights, T_j the error of weight j relative to it, and
tau = sum w T:

    output:  [ sum w T |v - output|  +  (r + g) sum w (1 + T) |v|  +  (1 + tau) D |output| ] / [(1 - tau) (1 - D)]
    lse:     - log2((1 - tau) (1 - D))  +  the roundings of the logarithm and of its sum with the maximum

r is the rounding of P to 16 bits, g that of the accumulation, D that of the denominator.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernel.contract import CKV_DIM, Inputs

from . import float64
from .blocks import Span, gaps, row_spans
from .constants import Constants, constants_for
from .envelope import Envelope, envelope_of
from .profile import DEFAULT_PROFILE, Profile
from .rounding import rounding_of
from .sums import Bound, bounds_of

# Rows rounded at a time in `interval`: 64 MiB in float64.
ROWS = 1024


@dataclass(frozen=True, slots=True)
class Expected:
    """The golden result and how far a correct kernel may be from it. All on the inputs' device; float64 unless noted.

    Where a bound is void its error is +inf and the envelope takes its place. NaN rows and NaN elements of the golden
    result carry no meaningful error.
    """

    output: Tensor  # [total_q, 16, 512]
    lse: Tensor  # [total_q, 16]
    output_error: Tensor  # [total_q, 16, 512] of the float32 result, before it is rounded to the output's dtype
    lse_error: Tensor  # [total_q, 16] of the float32 result as it is stored
    output_error_lambda: Tensor | None  # the same in the lambda form, never wider; None unless asked for
    lse_error_lambda: Tensor | None
    void: Tensor  # [total_q, 16] bool
    output_envelope: tuple[Tensor, Tensor]  # least and greatest output, [V, 512], of the V void (row, head), in order
    lse_envelope: tuple[Tensor, Tensor]  # least and greatest lse, [V]
    empty: Tensor  # [total_q, 16] bool: the row sees no key
    contaminated: Tensor  # [total_q, 16] bool: it sees a NaN or Inf among its keys, or holds one in its own query

    def in_lambda_form(self) -> "Expected":
        """The same with the lambda form's errors as the errors; ValueError where they were not asked for."""
        if self.output_error_lambda is None or self.lse_error_lambda is None:
            raise ValueError("the lambda form was not asked for: call expected(..., lam=...)")
        return replace(self, output_error=self.output_error_lambda, lse_error=self.lse_error_lambda)

    def of_rows(self, rows: Tensor) -> "Expected":
        """The same of the rows that are chosen, bool [total_q]; without the lambda form."""
        void = rows[:, None].expand_as(self.void)[self.void]
        return Expected(
            output=self.output[rows],
            lse=self.lse[rows],
            output_error=self.output_error[rows],
            lse_error=self.lse_error[rows],
            output_error_lambda=None,
            lse_error_lambda=None,
            void=self.void[rows],
            output_envelope=(self.output_envelope[0][void], self.output_envelope[1][void]),
            lse_envelope=(self.lse_envelope[0][void], self.lse_envelope[1][void]),
            empty=self.empty[rows],
            contaminated=self.contaminated[rows],
        )


def expected(
    inputs: Inputs,
    profile: Profile = DEFAULT_PROFILE,
    constants: Constants | None = None,
    *,
    lam: float | None = None,
) -> Expected:
    """Evaluate the golden reference and the bound together.

    `constants` defaults to those of the machine that computes operands on the inputs' device. `lam` asks for the
    lambda form too: it holds with probability about 1 - 2 exp(-lam^2 / 2) per element, and only for independent,
    bell-shaped values and distinct pages.
    """
    constants = constants or constants_for(inputs.device)
    live, lost = row_spans(inputs)
    result, envelopes = _without_keys(inputs, [*live, *lost], lam), []
    forms = [None] if lam is None else [None, lam]
    for operands in float64.blocks_of(inputs, live):
        block = operands.block
        golden = float64.evaluate(operands, block.of(result.output))
        of_block = (block.visible, block.shape[-1], inputs.sm_scale, inputs.q_nope.dtype, profile, constants)
        errors = [block.of(error) for error in (result.output_error, result.output_error_lambda) if error is not None]
        bounds = bounds_of(operands, golden, [rounding_of(*of_block, form) for form in forms], constants, errors)
        if bounds[0].any_void:
            envelopes.append(envelope_of(operands, golden, bounds[0]))
        _enter(result, operands, golden, bounds)
    for span in lost:
        rows = slice(span.row, span.row + span.count)
        result.output[rows] = result.lse[rows] = math.nan
        result.output_error[rows] = 0.0
        if result.output_error_lambda is not None:
            result.output_error_lambda[rows] = 0.0
        result.empty[rows] = False
    return _with_envelopes(result, envelopes) if envelopes else result


def interval(expected: Expected, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The least and the greatest output [total_q, 16, 512] of `dtype` that a correct kernel may give.

    RN(out - F) and RN(out + F), rounded to nearest by way of float32 as the kernel's own result is. Rounding is
    monotone, so no sharper test follows from F. The envelope where the bound is void, NaN where the golden result is.
    """
    low = torch.empty(expected.output.shape, dtype=dtype, device=expected.output.device)
    high = torch.empty_like(low)
    for start in range(0, len(low), ROWS):
        part = slice(start, start + ROWS)
        low[part] = (expected.output[part] - expected.output_error[part]).float()
        high[part] = (expected.output[part] + expected.output_error[part]).float()
    low[expected.void], high[expected.void] = (bound.float().to(dtype) for bound in expected.output_envelope)
    return low, high


def lse_interval(expected: Expected) -> tuple[Tensor, Tensor]:
    """The least and the greatest lse [total_q, 16], float64; -inf and -inf where the row is empty."""
    low, high = expected.lse - expected.lse_error, expected.lse + expected.lse_error
    low[expected.void], high[expected.void] = expected.lse_envelope
    return low, high


def _without_keys(inputs: Inputs, spans: list[Span], lam: float | None) -> Expected:
    """What is expected of rows that see no key; their results are exact. The outputs of rows in a span and their errors
    are not set."""
    output, lse = float64.empty_results(inputs, spans)
    flags = torch.zeros(lse.shape, dtype=torch.bool, device=inputs.device)
    errors = [torch.empty_like(output) for _ in range(1 if lam is None else 2)]
    for rows in gaps(spans, inputs.total_q):
        for error in errors:
            error[rows] = 0.0
    return Expected(
        output=output,
        lse=lse,
        output_error=errors[0],
        lse_error=torch.zeros_like(lse),
        output_error_lambda=None if lam is None else errors[1],
        lse_error_lambda=None if lam is None else torch.zeros_like(lse),
        void=flags,
        output_envelope=(output.new_empty(0, CKV_DIM),) * 2,
        lse_envelope=(lse.new_empty(0),) * 2,
        empty=~flags,
        contaminated=flags.clone(),
    )


def _enter(result: Expected, operands: float64.Operands, golden: float64.Attention, bounds: list[Bound]) -> None:
    """Enter what is expected of the rows of one block, from the rigorous bound and, after it, that in the lambda form;
    the envelope is left out."""
    block, (rigorous, *narrow) = operands.block, bounds
    block.put(result.output, golden.output)
    block.put(result.lse, golden.lse)
    block.put(result.output_error, rigorous.output_error)
    block.put(result.lse_error, rigorous.lse_error)
    for bound in narrow:  # never wider
        assert result.output_error_lambda is not None and result.lse_error_lambda is not None
        torch.minimum(rigorous.output_error, bound.output_error, out=bound.output_error)
        block.put(result.output_error_lambda, bound.output_error)
        block.put(result.lse_error_lambda, torch.minimum(rigorous.lse_error, bound.lse_error))
    block.put(result.void, rigorous.void)
    block.put(result.empty, False)
    block.put(result.contaminated, _contaminated(operands))


def _with_envelopes(result: Expected, envelopes: list[Envelope]) -> Expected:
    order = torch.cat([envelope.index for envelope in envelopes]).argsort()
    sides = zip(*(envelope.bounds for envelope in envelopes), strict=True)
    low, high, lse_low, lse_high = (torch.cat(side)[order] for side in sides)
    return replace(result, output_envelope=(low, high), lse_envelope=(lse_low, lse_high))


def _contaminated(operands: float64.Operands) -> Tensor:
    """[G, R, 16] bool: a NaN or Inf among the keys that the row sees, or in the head's own query."""
    keys = [(part.gathered.all_finite, part.finite) for part in operands.parts()]
    bad: Tensor = ~operands.query_finite.unflatten(1, operands.block.shape[1:3])
    if not all(all_finite for all_finite, _ in keys):
        bad_keys = ~torch.cat([finite for _, finite in keys], dim=1)
        bad |= (bad_keys.cumsum(1) > 0)[:, operands.block.visible - 1, None]
    return bad
