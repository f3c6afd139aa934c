"""The kernel for Hopper on a CPU: a fault planted in it shows, in how its warpgroups share memory or in a number."""

import importlib.util
import sys

import pytest
import torch
from triton.runtime.errors import InterpreterError

from fuzz.case import Case
from fuzz.checks import judge
from fuzz.loading import load
from fuzz.mutants import hopper
from fuzz.mutants.edit import apply
from fuzz.mutants.package import kernel_sources
from kernel import emulated
from kernel.contract import CONTRACTS
from kernel.host import INTERPRETED
from tests.reference_inputs import make_inputs

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="Triton was imported without its interpreter")

# The first bad key is one that some rows see; pages outside the cache; a tile that sees nothing, and NaN in its first
# key; chunks, and scores that turn over; several items for a program, first with a pair of blocks and one more, then
# with two pairs; an item of more keys than are left of the one before it, which meets a bad one.
CASES = (
    Case(((1, 5, 30),), values="nonfinite-beyond"),
    Case(((1, 6, 30),), pages="garbage"),
    Case(((1, 22, 18),), values="nonfinite-beyond", seed=2),
    Case(((1, 1, 300),), scale="negative"),
    Case(((1, 13, 138),)),
    Case(((1, 13, 200),)),
    Case(((1, 4, 30), (5, 2, 29)), values="nonfinite-beyond", seed=1),
    Case(((1, 7, 20), (2, 3, 6)), padded_rows=2),
)
# Those of this module alone: what finds items and rows is Triton, and `python -m fuzz mutants` shows its faults.
MUTANTS = [
    mutant
    for mutant in hopper.MUTANTS
    if not mutant.equivalent and all(edit.function.startswith("prefill_hopper.py:") for edit in mutant.edits)
]


@pytest.fixture
def planted(monkeypatch, tmp_path):
    """A function that puts a changed module in the place of the kernel's."""

    def plant(source: str) -> None:
        path = tmp_path / "prefill_hopper.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("kernel.prefill_hopper", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, spec.name, module)

    return plant


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.lengths[0]}")
def test_as_it_stands_it_passes(case):
    assert not judge(case, load("kernel.emulated:run"), contract=CONTRACTS["hardened"]).findings


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_shows(planted, mutant):
    planted(apply(mutant.edits, kernel_sources())["prefill_hopper.py"])
    target = load("kernel.emulated:run")
    assert any(judge(case, target, contract=CONTRACTS["hardened"]).findings for case in CASES)


def test_what_is_left_to_chance_is_told_by_name_and_line(planted):
    [mutant] = [one for one in MUTANTS if one.name == "Hopper: even keys given back early"]
    planted(apply(mutant.edits, kernel_sources())["prefill_hopper.py"])
    said = r"gather writes even\.left, and nothing says that a product of left is through with it: _copy:\d+ < _gather"
    with pytest.raises(InterpreterError, match=said):
        emulated.run(**make_inputs([(2, 130)]).operands())


def test_the_order_in_which_warpgroups_run_changes_no_bit(monkeypatch):
    operands = make_inputs([(9, 130), (4, 20)]).operands()
    results = []
    for programs in (1, 2, 5):
        monkeypatch.setattr("kernel.host.multiprocessors", lambda device, programs=programs: programs)
        results.append(emulated.run(**operands))
    for output, lse in results[1:]:
        assert torch.equal(output.view(torch.int16), results[0][0].view(torch.int16))
        assert torch.equal(lse, results[0][1])
