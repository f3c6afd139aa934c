"""The measuring program, as far as it runs without a GPU: on a few numbers, in Triton's interpreter."""

import json
import math

import pytest
import torch

import kernel  # noqa: F401  (where there is no GPU it switches Triton's interpreter on, and repairs it)
from reference import measure
from reference.constants import TABLE, of_gpu
from reference.measure import Figures

CPU = torch.device("cpu")
# The interpreter computes on the CPU; with a GPU, the kernels are compiled and want its memory.
DEVICE = torch.device("cuda") if torch.cuda.is_available() else CPU
FIGURES = Figures(2.45, 0.92, 1.06, 1.9, 0.4, 0.3)


def test_floats_are_all_bit_patterns_in_order():
    x = measure.floats(0x3F800000, 0x3F800003, CPU)
    assert x.tolist() == [1.0, 1 + 2.0**-23, 1 + 2.0**-22]
    assert measure.floats(2**32 - 1, 2**32, CPU).isnan().all()
    assert math.copysign(1, measure.floats(2**31, 2**31 + 1, CPU)[0]) == -1


@pytest.mark.parametrize("start", [0, 0x3F800000, 0x42FE0000, 0x7F800000, 2**31, 0xC2FC0000, 0xFF800000])
def test_exp2_and_log2_are_measured(start):
    x = measure.floats(start, start + 3000, DEVICE)
    assert measure.exp2_error(x) <= of_gpu("", (9, 0)).exp2
    assert max(measure.log2_errors(x)) <= of_gpu("", (9, 0)).log2


@pytest.mark.parametrize("wrong", ["relative", "integer", "nan", "not flushed"])
def test_a_wrong_exp2_is_noticed(monkeypatch, wrong):
    x = torch.tensor([0.3, 1.0, 5.7, -130.0])

    def faulty(operation, x):
        y = torch.exp2(x.double())
        if wrong == "relative":
            y[0] *= 1 + 20 * 2.0**-24
        if wrong == "integer":
            y[1] *= 1 + 2.0**-23
        if wrong == "nan":
            y[2] = math.nan
        if wrong == "not flushed":
            y[3] = 2.0**-120
        return y.float()

    monkeypatch.setattr(measure, "apply", faulty)
    assert measure.exp2_error(x) > 8


def test_division_is_measured():
    a, b = torch.randn(2000, device=DEVICE), torch.rand(2000, device=DEVICE) * 100 + 1
    assert 0 < measure.division_error(a, b) <= 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_are_measured_and_the_third_kind_is_cut_off(dtype, monkeypatch):
    operands = list(measure.dot_operands(dtype, 576, 1, DEVICE))
    assert len(operands) == 3
    for a, b in operands:
        assert 0 <= measure.dot_error(a, b) <= 1
    a, b = operands[-1]
    monkeypatch.setattr(measure, "product", lambda a, b: (a.double()[:, :1] @ b.double()[:1]).float())
    assert measure.dot_error(a, b) > 0.5  # as if all of the small products were lost


def test_an_entry_of_the_table(tmp_path):
    new = measure.entry(FIGURES, "NVIDIA H200", (9, 0))
    assert new["exp2"] == 2.7 and new["log2"] == 1.2 and new["kappa"] == of_gpu("", (9, 0)).kappa
    assert new["measured"]["kappa_float16"] == 0.3 and new["measured"]["date"] and new["measured"]["triton"]
    table = tmp_path / "constants.json"
    table.write_text(TABLE.read_text())
    measure.store(new, table)
    measure.store(new, table)
    entries = json.loads(table.read_text())
    assert entries[-1] == new and len(entries) == len(json.loads(TABLE.read_text()))
    assert all(entry.keys() == entries[0].keys() for entry in entries)


def test_limits_that_do_not_hold_are_named():
    base = of_gpu("", (9, 0))
    assert measure.exceeded(FIGURES, base) == []
    (message,) = measure.exceeded(Figures(6.0, 0.9, 1.0, 1.0, 0.5, 0.5), base)
    assert message.startswith("exp2: measured 6.000")
    assert len(measure.exceeded(Figures(math.nan, 9.0, 1.0, 9.0, 2.0, 2.0), base)) == 5


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["measure"])
    assert measure.main() == 2
    assert "GPU" in capsys.readouterr().err


def test_a_quotient_of_zero_is_exact():
    numerator, denominator = torch.tensor([[0.0, 1.0], [1.5, 1.0]], device=DEVICE)
    assert measure.division_error(numerator, denominator) == 0
