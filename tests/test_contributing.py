"""The examples of CONTRIBUTING.md are what its readers have to write, and work."""

import re
from pathlib import Path

import pytest

import kernel
from fuzz.build import build
from fuzz.case import Case
from fuzz.checks import invariance, judge
from fuzz.mutants import catalogue
from fuzz.mutants.edit import apply
from fuzz.mutants.package import kernel_sources
from fuzz.strata import scales
from fuzz.strata.faults import FAULTS
from fuzz.strata.table import page
from fuzz.target import Function
from kernel import contract

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def example(name: str) -> str:
    if not PAGE.exists():
        pytest.skip("installed without CONTRIBUTING.md")
    [text] = re.findall(rf"^```python {name}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(list(filter(None, text.splitlines()))) < 10
    return text


def test_the_stratum_is_drawn_built_and_documented(monkeypatch):
    [(name, stratum)] = eval(f"{{{example('stratum')}}}", vars(scales)).items()
    monkeypatch.setitem(scales.SCALES, name, stratum)
    assert build(Case(lengths=((1, 1, 1),), scale=name)).sm_scale == 2
    assert stratum.doc in page()
    assert stratum.source[:3] in FAULTS


def test_the_check_passes_our_kernel_and_catches_one_that_goes_by_the_width_of_indices(monkeypatch):
    added: dict[str, invariance.Invariance] = {}
    exec(example("check"), vars(invariance) | {"INVARIANCES": added})
    [(name, check)] = added.items()
    monkeypatch.setitem(invariance.INVARIANCES, name, check)

    def found(run) -> set[str]:
        target, case = Function("tests:kernel", run, False), Case(lengths=((1, 1, 2),))
        verdict = judge(case, target, contract=contract.CONTRACTS["serving"], also={name})
        assert name in verdict.ran
        return {finding.check for finding in verdict.findings}

    def widened(**operands):
        output, lse = kernel.run(**operands)
        return output, lse.nextafter(lse + 1) if operands["kv_indptr"].itemsize == 8 else lse

    assert found(kernel.run) == set()
    assert found(widened) == {name}


def test_the_mutant_fits_the_kernel():
    [mutant] = eval(f"({example('mutant')})", vars(catalogue))
    assert mutant.name not in {one.name for one in catalogue.CATALOGUE}
    assert set(mutant.fault.split(", ")) <= set(FAULTS)
    [text] = apply(mutant.edits, kernel_sources()).values()
    assert mutant.edits[0].after in text


def test_the_definition_names_what_the_contract_has():
    given: dict[str, object] = {}
    exec(example("definition"), given)
    names = given.keys() - {"__builtins__"}
    assert all(type(given[name]) is type(getattr(contract, name)) for name in names)
