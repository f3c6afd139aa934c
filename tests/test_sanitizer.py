"""compute-sanitizer: its logs, the batches that run under it, and that what it sees is a failure like any other."""

import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from fuzz import searches
from fuzz.case import Case
from fuzz.checks import Finding, Verdict
from fuzz.describe import describe
from fuzz.journal import Reader
from fuzz.options import Options, UsageError
from fuzz.run import Run
from fuzz.sanitizer import process, tool
from fuzz.sanitizer.exact import elements, exact_copy
from fuzz.sanitizer.handover import Places, of_loaded, set_aside
from fuzz.sanitizer.log import Report, parse
from fuzz.sanitizer.outside import SMALL, Named, Sanitized, _Done
from fuzz.sanitizer.work import SanitizedWorker
from fuzz.shrink import Search
from fuzz.strata.strategy import excluded
from fuzz.terms import drawn
from fuzz.totals import Totals
from kernel.contract import CONTRACTS
from reference.profile import PROFILES

KERNELS = str(Path(__file__).parent / "misbehaving.py")
PRETENDED = Path(__file__).parent / "pretend_sanitizer.py"
CASES = [Case(((1, n, n),)) for n in (3, 70, 2)]

# Forms of compute-sanitizer 2025.3; addresses and names are made up.
OUT_OF_BOUNDS = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at copy_one+0xb0 in kernels.py:28
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f5b3e200118 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f5b3e200000 of size 280 bytes
=========
========= Invalid __shared__ write of size 16 bytes
=========     at attend+0x1d80 in attend.py:93
=========     by thread (96,0,0) in block (3,0,0)
=========     Address 0x3a000 is misaligned
=========
========= ERROR SUMMARY: 2 errors
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at race+0x90 in kernels.py:36
=========     and Read access at race+0xb0 in kernels.py:36 [512 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
ONE_HAZARD = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
UNINITIALIZED = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at copy_one+0xb0 in kernels.py:28
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f5b3e200014
=========
========= ERROR SUMMARY: 1 error
"""
BARRIER = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in warp.
=========     at half_a_barrier+0x90 in kernels.py:47
=========     by thread (1,0,0) in block (0,0,0)
=========
========= Barrier error detected. Divergent thread(s) in warp.
=========     at half_a_barrier+0x90 in kernels.py:47
=========     by thread (3,0,0) in block (0,0,0)
=========
========= Target application returned an error
========= ERROR SUMMARY: 64 errors
"""
# Of a right kernel on an H200: def in line 84, call in line 139.
HANDOVER = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at prefill_hopper+0x120 in prefill_hopper.py:84
=========     and Write access at prefill_hopper+0xdfb0 in prefill_hopper.py:84 [219 hazards]
=========     and Write access at prefill_hopper+0x117e0 in prefill_hopper.py:139 [226 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
AT_LINE_84 = (
    "\n" * 82 + "@gluon.jit\ndef f(\n    x,\n):\n    y = x" + "\n" * 52 + "    gl.warp_specialize(\n        x\n    )\n"
)
SPECIALIZED = """\
import triton
import kernel

@triton.jit
def halves(x):
    gl.warp_specialize(
        [(left, (x,)), (right, (x.index(0),))],
        [4],
    )
    y = x.load()

@triton.jit
def left(x):
    x.store(1)

def run(**operands):
    return kernel.run(**operands)
"""


@pytest.mark.parametrize(
    ("text", "kinds", "count"),
    [
        (OUT_OF_BOUNDS, ["global-read", "shared-write"], 2),
        (RACE, ["race"], 1),
        (UNINITIALIZED, ["uninitialized-global"], 1),
        (BARRIER, ["barrier", "barrier"], 64),
        ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", [], 0),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", [], 0),
        ("========= Something new\n=========     at a place\n========= ERROR SUMMARY: 1 error\n", ["other"], 1),
    ],
)
def test_each_tool_is_understood(text, kinds, count):
    report = parse(text)
    assert [entry.kind for entry in report.entries] == kinds
    assert (report.count, report.trouble) == (count, "")


def test_an_error_keeps_all_its_lines():
    entry = parse(OUT_OF_BOUNDS).entries[0]
    assert entry.lines[0] == "Invalid __global__ read of size 4 bytes"
    assert entry.lines[1:3] == ("at copy_one+0xb0 in kernels.py:28", "by thread (0,0,0) in block (0,0,0)")
    assert entry.lines[-1].endswith("of size 280 bytes")


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("", "it ended without a summary"),
        ("========= COMPUTE-SANITIZER\n", "it ended without a summary"),
        (
            "========= Error: Target application terminated before first instrumented API call\n",
            "Error: Target application terminated before first instrumented API call",
        ),
        (
            "========= Device not supported. Please refer to the manual.\n",
            "Device not supported. Please refer to the manual.",
        ),
    ],
)
def test_a_tool_that_could_not_look_is_not_taken_for_one_that_saw_nothing(text, trouble):
    assert parse(text).trouble == trouble


def places_of(source: str) -> dict[str, Places]:
    return {"prefill_hopper.py": Places.of(source)}


def race_between(*lines: int) -> Report:
    accesses = [f"Write access at f+0x{line:x} in prefill_hopper.py:{line}" for line in lines]
    return parse(f"========= Error: Race reported between {' and '.join(accesses)}\n{ONE_HAZARD}")


def test_the_hand_over_of_warp_specialize_is_set_aside_and_told():
    places = places_of(AT_LINE_84)
    report, aside = set_aside(parse(HANDOVER), places)
    assert (report.entries, report.count) == ((), 0)
    assert aside == ["prefill_hopper.py:139, prefill_hopper.py:84"]
    assert Places.from_json(places["prefill_hopper.py"].to_json()) == places["prefill_hopper.py"]
    of_the_kernel = parse(HANDOVER.replace("py:139", "py:138"))
    assert set_aside(of_the_kernel, places) == (of_the_kernel, [])


def test_a_race_that_has_another_line_in_it_is_an_error():
    places = places_of(SPECIALIZED)
    for lines in ((5, 5), (4, 6), (5, 8), (12, 6), (13, 6), (6, 6, 9)):
        assert not set_aside(race_between(*lines), places)[0].entries, lines
    for lines in ((5, 10), (6, 10), (10, 10), (5, 5, 14), (13, 13), (7, 7), (7, 6), (14, 14), (17, 6)):
        report, aside = set_aside(race_between(*lines), places)
        assert report == race_between(*lines) and not aside, lines


# Of a right kernel on an H200, its lines changed to those of WARPGROUPS.
EXCHANGE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at prefill_hopper+0x23a0 in prefill_hopper.py:16
=========     and Read access at prefill_hopper+0x9340 in prefill_hopper.py:12 [640 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARPGROUPS = """\
@gluon.jit
def kernel(x):
    gl.warp_specialize([(left, (x,)), (right, (x,))], [4], [24])

@gluon.jit
def left(x):
    give(x)
    y = x.load()

@gluon.jit
def right(x):
    y = x.load()

@gluon.jit
def give(x):
    x.store(1)

@gluon.jit
def alone(x):
    x.store(2)
"""


def test_what_warpgroups_may_give_each_other_is_set_aside_and_told():
    places = places_of(WARPGROUPS)
    report, aside = set_aside(parse(EXCHANGE), places)
    assert (report.entries, report.count) == ((), 0)
    assert aside == ["prefill_hopper.py:12, prefill_hopper.py:16"]
    assert Places.from_json(places["prefill_hopper.py"].to_json()) == places["prefill_hopper.py"]


def test_a_race_inside_of_one_warpgroup_is_an_error():
    places = places_of(WARPGROUPS)
    for lines in ((8, 16), (16, 8), (12, 12), (8, 8), (16,), (16, 12, 8), (20, 12), (12, 20), (3, 12)):
        report, aside = set_aside(race_between(*lines), places)
        assert report == race_between(*lines) and not aside, lines
    for lines in ((12, 16), (8, 12), (12, 8), (12, 8, 16)):
        assert not set_aside(race_between(*lines), places)[0].entries, lines


def test_a_hand_over_is_none_that_cannot_be_looked_up():
    assert set_aside(parse(HANDOVER), {})[0] == set_aside(parse(HANDOVER), places_of("x = 1"))[0] == parse(HANDOVER)
    places = places_of(SPECIALIZED)
    nowhere = parse(RACE.replace("kernels.py:36", "prefill_hopper.py:5", 1).replace(" in kernels.py:36", ""))
    assert set_aside(nowhere, places)[0] == nowhere


def test_nothing_is_set_aside_where_not_all_is_told():
    report = replace(race_between(5, 6), count=2)
    assert set_aside(report, places_of(SPECIALIZED)) == (report, [])


def test_an_error_beside_a_hand_over_stays():
    other = parse(RACE).entries[0]
    report = replace(race_between(5, 6), entries=(*race_between(5, 6).entries, other), count=2)
    assert set_aside(report, places_of(SPECIALIZED))[0] == Report((other,), 1, "")


def test_the_hand_over_of_our_kernel_is_found_by_its_module():
    from kernel import prefill_hopper

    lines = Path(prefill_hopper.__file__).read_text().splitlines()
    places = of_loaded()["prefill_hopper.py"]
    assert lines.index("def prefill_hopper(") + 1 in places.hosts
    assert lines.index("    gl.warp_specialize(") + 1 in places.calls
    assert lines.index("@gluon.jit") + 1 in places.heads and len(places.hosts) < 12


def test_a_missing_program_and_a_missing_gpu_are_told_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "PROGRAM", "no-such-sanitizer")
    with pytest.raises(UsageError, match="there is no no-such-sanitizer on PATH"):
        tool.require("memcheck", "cuda")
    with pytest.raises(UsageError, match="looks at an NVIDIA GPU, and this run is on the cpu"):
        tool.require("memcheck", "cpu")


def test_a_copy_ends_with_the_last_element_and_keeps_alignment_and_values():
    base = torch.arange(4000, dtype=torch.int16)
    for view in (base[3:20], base[1001:3001].view(20, 100)[:, 7:60:3], base[:0], base[5:6].expand(9), base[128:160]):
        [there] = [exact_copy(view, torch.device("cpu"))]
        assert torch.equal(there, view) and there.stride() == view.stride()
        if view.numel():
            storage = there.untyped_storage().nbytes() // 2
            assert there.storage_offset() + elements(there).numel() == storage
            assert there.storage_offset() % 128 == view.storage_offset() % 128 and there.storage_offset() < 128


def test_what_is_left_out_for_its_size_is_known_by_name():
    left_out = excluded(CONTRACTS["hardened"], SMALL)
    assert left_out["pages:across-2^22"] == "needs 8.5 GiB, the budget is 0.2 GiB"
    assert left_out["lengths:many-requests"] == "needs 16,385 tiles, the budget is 512"
    assert not {"lengths:long-context", "lengths:uneven", "pages:garbage"} & left_out.keys()
    assert not any(name.startswith(("indptr:", "poison:", "tail:", "index_dtype:")) for name in left_out)


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """A function that gives a kernel of tests/misbehaving.py under a program that pretends, on the CPU."""
    program = tmp_path / "sanitizer"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {PRETENDED} "$@"\n')
    program.chmod(0o755)

    def make(kernel: str, mode: str) -> Sanitized:
        monkeypatch.setenv("PRETENDED_SANITIZER", mode)
        target = Named(f"{KERNELS}:{kernel}", PROFILES["default"])
        return Sanitized("memcheck", target, CONTRACTS["serving"], "cpu", str(program))

    return make


def soon() -> float:
    return time.monotonic() + 120


def test_a_clean_batch_is_judged_as_anywhere_and_the_check_has_run(pretended):
    verdicts = pretended("right", "clean").batch(CASES, soon())
    assert len(verdicts) == len(CASES) and not any(verdict.findings for verdict in verdicts)
    assert all({"memcheck", "output", "lse", "in-bounds"} <= verdict.ran.keys() for verdict in verdicts)


def test_an_error_is_a_failure_of_the_check_that_the_tool_is(pretended):
    verdict, observed = pretended("right", "errors").judge(CASES[1], "memcheck")
    [finding] = verdict.findings
    assert (finding.check, finding.cause) == ("memcheck", "global-read")
    assert finding.detail.startswith("Invalid __global__ read of size 4 bytes, at attend+0x1d80 in attend.py:93")
    assert "nearest allocation" in finding.printed and {"memcheck", "output", "lse"} <= verdict.ran.keys()
    assert observed["output"].shape == (70, 16, 512)


def test_a_hand_over_is_no_failure_and_is_noted(pretended, tmp_path):
    rig = pretended("right", "handover")
    (tmp_path / "specialized.py").write_text(SPECIALIZED)
    specialized = replace(rig, target=Named(f"{tmp_path / 'specialized.py'}:run", PROFILES["default"]))
    verdict = specialized.verdict(CASES[1])
    assert not verdict.findings and "memcheck" in verdict.ran
    assert specialized.aside == ["specialized.py:5, specialized.py:6"]
    assert [finding.cause for finding in rig.verdict(CASES[1]).findings] == ["race"]


class Known(Sanitized):
    """One that knows what is seen of which cases together, and notes what it looks at. `dies`: what is seen ends the
    context of the last case."""

    def __init__(self, seen, dies=False):
        super().__init__("memcheck", Named("-", PROFILES["default"]), CONTRACTS["serving"], "cpu", "-")
        object.__setattr__(self, "seen", seen)
        object.__setattr__(self, "dies", dies)
        object.__setattr__(self, "looked", [])

    def _run(self, cases, until, also=frozenset()):
        self.looked.append(len(cases))
        seen = self.seen(cases)
        verdicts = [Verdict(case, {"alive": None}) for case in cases]
        if seen and self.dies:
            verdicts[-1].add("alive", Finding("alive", "unspecified launch failure", cause="cuda-error"))
        return _Done(verdicts, parse(OUT_OF_BOUNDS if seen else "========= ERROR SUMMARY: 0 errors"), {})


@pytest.mark.parametrize("place", [0, 5, 9])
def test_an_error_is_traced_to_its_case_by_halves(place):
    cases = [Case(((1, n, n),)) for n in range(10)]
    rig = Known(lambda among: cases[place] in among)
    verdicts = rig.batch(cases, soon())
    assert [bool(verdict.findings) for verdict in verdicts] == [case == cases[place] for case in cases]
    assert "which of them" not in verdicts[place].findings[0].detail and len(rig.looked) <= 9
    assert ["memcheck" in verdict.ran for verdict in verdicts].count(True) == 1  # what the others did is not known


def test_where_memcheck_ended_the_context_the_last_case_comes_first():
    rig = Known(lambda among: CASES[2] in among, dies=True)
    verdicts = rig.batch(CASES, soon())
    assert rig.looked == [3, 1]
    assert [[finding.check for finding in verdict.findings] for verdict in verdicts] == [[], [], ["memcheck"]]


def test_an_error_of_no_single_case_is_not_lost():
    [first, *others] = Known(lambda among: len(among) > 1).batch(CASES, soon())
    assert "in one process with 2 cases, which of them is not known" in [first, *others][1].findings[0].detail
    assert not first.findings and not others[1].findings


def test_errors_are_not_traced_beyond_the_time():
    rig = Known(lambda among: True)
    [first, *_] = rig.batch(CASES, time.monotonic() - 1)
    assert "in one process with 3 cases" in first.findings[0].detail and rig.looked == [3]


def test_a_kernel_that_ends_its_process_fails_that_case_and_the_rest_waits(pretended):
    verdicts = pretended("os_exit", "clean").batch(CASES, soon())
    assert [[finding.cause for finding in verdict.findings] for verdict in verdicts] == [[], ["exit-4"]]


def test_a_kernel_that_hangs_is_killed(pretended, monkeypatch):
    monkeypatch.setattr(process, "_PATIENCE", 8.0)
    verdicts = pretended("hang", "clean").batch(CASES, soon())
    assert [[finding.cause for finding in verdict.findings] for verdict in verdicts] == [[], ["timeout"]]


def test_a_batch_ends_in_time_and_what_is_not_done_is_not_told(pretended):
    rig = pretended("hang", "clean")
    until = time.monotonic() + 4
    assert len(rig.batch(CASES, until)) <= 1
    assert time.monotonic() < until + 1


def test_a_tool_that_does_not_work_here_ends_the_run_in_one_line(pretended):
    with pytest.raises(UsageError, match="compute-sanitizer does not work here: Device not supported") as error:
        pretended("right", "unsupported").verdict(CASES[0])
    assert "\n" not in str(error.value)


def test_a_kernel_that_cannot_be_loaded_is_told_in_one_line(pretended):
    with pytest.raises(UsageError, match=re.escape("misbehaving.py has no 'absent'")):
        pretended("absent", "clean").verdict(CASES[0])


class Rig:
    """Stands in for `Sanitized`: cases with more than 69 keys have an error; two cases to a process."""

    contract = CONTRACTS["serving"]
    tool = "memcheck"

    def __init__(self):
        self.processes = 0
        self.aside = []

    def batch(self, cases, until):
        self.processes += 1
        return [self._judged(case) for case in cases[:2]]

    def verdict(self, case, also=frozenset()):
        self.processes += 1
        return self._judged(case)

    def _judged(self, case):
        verdict = Verdict(case, {"alive": None, "output": 0.5})
        is_wrong = any(keys > 69 for _, _, keys in case.lengths)
        verdict.add("memcheck", Finding("memcheck", "Invalid read", cause="global-read") if is_wrong else None)
        return verdict


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that gives a run of so many cases, without memory of earlier ones."""
    monkeypatch.setattr(searches, "database", lambda *_: None)

    def make(cases: int, name: str = "out") -> Run:
        options = Options(max_cases=cases, sanitize="memcheck")
        made = Run(options, 3, "cpu", tmp_path / name, time.monotonic(), None, None, 1, 1)
        made.journals.mkdir(parents=True)
        return made

    return make


class Pretended:
    """The property of such a kernel; `kept` are the cases that evidence was asked for."""

    describe = staticmethod(describe)

    def __init__(self, rig: Rig, strata: tuple[str, ...]):
        self.strategy = drawn(rig.contract, strata, SMALL)
        self.kept = []
        self._rig = rig

    def judge(self, case, also):
        return self._rig.verdict(case)

    def keep(self, case, check, place):
        self.kept.append((case, check))
        return self._rig.verdict(case)

    def revive(self, value, check):
        return Case.from_json(value)

    def simplify(self, case, fails, seconds):
        Search(case, self._rig.contract, fails, seconds).smallest()


def work(run: Run, rig: Rig, strata: tuple[str, ...] = ()) -> Pretended:
    tested = Pretended(rig, strata)
    SanitizedWorker(run, "gw0", tested, rig).work()
    return tested


def test_a_run_in_batches_finds_the_smallest_case_and_counts_all(run):
    this = run(40)
    kept = work(this, Rig()).kept
    totals = Totals(this.journals)
    totals.update()
    assert totals.cases == 40 and totals.checks["memcheck"].cases == 40
    [bucket] = totals.buckets()
    assert bucket.name == "memcheck-global-read+lengths-key-tiles"
    assert bucket.smallest.case["lengths"] == [[1, 1, 70]]
    assert bucket.cases == totals.checks["memcheck"].failed >= 3
    assert [(case.to_json(), check) for case, check in kept] == [(bucket.smallest.case, "memcheck")]


def test_the_same_seed_gives_the_same_cases(run):
    seen = []
    for name in ("one", "other"):
        this = run(20, name)
        work(this, Rig(), strata=("lengths:tiny",))
        seen.append([event["case"] for _, event in Reader(this.journals).new_events() if event["event"] == "case"])
    assert len(seen[0]) == 20 and seen[0] == seen[1]


def test_a_tool_that_does_not_work_ends_the_worker_with_one_line(run):
    this, rig = run(20), Rig()
    rig.batch = Mock(side_effect=UsageError("--sanitize memcheck: Device not supported"))
    with pytest.raises(pytest.fail.Exception, match="Device not supported"):
        work(this, rig)
    [error] = [event for _, event in Reader(this.journals).new_events() if event["event"] == "error"]
    assert error["usage"] and error["message"] == "--sanitize memcheck: Device not supported"


def test_what_was_set_aside_is_counted_in_a_warning(run):
    this, rig = run(20), Rig()
    rig.aside = ["a.py:5, a.py:6"] * 3
    work(this, rig)
    totals = Totals(this.journals)
    totals.update()
    [warning] = totals.warnings
    assert "gw0: memcheck reported 3 times what warpgroups hand each other" in warning and "a.py:5" in warning


def test_what_fails_under_a_tool_is_remembered_apart():
    assert Options(sanitize="memcheck").subject == "kernel:run under memcheck" != Options().subject
