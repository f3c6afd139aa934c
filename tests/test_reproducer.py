"""A dump: what is in it, and that nothing in it is lost, overwritten or taken on trust."""

import json
import math
import os
import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fuzz import formats, reading, reproducer, tensorfile
from fuzz.build import build
from fuzz.case import Case
from fuzz.checks import Verdict
from fuzz.checks.invariance import INVARIANCES
from fuzz.demands import AGAIN
from fuzz.evidence import write_evidence
from fuzz.options import UsageError
from fuzz.words import spans
from kernel.contract import DEFINITION
from tests.dumping import dump, rig, spec

CASE = Case(((1, 3, 70),), pages="permuted", spare_pages=2, seed=5)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return dump(tmp_path_factory.mktemp("made"), "long_context", CASE, "output")


@pytest.fixture
def copy(made, tmp_path) -> Path:
    """A dump to spoil."""
    return Path(shutil.copytree(made, tmp_path / made.name))


def record(place: Path) -> dict:
    return json.loads((place / "case.json").read_text())


def edit(place: Path, **changes: object) -> None:
    """Change fields of case.json; None takes one away."""
    value = record(place) | changes
    (place / "case.json").write_text(json.dumps({name: one for name, one in value.items() if one is not None}))


def test_a_dump_has_every_file(made):
    files = {path.name for path in made.iterdir()}
    assert files == {"case.json", "README.md", *reproducer.EVIDENCE}


def test_the_record_tells_the_case_the_finding_and_how_to_replay_it(made):
    said = record(made)
    assert said["schema"] == 1 and said["definition"] == DEFINITION == reproducer.DEFINITION
    assert (
        said["bucket"]
        == made.name
        == "output-boundary+lengths-key-tiles+lengths-queries+pages-permuted+tail-spare_pages"
    )
    assert Case.from_json(said["case"]) == CASE
    finding = said["finding"]
    assert finding["check"] == said["check"] == "output" and finding["index"][:2] == [2, 3] and finding["ratio"] > 1
    low, high = finding["allowed"]
    assert low <= finding["expected"] <= high and not low <= finding["got"] <= high
    assert said["reproduced"] is True and said["wrong"]["rows"] == "2" and said["wrong"]["heads"] == "3"
    assert said["replay"] == f"python -m fuzz replay {made} --kernel {spec('long_context')}"
    assert said["versions"].keys() >= {"python", "torch", "triton"} and said["contract"] == "serving"


def test_the_tensors_are_what_the_kernel_got_and_gave_and_should_have_given(made):
    inputs, held = build(CASE), load_file(made / "inputs.safetensors")
    for name, value in inputs.operands().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(held[name].view(torch.uint8), value.contiguous().view(torch.uint8))
    assert held["sm_scale"].item() == inputs.sm_scale
    observed, expected = load_file(made / "observed.safetensors"), load_file(made / "expected.safetensors")
    finding = record(made)["finding"]
    index = tuple(finding["index"])
    assert observed["output"][index].item() == finding["got"]
    assert expected["output"][index].item() == finding["expected"]
    assert expected["output_ratio"][index].item() > 1
    assert [expected[f"output_{side}"][index].item() for side in ("low", "high")] == finding["allowed"]
    outside = (observed["output"] < expected["output_low"]) | (observed["output"] > expected["output_high"])
    assert torch.equal(outside, expected["output_ratio"] > 1) and outside.sum() == record(made)["wrong"]["count"]
    assert (expected["output_error"] > 0).all() and (expected["lse_ratio"] <= 1).all()


def test_the_workload_is_one_of_flashinfer_bench(made):
    [line] = (made / "workload.jsonl").read_text().splitlines()
    trace = json.loads(line)
    assert trace["definition"] == DEFINITION and trace["solution"] is None and trace["evaluation"] is None
    workload, held = trace["workload"], load_file(made / "inputs.safetensors")
    assert workload["axes"] == {"total_q": 3, "num_pages": 73, "len_indptr": 2, "num_kv_indices": 70}
    assert workload["uuid"]
    assert list(workload["inputs"]) == list(build(CASE).operands())
    for name, source in workload["inputs"].items():
        if name == "sm_scale":
            assert source == {"type": "scalar", "value": held["sm_scale"].item()}
        else:
            assert source == {"type": "safetensors", "path": "inputs.safetensors", "tensor_key": name}


def test_the_workload_loads_in_flashinfer_bench(made):
    data = pytest.importorskip("flashinfer_bench.data", reason="flashinfer-bench is not installed")
    trace = data.Trace.model_validate_json((made / "workload.jsonl").read_text())
    assert trace.is_workload_trace() and trace.definition == DEFINITION


@pytest.mark.parametrize("changes", [{"dtype": "float16"}, {"index_dtype": "int64"}])
def test_operands_that_the_definition_does_not_have_make_no_workload(tmp_path, changes):
    place = dump(tmp_path, "natural_lse", replace(CASE, **changes), "lse")
    assert not (place / "workload.jsonl").exists() and (place / "inputs.safetensors").exists()
    assert "Not here: workload.jsonl" in (place / "README.md").read_text()


def test_the_readme_tells_a_stranger_what_happened(made):
    text = (made / "README.md").read_text()
    finding = record(made)["finding"]
    for said in (
        f"row 2, head 3, column {finding['index'][2]}",
        f"got: {finding['got']}",
        "1 request of 3 queries and 70 keys",
        "pages permuted",
        record(made)["replay"],
        finding["message"],
        "FIXED (exit status 0)",
    ):
        assert said in text


def test_every_check_is_explained():
    assert AGAIN.keys() == INVARIANCES.keys()


def test_a_kernel_that_raises_leaves_no_results_but_all_else(tmp_path):
    place = dump(tmp_path, "raising", Case(((2, 1, 1),)), "alive")
    files = {path.name for path in place.iterdir()}
    assert files == {"case.json", "README.md", "inputs.safetensors", "expected.safetensors", "workload.jsonl"}
    assert place.name == "alive-ValueError+lengths-requests"
    assert "one request only" in (place / "README.md").read_text()
    assert reading.read(place / "case.json").record.check == "alive"


def test_results_of_another_form_are_kept_as_they_are(tmp_path):
    place = dump(tmp_path, "misshapen", Case(((1, 3, 3),)), "lse")
    assert load_file(place / "observed.safetensors")["lse"].shape == (16, 3)
    assert load_file(place / "expected.safetensors")["lse_ratio"].isnan().all()
    assert reading.read(place / "case.json").record.wrong == {}


def test_memory_that_was_not_written_shows_as_nan(tmp_path):
    place = dump(tmp_path, "unwritten", Case(((1, 2, 2),)), "written")
    observed = load_file(place / "observed.safetensors")["output"]
    assert observed[1].isnan().all() and observed[0].isfinite().all()


def test_infinities_and_nan_are_strings(tmp_path):
    place = dump(tmp_path, "unwritten", Case(((1, 2, 1), (1, 1, 1))), "written", "serving")
    text = (place / "case.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["finding"]["got"] is None
    found = {"check": "lse", "detail": "d", "got": -math.inf, "expected": math.nan, "ratio": math.inf}
    changed = replace(reading.read(place / "case.json").record, check="lse", finding=found)
    reproducer.write_dump(tmp_path / "other", changed, tmp_path / "none")
    read = reading.read(tmp_path / "other" / "case.json").record.finding
    assert (read["got"], read["expected"], read["ratio"]) == ("-inf", "nan", "inf")


def test_large_tensors_are_left_out_and_the_case_is_enough(tmp_path, monkeypatch):
    for module in (tensorfile, reading):
        monkeypatch.setattr(module, "LIMIT", 1000)
    for module in ("fuzz.evidence", "fuzz.rig"):
        monkeypatch.setattr(f"{module}.LIMIT", 1000)
    place = dump(tmp_path, "long_context", CASE, "output")
    assert {path.name for path in place.iterdir()} == {"case.json", "README.md"}
    assert reading.read(place / "case.json").case == CASE


def test_a_broken_case_without_defined_results_has_no_expected_ones(tmp_path):
    broken = replace(CASE, indptr="qo-max")
    write_evidence(tmp_path / "e", broken, "alive", Verdict(broken), {}, device="cpu")
    assert {path.name for path in (tmp_path / "e").iterdir()} == {"facts.json", "inputs.safetensors", "workload.jsonl"}
    assert json.loads((tmp_path / "e" / "facts.json").read_text())["reproduced"] is False


def test_a_new_dump_takes_the_place_of_an_old_one_and_leaves_other_files(copy, tmp_path):
    (copy / "notes.txt").write_text("mine")
    smaller = replace(CASE, spare_pages=0)
    changed = replace(reading.read(copy / "case.json").record, case=smaller.to_json())
    reproducer.write_dump(copy, changed, tmp_path / "no evidence")
    assert {path.name for path in copy.iterdir()} == {"case.json", "README.md", "notes.txt"}
    assert reading.read(copy / "case.json").case == smaller


def test_a_process_killed_while_it_writes_leaves_a_dump_that_reads(copy, tmp_path, monkeypatch):
    smaller = replace(CASE, spare_pages=0)
    verdict, observed = rig("long_context").judge(smaller, "output")
    write_evidence(tmp_path / "evidence", smaller, "output", verdict, observed, device="cpu")
    changed = replace(reading.read(copy / "case.json").record, case=smaller.to_json())
    steps = 0

    def killed_at(step, done):
        def do(*args, **kwargs):
            nonlocal steps
            steps += 1
            if steps == step:
                raise KeyboardInterrupt
            return done(*args, **kwargs)

        return do

    for step in range(1, 20):
        place = Path(shutil.copytree(copy, tmp_path / f"at {step}"))
        steps = 0
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", killed_at(step, Path.unlink))
            patch.setattr(Path, "replace", killed_at(step, Path.replace))
            patch.setattr(os, "link", killed_at(step, os.link))
            try:
                reproducer.write_dump(place, changed, tmp_path / "evidence")
            except KeyboardInterrupt:
                assert reading.read(place / "case.json").case in (CASE, smaller)
            else:
                break
    assert step > 8 and reading.read(place / "case.json").case == smaller


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1, 2, 5], "0-2, 5"),
        (list(range(0, 40, 2)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ..."),
    ],
)
def test_numbers_are_told_in_spans(numbers, text):
    assert spans(numbers, 12) == text


# Each way of spoiling a dump, with what the refusal says.


def _case_with(place: Path, **changes: object) -> None:
    edit(place, case=record(place)["case"] | changes)


def _truncate(name: str):
    def spoil(place: Path) -> None:
        path = place / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return spoil


def _link(name: str):
    def spoil(place: Path) -> None:
        (place / name).rename(place.parent / "elsewhere")
        (place / name).symlink_to(place.parent / "elsewhere")

    return spoil


def _tensors(name: str, **changes: torch.Tensor | None):
    def spoil(place: Path) -> None:
        held = load_file(place / name) | changes
        save_file({key: value for key, value in held.items() if value is not None}, place / name)

    return spoil


def _header(change) -> object:
    """Rewrite the header of inputs.safetensors, and nothing else."""

    def spoil(place: Path) -> None:
        content = (place / "inputs.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        change(header)
        new = json.dumps(header).encode()
        (place / "inputs.safetensors").write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])

    return spoil


def _workload(path: str):
    def spoil(place: Path) -> None:
        text = (place / "workload.jsonl").read_text()
        (place / "workload.jsonl").write_text(text.replace('"inputs.safetensors"', json.dumps(path)))

    return spoil


def _pipe(place: Path) -> None:
    (place / "observed.safetensors").unlink()
    os.mkfifo(place / "observed.safetensors")


SPOILED = {
    "another schema version": (lambda place: edit(place, schema=2), "its schema version is 2, this program reads 1"),
    "no schema version": (lambda place: edit(place, schema=None), "its schema version is None"),
    "another definition": (lambda place: edit(place, definition="gqa"), 'definition is "gqa", must be mla_paged'),
    "a missing field": (lambda place: edit(place, contract=None), "contract is missing"),
    "a missing field of the case": (lambda place: edit(place, case={"lengths": [[1, 1, 1]]}), "case: dtype is missing"),
    "an unknown field of the case": (lambda place: _case_with(place, heads=16), "case: heads is no field of a case"),
    "a field that breaks lines": (lambda place: _case_with(place, **{"a\nb": 1}), "case: a?b is no field of a case"),
    "an unknown stratum": (lambda place: _case_with(place, pages="spiral"), "case: pages is 'spiral', must be one of"),
    "unknown strata": (lambda place: edit(place, strata=["pages:spiral"]), "strata is"),
    "an absurd length": (
        lambda place: _case_with(place, lengths=[[1, 1, 1 << 40]]),
        "kv_len is 1099511627776, must be",
    ),
    "an absurd count": (lambda place: _case_with(place, lengths=[[1 << 20, 1 << 22, 1]]), "total_q of lengths"),
    "a fractional length": (lambda place: _case_with(place, lengths=[[1, 1.5, 1]]), "q_len is 1.5, must be an integer"),
    "a contract nobody knows": (lambda place: edit(place, contract="best"), 'contract is "best", must be one of'),
    "a promise nobody knows": (lambda place: edit(place, without=["luck"]), "without is"),
    "a promise the contract lacks": (
        lambda place: (edit(place, contract="definition"), _case_with(place, index_dtype="int64")),
        "the case needs the promise int64-indices, which the contract 'definition' of the dump does not make",
    ),
    "a promise left out": (
        lambda place: edit(place, without=["nan-contained"]),
        "the case needs the promise nan-contained",
    ),
    "a bucket that leads elsewhere": (lambda place: edit(place, bucket="../../evil"), 'bucket is "../../evil"'),
    "a hidden bucket": (lambda place: edit(place, bucket=".evil"), "must be a name without slashes"),
    "a finding of another check": (
        lambda place: edit(place, check="lse"),
        "finding is about 'output', the dump about 'lse'",
    ),
    "a finding without detail": (lambda place: edit(place, finding={"check": "output"}), "finding is"),
    "an index of texts": (
        lambda place: edit(place, finding=record(place)["finding"] | {"index": ["0"]}),
        "must be a finding",
    ),
    "a kernel over two lines": (lambda place: edit(place, kernel="a:b\nc"), "kernel is"),
    "no JSON": (lambda place: (place / "case.json").write_text("case"), "it is truncated, or no JSON"),
    "bare NaN": (lambda place: (place / "case.json").write_text('{"schema": NaN}'), "NaN is not JSON"),
    "an array": (lambda place: (place / "case.json").write_text("[]"), "it is not an object"),
    "deep nesting": (lambda place: (place / "case.json").write_text("[" * 200_000), "it is nested too deeply"),
    "a huge record": (lambda place: (place / "case.json").write_text(" " * (2 << 20)), "bytes are more than"),
    "no record": (lambda place: (place / "case.json").unlink(), "it holds neither a case.json nor failures/"),
    "a truncated record": (_truncate("case.json"), "it is truncated, or no JSON"),
    "truncated inputs": (_truncate("inputs.safetensors"), "it is truncated"),
    "truncated results": (_truncate("observed.safetensors"), "it is truncated"),
    "truncated expectations": (_truncate("expected.safetensors"), "it is truncated"),
    "an empty file": (lambda place: (place / "inputs.safetensors").write_bytes(b""), "it is truncated"),
    "a linked record": (_link("case.json"), "it is a symbolic link"),
    "linked inputs": (_link("inputs.safetensors"), "it is a symbolic link"),
    "a linked workload": (_link("workload.jsonl"), "it is a symbolic link"),
    "a pipe": (_pipe, "it is not a regular file"),
    "another dtype": (
        _tensors("inputs.safetensors", q_pe=torch.zeros(3, 16, 64)),
        "q_pe is F32, must be bfloat16",
    ),
    "a wrong index dtype": (
        _tensors("inputs.safetensors", kv_indptr=torch.zeros(2, dtype=torch.int64)),
        "kv_indptr is I64, must be int32",
    ),
    "another shape": (
        _tensors("inputs.safetensors", q_pe=torch.zeros(4, 16, 64, dtype=torch.bfloat16)),
        "q_pe has shape [4, 16, 64], must be [3, 16, 64]",
    ),
    "other values": (
        _tensors("inputs.safetensors", q_pe=torch.zeros(3, 16, 64, dtype=torch.bfloat16)),
        "q_pe is not what the case builds",
    ),
    "a missing tensor": (_tensors("inputs.safetensors", q_pe=None), "it has no tensor q_pe"),
    "a foreign tensor": (
        _tensors("observed.safetensors", **{"../../evil": torch.zeros(1)}),
        "it has a tensor '../../evil', which does not belong there",
    ),
    "an absurd size": (
        _header(lambda header: header["q_nope"].update(shape=[1 << 40, 16, 512])),
        "q_nope has shape [1099511627776, 16, 512], must be [3, 16, 512]",
    ),
    "a negative size": (_header(lambda header: header["q_nope"].update(shape=[-3, 16, 512])), "has no valid shape"),
    "overlapping tensors": (
        _header(lambda header: header["q_nope"].update(data_offsets=header["ckv_cache"]["data_offsets"])),
        "lies elsewhere in the file",
    ),
    "offsets past the end": (
        _header(lambda header: header["q_nope"].update(data_offsets=[0, 1 << 60])),
        "lies elsewhere in the file",
    ),
    "a header of another form": (_header(lambda header: header.update(q_nope=[1])), "is described in another way"),
    "an absurd header": (
        lambda place: (place / "inputs.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}"),
        "it is truncated",
    ),
    "a workload that leads elsewhere": (
        _workload("../../secret.safetensors"),
        "it leads to '../../secret.safetensors'",
    ),
    "an absolute workload": (_workload("/etc/passwd"), "it leads to '/etc/passwd'"),
    "no workload": (lambda place: (place / "workload.jsonl").write_text("{}"), "it is not one workload"),
}


@pytest.mark.parametrize(("spoil", "reason"), SPOILED.values(), ids=SPOILED)
def test_a_dump_that_is_not_one_is_refused_in_one_line(copy, spoil, reason):
    reading.read(copy / "case.json")
    spoil(copy)
    with pytest.raises(UsageError) as refused:
        [path] = reading.find(copy)
        reading.read(path)
    assert reason in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_link_to_a_dump_is_refused(copy):
    link = copy.parent / "link"
    link.symlink_to(copy)
    for path in (link, link / "case.json"):
        with pytest.raises(UsageError, match="symbolic link"):
            [reading.read(one) for one in reading.find(path)]


def test_a_run_with_a_linked_failure_is_refused(copy):
    failures = copy.parent / "failures"
    failures.mkdir()
    (failures / "link").symlink_to(copy)
    [path] = reading.find(copy.parent)
    with pytest.raises(UsageError, match="symbolic link"):
        reading.read(path)


def test_a_case_that_this_machine_cannot_hold_is_refused(copy, monkeypatch):
    monkeypatch.setattr(reading, "free_memory", lambda device: 1000)
    with pytest.raises(UsageError, match=r"the case takes .* GiB, this machine has 0.0 GiB free"):
        reading.check_memory(reading.read(copy / "case.json"), "cpu")


def test_the_shapes_that_a_case_implies_are_those_that_it_builds():
    for case in (
        CASE,
        Case(((2, 1, 3), (1, 0, 4)), padded_rows=3, spare_indices=5, pages="from-zero", index_dtype="int64"),
    ):
        held = build(case).operands()
        for name, wanted in formats.inputs_of(case).items():
            if name != "sm_scale":
                assert (tuple(held[name].shape), held[name].dtype) == (wanted.shape, next(iter(wanted.dtypes)))


def test_whatever_bytes_change_a_dump_reads_or_is_refused(copy):
    generator = random.Random(1)
    originals = {
        path: path.read_bytes() for path in copy.iterdir() if path.suffix in (".json", ".jsonl", ".safetensors")
    }
    for _ in range(300):
        path = generator.choice(sorted(originals))
        content = bytearray(originals[path])
        for _ in range(generator.randint(1, 4)):
            content[generator.randrange(min(len(content), 4000))] = generator.choice(b'\0\xff"{}[]0-9ae.,:\\/ ')
        path.write_bytes(content[: generator.choice((len(content), generator.randrange(len(content))))])
        try:
            reading.read(copy / "case.json")
        except UsageError as refused:
            assert len(str(refused).splitlines()) == 1 and str(refused).isprintable()
        path.write_bytes(originals[path])
