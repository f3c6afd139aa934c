"""What an acceptance rule gets to see: one kernel's results, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.checks.results import Results
from reference.bounds import Expected


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of one call and the golden ones.

    output         [rows, 16, 512] bfloat16 or float16, zero where the kernel wrote nothing; lse [rows, 16] float32
    golden_output  the same shape, float64; golden_lse too
    low_precision  FlashAttention's yardstick: the formula in the 16-bit dtype, see `baselines`
    eager          flex_attention's yardstick
    raw            the results on poisoned memory, as our checks get them
    expected       the golden results with the bound that is a verdict for these inputs
    rigorous       the golden results with the rigorous bound
    """

    output: Tensor
    lse: Tensor
    golden_output: Tensor
    golden_lse: Tensor
    low_precision: Tensor
    eager: Tensor
    raw: Results
    expected: Expected
    rigorous: Expected

    @property
    def reference_output(self) -> Tensor:
        """The golden output in the dtype of the output, as references hand it over."""
        return self.golden_output.to(self.output.dtype)

    @property
    def reference_lse(self) -> Tensor:
        return self.golden_lse.to(torch.float32)


@dataclass(frozen=True, slots=True)
class Rule:
    """A suite's rule: whether it accepts the results.

    inputs   the input sets (`fuzz.rules.inputs`) drawn as that suite draws its own
    source   file and line, or issue
    """

    name: str
    accepts: Callable[[Comparison], bool]
    inputs: tuple[str, ...]
    source: str
