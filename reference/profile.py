"""What a kernel may do and still count as correct: the numerics that the error bound assumes, by name.

Every profile assumes float32 accumulators, logits from 16-bit keys and unscaled 16-bit queries, and a running maximum
of the logits themselves. The rest is a field. A kernel that documents
other numerics is judged with a wider profile, in the open.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Profile:
    """Numerics of a family of kernels."""

    name: str
    p_dtype: torch.dtype | None = None  # what P is rounded to, once, before P V; None: the dtype of the values
    denominator_from_rounded_p: bool = False
    raw_maximum: bool = False  # keeps the maximum of q . k and scales it anew in every shift (FlashAttention in CUDA)
    flushes_subnormals: bool = False  # all float32 arithmetic, as under -use_fast_math; exp2 may always flush
    rounded_partials: bool = False  # each split of a long context leaves its output in the dtype of the result
    smallest_tile: int = 16  # keys per step of the online softmax, at least


DEFAULT_PROFILE = Profile("default")

PROFILES = {
    profile.name: profile
    for profile in (
        DEFAULT_PROFILE,
        Profile("fast-math", raw_maximum=True, flushes_subnormals=True),
        Profile("rounded-denominator", denominator_from_rounded_p=True),
        Profile(
            "flashinfer",
            denominator_from_rounded_p=True,
            raw_maximum=True,
            flushes_subnormals=True,
            rounded_partials=True,
        ),
    )
}
