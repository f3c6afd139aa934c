"""Float32 products without TF32, whatever the kernel under test or the user has switched on."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Matrix products of float32 tensors keep all 24 bits inside."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
