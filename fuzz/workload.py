"""Operands as a workload of FlashInfer-Bench, which its own evaluator can run.

A line of its workload files is a trace (flashinfer_bench.data.trace.Trace) without solution and evaluation: name of the
definition, sizes of the variable axes, and for each operand the place of its tensor, relative to the root of a trace
set, or its value. https://github.com/flashinfer-ai/flashinfer-bench, flashinfer_bench/data/workload.py.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import torch

from kernel.contract import DEFINITION, Inputs

_INDICES = ("qo_indptr", "kv_indptr", "kv_indices")


def takes(inputs: Inputs) -> bool:
    """Whether the definition has operands of these dtypes: bfloat16 and int32."""
    return inputs.q_nope.dtype == torch.bfloat16 and all(
        getattr(inputs, name).dtype == torch.int32 for name in _INDICES
    )


def workload(inputs: Inputs, path: str, name: str) -> dict[str, Any]:
    """The workload whose tensors are in the safetensors file `path` under the names of the operands. Its UUID follows
    from `name`."""
    tensors = [operand for operand, value in inputs.operands().items() if isinstance(value, torch.Tensor)]
    return {
        "definition": DEFINITION,
        "workload": {
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{DEFINITION}/{name}")),
            "axes": {
                "total_q": inputs.total_q,
                "num_pages": inputs.num_pages,
                "len_indptr": inputs.batch + 1,
                "num_kv_indices": inputs.num_kv_indices,
            },
            "inputs": {operand: {"type": "safetensors", "path": path, "tensor_key": operand} for operand in tensors}
            | {"sm_scale": {"type": "scalar", "value": inputs.sm_scale}},
        },
        "solution": None,
        "evaluation": None,
    }


def to_line(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False) + "\n"
