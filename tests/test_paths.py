"""Which kernel computes a row, as `kernel.run.variant` tells: the same as what is seen when the others do not run."""

from dataclasses import replace

import pytest
import torch

import kernel
from kernel import host
from kernel.plan import plan_on
from tests.reference_inputs import make_inputs

PLAN = plan_on(torch.device("cpu"), True)
# The interpreter's plan: up to 16 keys are few, chunks have 128 for each query or, beyond 1,024, 512 for each tile.
LENGTHS = [
    *((q, kv) for q in (1, 5) for kv in (0, 16, 17)),
    *((1, kv) for kv in (128, 129)),
    *((2, kv) for kv in (256, 257)),
    *((9, kv) for kv in (1025, 1537)),
    (20, 7),
    (20, 18),
]


def rows_written_by(inputs, monkeypatch, *kernels) -> set[int]:
    """The rows whose results are written by a call in which no others are launched."""
    launch = host.launch
    output = torch.full_like(inputs.q_nope, 7.0)
    lse = torch.full((inputs.total_q, 16), 7.0)
    with monkeypatch.context() as patch:
        patch.setattr(host, "launch", lambda kernel, *rest: launch(kernel, *rest) if kernel in kernels else None)
        kernel.run(**inputs.operands(), output=output, lse=lse)
    return set((lse != 7.0).any(1).nonzero()[:, 0].tolist())


@pytest.mark.skipif(torch.cuda.is_available(), reason="looks at the interpreter's plan")
def test_a_row_is_computed_by_the_kernel_that_is_told(monkeypatch):
    inputs = make_inputs(lengths=LENGTHS, padded_rows=2)
    told = [kernel.run.variant(**inputs.operands(), row=row) for row in range(inputs.total_q)]
    assert set(told) == {"short", "lone", "prefill", "split"}
    seen = {
        "short": rows_written_by(inputs, monkeypatch, host.short),
        "lone": rows_written_by(inputs, monkeypatch, host.lone),
        "prefill": rows_written_by(inputs, monkeypatch, host.prefill),
    }
    seen["split"] = rows_written_by(inputs, monkeypatch, host.lone, host.merge) - seen["lone"]
    assert {name: {row for row, path in enumerate(told) if path == name} for name in seen} == seen


def test_with_the_plan_of_hopper_other_kernels_are_told():
    def plan_for(device, listable):
        return replace(PLAN, listed=listable)

    def told(inputs, row):
        return kernel.run.variant(**inputs.operands(), row=row, plan_for=plan_for)

    inputs = make_inputs(lengths=[(1, 9), (1, 17), (2, 257), (5, 40)])
    assert [told(inputs, row) for row in (0, 1, 2, 4)] == ["short", "hopper", "hopper-split", "hopper"]
    odd = replace(inputs, q_nope=inputs.q_nope.new_empty(*inputs.q_nope.shape, 2)[..., 0])
    assert told(odd, 1) == "lone"
