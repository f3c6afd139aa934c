"""Paged causal prefill attention of DeepSeek MLA, in Triton."""

from . import interpreter

# Triton reads TRITON_INTERPRET while it is imported, so this comes before the kernel.
interpreter.switch_on_without_gpu()

from .contract import CONTRACTS, DEFINITION, PROMISES, Inputs, check_inputs  # noqa: E402
from .host import run  # noqa: E402
from .paths import path_of  # noqa: E402

run.variant = path_of  # type: ignore[attr-defined]  # functions have attributes

__all__ = ["CONTRACTS", "DEFINITION", "PROMISES", "Inputs", "check_inputs", "run"]
