"""Our rule: what `fuzz.checks` says of one call, but against a bound that is evaluated once for many kernels.

tests/test_rules.py holds it against the checks themselves.
"""

import torch

from fuzz.checks.memory import check_written
from fuzz.checks.results import Results, bits
from fuzz.rules.comparison import Rule
from reference.bounds import Expected, interval, lse_interval


def accepts(results: Results, expected: Expected) -> bool:
    """Every element written, inside its interval, and a row without keys exactly +0 and -inf; no NaN or Inf is seen."""
    if results.lse is None or check_written(results) is not None:
        return False
    low, high = interval(expected, results.output.dtype)
    lse_low, lse_high = lse_interval(expected)
    inside = torch.where(
        expected.empty[..., None], bits(results.output) == 0, (low <= results.output) & (results.output <= high)
    )
    lse = results.lse.double()
    return bool(inside.all() and ((lse_low <= lse) & (lse <= lse_high)).all())


OURS = (
    Rule("ours, rigorous bound", lambda c: accepts(c.raw, c.rigorous), (), "reference/bounds.py"),
    Rule("ours", lambda c: accepts(c.raw, c.expected), (), "reference/bounds.py"),
)
