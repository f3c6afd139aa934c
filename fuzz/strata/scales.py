"""Softmax scales."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from fuzz.hashing import key, mix
from fuzz.strata.stratum import Stratum


@dataclass(frozen=True, kw_only=True)
class Scale(Stratum):
    """`value(seed)` is sm_scale, a float that need not be a float32."""

    value: Callable[[int], float]


def _arbitrary(seed: int) -> float:
    """A full 53-bit mantissa between 2^-8 and 2^3, so that float32 has to round it."""
    bits = mix(key(seed, "sm_scale"))
    return math.ldexp((1 << 52) + (bits >> 12), -60 + bits % 11)


SCALES = {
    "trained": Scale(
        doc="1/sqrt(192), what DeepSeek models use",
        source="definition",
        value=lambda seed: 1 / math.sqrt(192),
    ),
    "one": Scale(
        doc="1: a scale hard-coded anywhere shows in output and LSE together",
        source="F17, F19; TensorRT-LLM #19112",
        value=lambda seed: 1.0,
    ),
    "ln2": Scale(
        doc="float32(ln 2): scale times log2(e) rounds to exactly 1, integer logits give powers of two",
        source="F17, F22; numerics",
        value=lambda seed: 0.693147182464599609375,
    ),
    "zero": Scale(
        doc="0: -inf times 0 is NaN where the mask is applied before the scale; LSE is log2 of the count",
        source="F19; aotriton #47, flash-attention #1461",
        value=lambda seed: 0.0,
    ),
    "negative": Scale(
        doc="-1/sqrt(192): -inf turns into +inf where the mask is applied before the scale",
        source="F19; aotriton #47",
        value=lambda seed: -1 / math.sqrt(192),
    ),
    "small": Scale(
        doc="1e-20: all weights equal although all scores differ",
        source="F19, F22",
        value=lambda seed: 1e-20,
    ),
    "large": Scale(
        doc="8: bell-shaped scores become logits of several hundred, beyond exp without the maximum subtracted",
        source="F15; vLLM #56578, aotriton PR #43",
        value=lambda seed: 8.0,
    ),
    "arbitrary": Scale(
        doc="a number of the seed between 2^-8 and 2^3 that float32 has to round",
        source="F17, F19",
        value=_arbitrary,
    ),
}
