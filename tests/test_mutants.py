"""Planting faults: edits fit or fail loudly, and a mutant is killed, survives, hangs or dies as it should be said."""

import ast
import json
import math
import time
from unittest.mock import Mock

import pytest
import torch

from fuzz.case import Case
from fuzz.journal import Journal, read
from fuzz.mutants import collect as collecting
from fuzz.mutants import hopper, rivals, selftest, session
from fuzz.mutants.catalogue import CATALOGUE
from fuzz.mutants.collect import collect
from fuzz.mutants.edit import Edit, StaleEdit, apply
from fuzz.mutants.equivalent import EQUIVALENT
from fuzz.mutants.generated import HOPPER_MODULES, generate
from fuzz.mutants.judges import JUDGES
from fuzz.mutants.known import Known
from fuzz.mutants.mutant import (
    ANYWHERE,
    BROKEN,
    CONTROL,
    GENERATED,
    GPU,
    GROUPS,
    HOPPER,
    KILLED,
    NAMED,
    SURVIVED,
    Mutant,
    Planted,
)
from fuzz.mutants.package import kernel_sources
from fuzz.mutants.reach import marked, places, watched
from fuzz.mutants.report import Report, RulesReport
from fuzz.mutants.rivals import ALL, draw_trials, judge_by_rules
from fuzz.mutants.runner import ALONE, ELSEWHERE, LEFT, Outcome, Passed, Work, draw_cases, run_all
from fuzz.mutants.runner import EQUIVALENT as STATED_EQUIVALENT
from fuzz.mutants.selftest import ROOT
from fuzz.mutants.trial import Budget, attack
from fuzz.options import UsageError
from fuzz.strata.faults import FAULTS

SOURCES = {
    "one.py": "def f(a, b):\n    x = a + b  # sum\n    if x > 0:\n        return x\n    return -x\n",
    "two.py": "class C:\n    def g(self):\n        return 1 + 2\n\ndef h():\n    return (1 +\n    2) * (1 + 2)\n",
}


def edited(*edits: Edit) -> dict[str, str]:
    return apply(edits, SOURCES)


def test_an_edit_finds_its_place_by_meaning():
    assert "return x >= 0" not in SOURCES["one.py"]
    assert "if x >= 0:" in edited(Edit("f", "x>0", "x >= 0"))["one.py"]
    assert edited(Edit("C.g", "1 + 2", "3"))["two.py"].count("1 + 2") == 2
    assert "return 3 * 3" in edited(Edit("h", "1+2", "3", count=2))["two.py"]


def test_an_edit_replaces_statements_in_any_block():
    changed = edited(Edit("f", "return x", "x = 2 * x\nreturn x"), Edit("f", "x = a + b", "x = a"))
    namespace: dict = {}
    exec(changed["one.py"], namespace)
    assert namespace["f"](2, 5) == 4 and namespace["f"](-2, 5) == 2
    assert "if x > 0:\n        pass" in edited(Edit("f", "return x", ""))["one.py"]


def test_an_edit_may_put_in_what_it_replaces():
    assert "return -(-x)" in edited(Edit("f", "return -x", "return --x"))["one.py"].replace("--x", "-(-x)")
    assert "x = a + b\n    x = a + b" in edited(Edit("f", "x = a + b", "x = a + b\nx = a + b"))["one.py"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit("f", "x < 0", "x <= 0"), "stands there 0 times, not 1"),
        (Edit("h", "1 + 2", "3"), "stands there 2 times, not 1"),
        (Edit("g", "1 + 2", "3"), "g is defined in 0 modules, not one"),
        (Edit("one.py:h", "1 + 2", "3"), "defined in 0 modules"),
    ],
)
def test_an_edit_that_does_not_fit_fails_loudly(edit, message):
    with pytest.raises(StaleEdit, match=message):
        edited(edit)


def test_every_named_mutant_fits_its_source_and_every_equivalent_one_exists():
    """Fails when the kernel, the reference or the judge has changed: see to the mutant that the message names."""
    planted = [one for one in collect(GROUPS) if one.group != CONTROL]
    assert len({one.name for one in planted}) == len(planted)
    assert all(one.changed for one in planted)


def test_the_catalogue_is_large_and_says_where_its_faults_come_from():
    assert len([mutant for mutant in CATALOGUE if not mutant.equivalent]) >= 60
    assert len(JUDGES) >= 30
    for mutant in (*CATALOGUE, *hopper.MUTANTS):
        assert mutant.bug
        assert set(mutant.fault.split(", ")) <= set(FAULTS), mutant.name
        assert (mutant.where == ANYWHERE) == (not mutant.shown_by), mutant.name
    assert all(mutant.tests and all((ROOT / test).is_file() for test in mutant.tests) for mutant in JUDGES)


def test_every_fault_class_that_this_kernel_can_have_has_a_mutant():
    planted = {fault for mutant in (*CATALOGUE, *hopper.MUTANTS) for fault in mutant.fault.split(", ")}
    assert set(FAULTS) <= planted


@pytest.mark.parametrize("for_hopper", [False, True])
def test_generated_mutants_change_one_place_each_and_have_names_that_last(for_hopper):
    sources = kernel_sources()
    mutants = list(generate(sources, for_hopper))
    assert len(mutants) > 200
    assert {mutant.kind for mutant in mutants} == {"comparison", "constant", "mask", "cast", "index"}
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    for mutant in mutants[::40]:
        ((path, text),) = mutant.apply(sources).items()
        original = ast.unparse(ast.parse(sources[path]))
        assert (
            len([1 for one, other in zip(text.splitlines(), original.splitlines(), strict=True) if one != other]) == 1
        )
    assert [mutant.name for mutant in mutants] == [mutant.name for mutant in generate(sources, for_hopper)]


def test_a_sample_is_always_the_same_and_names_are_checked():
    assert [one.name for one in collect((NAMED,), sample=5)] == [one.name for one in collect((NAMED,), sample=5)]
    name = CATALOGUE[0].name
    assert [one.name for one in collect((NAMED,), (name,))] == ["the unchanged kernel", name]
    with pytest.raises(UsageError, match=f"did you mean '{name}'"):
        collect((NAMED,), (name + "s",))


def test_a_stale_equivalent_is_reported(monkeypatch):
    monkeypatch.setitem(EQUIVALENT, "attend: gone -> away", "no reason")
    with pytest.raises(StaleEdit, match="no mutant 'attend: gone -> away' any more"):
        collect((GENERATED,))


def test_a_stale_mutant_is_named(monkeypatch):
    monkeypatch.setattr(collecting, "CATALOGUE", (Mutant("the name", (Edit("attend", "gone()", "away()"),)),))
    with pytest.raises(StaleEdit, match=r"mutant 'the name': attend\.py, attend"):
        collect((NAMED,))


CASES = [Case(((1, 1, 1),)), Case(((1, 1, 2), (1, 1, 3)))]
# Kernels in place of ours: no Triton, so that a whole run takes a second.
KERNEL = """
import math, os, time, torch
def run(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale, *, output, lse):
    {body}
"""
BODIES = {
    "right": "from reference.float64 import attention; from kernel import Inputs\n"
    "    o, l = attention(Inputs(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale))\n"
    "    output.copy_(o); lse.copy_(l)",
    "raises": "raise RuntimeError('no')",
    "dies": "os.kill(os.getpid(), 9)",
    "hangs": "while True: pass",
    "waits": "time.sleep(1000)",
}


def outcomes(planted: list[Planted], deadline: float = math.inf) -> dict[str, Outcome]:
    if torch.cuda.is_initialized():
        pytest.skip("other tests have used CUDA in this process, which then cannot be forked")

    def work(one: Planted) -> Work:
        return Work(attack, (one.changed, CASES, [2, 1], "cpu", 1, Budget(20, 3, 2)), 5)

    return {outcome.planted.name: outcome for outcome in run_all(planted, work, "cpu", 2, deadline)}


def pretended(name: str) -> Planted:
    return Planted(name, NAMED, {"__init__.py": KERNEL.format(body=BODIES[name])})


def test_a_mutant_is_killed_survives_hangs_or_dies():
    found = outcomes([pretended(name) for name in BODIES])
    assert found["right"].state == SURVIVED and found["right"].message == "2 of 2 cases tried"
    assert found["right"].passed.keys() == {1, 2}
    assert (found["raises"].state, found["raises"].checks) == (KILLED, ("alive",))
    assert "RuntimeError: no" in found["raises"].message and found["raises"].shrunk == CASES[0].to_json()
    assert found["raises"].number == 2
    assert (found["dies"].state, found["dies"].message) == (KILLED, "alive: its process died of SIGKILL")
    assert found["dies"].case == CASES[1].to_json()
    for name in ("hangs", "waits"):
        assert (found[name].state, found[name].message) == (KILLED, "alive: it hung")


def test_a_module_that_cannot_be_imported_is_killed_and_a_failing_judge_is_not_a_kill(monkeypatch):
    assert outcomes([Planted("x", NAMED, {"__init__.py": "import nothing_of_that_name"})])["x"].checks == ("alive",)

    def broken(*arguments, **options):
        raise RuntimeError("the judge is broken")

    monkeypatch.setattr("fuzz.mutants.trial.judge", broken)
    found = outcomes([pretended("right")])["right"]
    assert found.state == BROKEN and "the judge is broken" in found.message


def test_mutants_that_are_not_run_say_why():
    changed = {"__init__.py": ""}
    found = outcomes(
        [
            Planted("gpu", NAMED, changed, where=GPU, shown_by="a stratum"),
            Planted("same", NAMED, changed, equivalent="the reason"),
            Planted("late", NAMED, changed),
        ],
        deadline=time.monotonic() - 1,
    )
    assert {name: outcome.state for name, outcome in found.items()} == {
        "gpu": ELSEWHERE,
        "same": STATED_EQUIVALENT,
        "late": LEFT,
    }
    assert found["same"].message == "the reason" and found["gpu"].message == "a stratum"


@pytest.mark.parametrize(("gpus", "state"), [(1, ALONE), (2, LEFT)])
def test_a_mutant_of_two_gpus_is_not_run_on_one(monkeypatch, gpus, state):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    [planted] = collect([NAMED], ["no device guard"])[1:]
    [outcome] = run_all([planted], Mock(), "cuda", 1, deadline=time.monotonic() - 1)
    assert outcome.state == state


def test_cases_are_those_of_the_seed():
    assert draw_cases(3, 40, "cpu") == draw_cases(3, 40, "cpu") != draw_cases(4, 40, "cpu")
    assert len(set(draw_cases(3, 40, "cpu"))) == 40


def test_the_report_counts_and_tells_survivors(tmp_path):
    report = Report("cpu", time.monotonic(), seed=7, cases=40)
    planted = [Planted(name, NAMED, {}, fault="F05", bug="x #1") for name in ("a | b", "c")]
    report.outcomes.append(Outcome(planted[0], KILLED, ("lse",), ("lengths:keys", "values:bell"), 3, 1.5, "m", {}, {}))
    assert report.exit_status == 0
    report.outcomes.append(Outcome(planted[1], SURVIVED))
    assert report.exit_status == 1
    report.write(tmp_path)
    written = json.loads((tmp_path / "mutants.json").read_text())
    assert written["groups"]["named"] == {"killed": 1, "survived": 1}
    assert [one["name"] for one in written["mutants"]] == ["a | b", "c"]
    page = (tmp_path / "mutants.md").read_text()
    assert "| named | 1 | 1 | 0 | 0 |" in page
    assert "| a \\| b | killed | F05 | x #1 | lse | 3 | 2 | values:bell |" in page
    assert "| c | survived |" in page


def test_an_original_that_does_not_survive_spoils_the_run():
    report = Report("cpu", time.monotonic(), seed=7, cases=40)
    report.outcomes.append(Outcome(Planted("a", NAMED, {}), KILLED))
    report.outcomes.append(Outcome(Planted("the unchanged kernel", CONTROL, {}), SURVIVED))
    assert report.exit_status == 0
    report.outcomes[-1] = Outcome(Planted("the unchanged kernel", CONTROL, {}), KILLED)
    assert report.exit_status == 2


def test_a_run_that_could_not_try_a_mutant_is_no_success():
    report = Report("cpu", time.monotonic(), seed=7, cases=40)
    assert report.exit_status == 2
    report.outcomes.append(Outcome(Planted("a", NAMED, {}), LEFT))
    assert report.exit_status == 2


def test_rules_of_other_suites_judge_on_their_own_inputs(monkeypatch, tmp_path):
    monkeypatch.setattr(rivals, "SUITES", [suite for suite in rivals.SUITES if suite.name == "float16, equal"])
    trials = draw_trials()
    report = RulesReport("cpu", time.monotonic())
    for name in ("right", "raises"):
        (outcome,) = run_all(
            [Planted(name, CONTROL if name == "right" else NAMED, pretended(name).changed)],
            lambda one: Work(judge_by_rules, (one.changed, trials), 20),
            "cpu",
            1,
            math.inf,
        )
        assert (outcome.state, outcome.checks) == ((SURVIVED, ()) if name == "right" else (KILLED, ALL))
        report.outcomes.append(outcome)
    assert report.exit_status == 0
    report.write(tmp_path)
    page = (tmp_path / "rules.md").read_text()
    assert "| FlashMLA | 1 / 1 | accepted |" in page
    assert "| mutant | FlashInfer-Bench | SOL-ExecBench | KernelBench | FlashAttention, 2x |" in page
    assert "| raises | killed | killed | killed | killed |" in page and "| right |" not in page


DEVICE_CODE = {
    "k.py": "import triton\n\ndef host():\n    return 1\n\n@triton.jit\ndef f(x):\n    if x > 0:\n        y = 1\n"
    "        return y\n    z = 2\n    return z\n\n@triton.jit\ndef g(x):\n    return x\n"
}


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        ("y = 1", "y = 3", {9}),
        ("z = 2", "pass", {11}),
        ("return y", "", {10}),
        ("if x > 0:\n    y = 1\n    return y", "if x > 1:\n    y = 1\n    return y", {8}),
        ("z = 2", "z = 2\nz = 3", {8, 9, 10, 11, 12}),  # what is put in may run wherever its neighbours do not
    ],
)
def test_a_mutant_can_show_where_the_unchanged_kernel_comes_to_what_it_changes(before, after, where):
    changed = apply([Edit("f", before, after)], DEVICE_CODE)
    assert places(changed, DEVICE_CODE) == {("k.py", line) for line in where}


@pytest.mark.parametrize("edit", [Edit("host", "return 1", "return 2"), Edit("k.py", "import triton", "import torch")])
def test_what_is_changed_outside_device_functions_any_case_can_show(edit):
    assert places(apply([edit], DEVICE_CODE), DEVICE_CODE) is None


def test_a_marked_kernel_tells_where_it_came():
    namespace: dict = {"triton": Mock(jit=lambda function: function)}
    exec(marked(DEVICE_CODE)["k.py"].replace("import triton\n", ""), namespace)
    with watched() as reached:
        assert namespace["f"](1) == 1
    assert reached == {("k.py", 8), ("k.py", 9), ("k.py", 10)}


def test_cases_that_can_show_a_mutant_are_tried_from_the_cheapest_on(monkeypatch):
    monkeypatch.setattr(session, "kernel_sources", lambda: DEVICE_CODE)
    planted = Planted("x", NAMED, apply([Edit("f", "z = 2", "z = 3")], DEVICE_CODE))
    seen, unseen = frozenset({("k.py", 11)}), frozenset({("k.py", 9)})
    passed = {1: Passed(3.0, seen), 2: Passed(1.0, unseen), 3: Passed(2.0, seen)}  # the fourth was not tried
    control = Outcome(Planted("the unchanged kernel", CONTROL, {}), SURVIVED, passed=passed)
    cases = [Case(((1, 1, 1),), dtype=dtype) for dtype in ("float16", "bfloat16", "bfloat16", "float16", "bfloat16")]
    assert session._turns(planted, control, cases[:4], "cpu") == [3, 1, 4]
    assert session._turns(planted, control, cases, "cuda") == [2, 3, 5, 1, 4]  # by variant of the kernel


def test_a_mutant_of_the_kernel_for_hopper_differs_from_that_kernel_in_one_module():
    control, *planted = collect((HOPPER,))
    sources = kernel_sources() | control.changed
    assert list(control.changed) == ["__init__.py"]
    for one in planted:
        [path] = [path for path, text in one.changed.items() if text != sources[path]]
        assert path in HOPPER_MODULES
        assert places(one.changed, sources)


def test_a_run_that_was_interrupted_goes_on_with_what_it_knows(tmp_path):
    one, other = (Planted(name, NAMED, {"k.py": name}) for name in "ab")
    killed = Outcome(one, KILLED, ("lse",), ("values:bell",), 3, 1.5, "m", {}, None, {1: Passed(0.5, frozenset())})
    known = Known(tmp_path, False, "cpu")
    known.keep(killed)
    known.keep(Outcome(other, LEFT))
    again = Known(tmp_path, True, "cpu")
    assert again.outcome_of(one) == killed and again.outcome_of(other) is None
    assert Known(tmp_path, True, "other cases").outcome_of(one) is None
    assert Known(tmp_path, False, "cpu").outcome_of(one) is None


def test_tests_of_the_judge_that_take_too_long_are_a_kill_whatever_else_the_machine_does(tmp_path, monkeypatch):
    monkeypatch.setattr(selftest, "_SECONDS", 1)  # no more than the imports take
    journal = Journal(tmp_path, "x")
    selftest.run_tests({}, ("tests/test_hashing.py",), journal)
    [(event, _)] = read(journal.path)
    assert (event["event"], event["checks"]) == (KILLED, ["alive"])
