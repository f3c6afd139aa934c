"""What the journals of a run add up to: tallies, buckets, strict JSON and JUnit, whatever a kernel or a crash left."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fuzz.files import number, strict, write_json
from fuzz.journal import Journal, Reader
from fuzz.options import Options
from fuzz.run import Run
from fuzz.summary import junit, replay_command, summary
from fuzz.totals import Totals


@pytest.fixture
def run(tmp_path) -> Run:
    (tmp_path / "journal").mkdir()
    return Run(
        options=Options(kernel="mine.py:run"),
        seed=1,
        device="cpu",
        directory=tmp_path,
        started=0.0,
        deadline=None,
        patience=None,
        shards=1,
        sharing=1,
    )


class Writer:
    """Journals of workers that are told what to write."""

    def __init__(self, run: Run) -> None:
        self._directory = run.journals

    def case(self, worker: str = "gw0", *, phase: str = "generate", traits: str = "", size: int = 0, at: float = 1.0):
        event = {"case": {"size": size}, "strata": ["values:a"], "traits": traits.split(), "size": [size]}
        Journal(self._directory, worker).write("case", unit=0, phase=phase, at=at, **event)

    def verdict(self, *failed: str, worker: str = "gw0", ratio: float | None = 0.5, detail: str = "wrong") -> None:
        findings = [
            {"check": check, "detail": detail, "index": [0, 1], "rows": "interior", "ratio": ratio} for check in failed
        ]
        Journal(self._directory, worker).write("verdict", ran={"output": ratio, "lse": None}, findings=findings, ms=1)

    def shrunk(self, check: str, began_with: str, traits: str, size: int) -> None:
        finding = {"check": check, "detail": "wrong", "index": [0, 1], "rows": "interior", "ratio": 2.0}
        event = {"case": {"size": size}, "strata": ["values:a"], "traits": traits.split(), "size": [size]}
        Journal(self._directory, "gw0.found").write(
            "shrunk", worker="gw0", began_with=began_with.split(), finding=finding, **event
        )

    def control(self, event: str, **values: str) -> None:
        Journal(self._directory, "controller").write(event, **values)


@pytest.fixture
def writer(run) -> Writer:
    return Writer(run)


def totals(run: Run) -> Totals:
    counted = Totals(run.journals)
    counted.update()
    return counted


def test_tallies_keep_the_worst_ratio_and_a_nan_is_worse_than_any(run, writer):
    for ratio in (0.25, None, 0.75, 0.5):
        writer.case()
        writer.verdict(ratio=ratio)
    counted = totals(run)
    assert counted.cases == 4 and counted.worst("output") == 0.75 and counted.worst("lse") is None
    writer.case()
    writer.verdict(ratio=math.nan)
    writer.case()
    writer.verdict(ratio=math.inf)
    counted.update()
    assert math.isnan(counted.worst("output"))


def test_cases_of_a_search_are_not_counted(run, writer):
    writer.case()
    writer.verdict()
    writer.case(phase="search")
    writer.verdict("output", ratio=9.0)
    counted = totals(run)
    assert counted.cases == 1 and counted.worst("output") == 0.5 and counted.buckets() == []


def test_failures_that_are_not_shrunk_share_a_bucket_for_each_check(run, writer):
    for traits, size in (("values:b", 7), ("values:b lengths:ragged", 3), ("pages:permuted", 5)):
        writer.case(traits=traits, size=size)
        writer.verdict("output", "lse")
    found = totals(run).buckets()
    assert [(bucket.name, bucket.cases) for bucket in found] == [
        ("lse-interior+unshrunk", 3),
        ("output-interior+unshrunk", 3),
    ]
    assert found[1].smallest.case == {"size": 3} and found[1].stratum == "lengths:ragged+values:b"


def test_a_shrunk_case_opens_a_bucket_for_every_failure_with_its_strata(run, writer):
    for traits in ("values:b lengths:ragged", "values:b", "values:c", "values:b pages:permuted"):
        writer.case(traits=traits, size=9)
        writer.verdict("output")
    writer.shrunk("output", "values:b lengths:ragged", "values:b", 2)
    counted = totals(run)
    assert [(bucket.name, bucket.cases) for bucket in counted.buckets()] == [
        ("output-interior+values-b", 3),
        ("output-interior+unshrunk", 1),
    ]
    assert counted.distinct() == 1, "what is left may be the same failure until a search has shown that it is not"
    writer.shrunk("output", "values:c", "", 1)
    counted.update()
    assert [(bucket.name, bucket.cases) for bucket in counted.buckets()] == [("output-interior", 4)]
    assert counted.buckets()[0].stratum == "any"


def test_a_failure_whose_search_led_elsewhere_belongs_where_it_led(run, writer):
    writer.case(traits="lengths:ragged", size=9)
    writer.verdict("output")
    writer.shrunk("output", "lengths:ragged", "lengths:masked-rows", 2)
    [bucket] = totals(run).buckets()
    assert (bucket.name, bucket.cases) == ("output-interior+lengths-masked-rows", 1)


def test_a_search_that_was_cut_short_still_gives_its_smallest_case(run, writer):
    writer.case(size=9)
    writer.verdict("output")
    for size in (5, 4, 6):
        writer.case(phase="search", size=size)
        writer.verdict("output")
    [bucket] = totals(run).buckets()
    assert (bucket.name, bucket.cases, bucket.smallest.case) == ("output-interior+unshrunk", 1, {"size": 4})


@pytest.mark.parametrize(("event", "failed"), [("died", True), ("hung", True), ("killed", False)])
def test_the_case_in_which_a_worker_ended_is_a_failure_unless_we_ended_it(run, writer, event, failed):
    writer.control(event, worker="gw0")  # in the journal that is read first
    writer.case(size=1)
    writer.verdict()
    writer.case(size=2)
    counted = totals(run)
    assert [bucket.check for bucket in counted.buckets()] == ["alive"] * failed
    assert counted.cases == 1 + failed
    assert [case["case"] for case in counted.unfinished()] == [{"size": 2}] * (not failed)


def test_a_line_that_was_never_finished_is_no_event(run, writer):
    writer.case()
    writer.verdict()
    path = run.journals / "gw0.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "case", "un')
    reader = Reader(run.journals)
    assert len(list(reader.new_events())) == 2
    with path.open("ab") as file:
        file.write(b'it": 1}\n')
    assert [event for _, event in reader.new_events()] == [{"event": "case", "unit": 1}]


def test_everything_written_is_strict_json(run, writer, tmp_path):
    writer.case(size=1)
    writer.verdict("output", ratio=math.inf)
    writer.case(size=2)
    writer.verdict(ratio=math.nan)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    said = summary(run, totals(run), elapsed=2.0, exit_status=1)
    write_json(tmp_path / "s.json", said)
    for line in (run.journals / "gw0.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    read = json.loads((tmp_path / "s.json").read_text(), parse_constant=refuse)
    assert read["strata"]["values:a"]["worst_output_ratio"] == "nan" and read["cases_per_s"] == 1.0
    assert not list(tmp_path.glob(".s.json*")), "written under another name, then renamed"


@pytest.mark.parametrize("value", [0.1, math.inf, -math.inf, None, 1e-300, 3])
def test_a_ratio_comes_back_from_a_journal_bit_for_bit(value):
    assert number(json.loads(json.dumps(strict({"ratio": value}), allow_nan=False))["ratio"]) == value


def test_junit_holds_what_a_kernel_prints_without_what_xml_cannot(run, writer):
    writer.case()
    writer.verdict("output", detail="got \x00\x1b[31m <nan> & more\nsecond line")
    counted = totals(run)
    root = ElementTree.fromstring(junit(run, counted, elapsed=1.0).encode())
    failure = root.find(".//failure")
    assert "<nan> & more" in failure.attrib["message"] and "second line" in failure.text
    assert root.find("testsuite").attrib["failures"] == "1"


def test_the_replay_command_is_safe_to_paste(run, writer):
    writer.case()
    writer.verdict("output")
    [bucket] = totals(run).buckets()
    spaced = Run.from_json(run.to_json() | {"directory": "my results; rm"})
    path = Path("my results; rm") / "failures" / "output-interior+unshrunk"
    assert replay_command(spaced, bucket) == f"python -m fuzz replay '{path}' --kernel mine.py:run"


def test_a_run_comes_back_from_run_json_as_it_was(run):
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run
