"""Our definition, kernel and failures as a FlashInfer-Bench trace set, and workloads of anyone's judged."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fuzz.build import build
from fuzz.case import Case
from fuzz.check import check
from fuzz.claims import Claim
from fuzz.cli import main
from fuzz.exchange import definition, export, solution
from fuzz.loading import load
from fuzz.options import UsageError
from fuzz.workload import to_line, workload
from kernel.contract import CKV_DIM, DEFINITION, KPE_DIM, NUM_HEADS, PAGE_SIZE, Inputs
from reference import float64
from tests.reference_inputs import make_inputs

RIGHT, NATURAL = "tests/wrong_kernels.py:right", "tests/wrong_kernels.py:natural_lse"
CASE = Case(lengths=((1, 3, 70), (2, 4, 9)), pages="permuted", spare_pages=2, seed=3)


def written(place: Path, case: Case = CASE, **changes) -> Path:
    """The workload of a case, its file of tensors beside it; `changes` replace inputs, None takes one away."""
    operands = {n: v.contiguous() for n, v in build(case).operands().items() if isinstance(v, torch.Tensor)}
    place.mkdir(parents=True, exist_ok=True)
    save_file(operands, place / "inputs.safetensors")
    line = workload(build(case), "inputs.safetensors", "a test")
    inputs = line["workload"]["inputs"] | changes
    line["workload"]["inputs"] = {name: given for name, given in inputs.items() if given is not None}
    (place / "workload.jsonl").write_text(to_line(line))
    return place / "workload.jsonl"


def checked(*paths: Path, kernel: str = RIGHT, contract: str = "definition", without=(), seed: int = 0) -> int:
    return check(paths, kernel, Claim(contract, tuple(without)), seed, "cpu")


# --- the definition ---


def test_the_definition_says_what_the_contract_says():
    value = definition()
    axes = {name: axis.get("value") for name, axis in value["axes"].items()}
    sizes = {"num_qo_heads": NUM_HEADS, "head_dim_ckv": CKV_DIM, "head_dim_kpe": KPE_DIM, "page_size": PAGE_SIZE}
    assert value["name"] == DEFINITION
    assert {name: size for name, size in axes.items() if size is not None} == sizes
    assert list(value["inputs"]) == list(build(CASE).operands()) and list(value["outputs"]) == ["output", "lse"]
    used = {axis for kind in ("inputs", "outputs") for spec in value[kind].values() for axis in spec["shape"] or ()}
    assert used == set(axes)
    inputs = build(CASE)
    for name, spec in value["inputs"].items():
        operand = getattr(inputs, name)
        if spec["shape"] is not None:
            assert operand.dtype == getattr(torch, spec["dtype"])
            assert all(axes[axis] in (None, size) for axis, size in zip(spec["shape"], operand.shape, strict=True))


def test_the_reference_of_the_definition_agrees_with_ours():
    names: dict[str, object] = {}
    exec(definition()["reference"], names)
    inputs = make_inputs([(3, 70), (5, 2), (0, 4), (2, 0)])
    output, lse = names["run"](**inputs.operands())
    golden, golden_lse = float64.attention(inputs)
    torch.testing.assert_close(output.double(), golden, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(lse.double(), golden_lse, atol=1e-4, rtol=1e-4)


# --- our kernel as a solution ---


def test_our_kernel_as_a_solution_is_a_kernel_under_test(tmp_path):
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(solution()))
    target = load(str(path))
    assert target.destination_passing
    inputs = make_inputs([(2, 5)])
    output, lse = target(inputs)
    golden, golden_lse = float64.attention(inputs)
    torch.testing.assert_close(output.double(), golden, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(lse.double(), golden_lse, atol=1e-4, rtol=1e-4)


# --- workloads ---


def test_a_right_kernel_passes_a_workload_and_a_wrong_one_fails_it_with_the_finding(tmp_path, capsys):
    path = written(tmp_path)
    assert checked(path, contract="serving") == 0
    assert re.match(
        r"PASSED [0-9a-f-]{36} \(.*workload.jsonl:1; 3 requests, 11 queries, 88 keys\): output \d",
        capsys.readouterr().out,
    )
    assert checked(path, path, kernel=NATURAL) == 1
    out = capsys.readouterr().out
    assert out.count("FAILED") == 3 and out.endswith("0 PASSED, 2 FAILED, 0 ERROR\n")
    assert "looks like the natural logarithm (ln instead of log2)" in out
    assert checked(path, kernel=NATURAL, without=["lse"]) == 0


def test_checks_that_call_the_kernel_again_run_too(tmp_path, capsys):
    kernel = tmp_path / "tiring.py"
    kernel.write_text(
        "from tests.wrong_kernels import right\ncalls = []\n"
        "def run(**operands):\n"
        "    output, lse = right(**operands)\n"
        "    calls.append(0)\n"
        "    return output, lse + 1e-6 * (len(calls) > 1)\n"
    )
    path = written(tmp_path)
    assert checked(path, kernel=f"{kernel}:run", contract="serving") == 1
    assert "    repeatable: the same call again: " in capsys.readouterr().out


def test_random_inputs_follow_from_the_seed(tmp_path, monkeypatch):
    seen = []

    def recorded(inputs: Inputs, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(inputs.q_nope.clone())
        output, lse = float64.attention(inputs)
        return output.bfloat16(), lse.float()

    monkeypatch.setattr("fuzz.target.Function.__call__", lambda self, *arguments: recorded(*arguments))
    random = {"type": "random"}
    path = written(tmp_path, q_nope=random, q_pe=random, ckv_cache=random, kpe_cache=random)
    assert [checked(path, seed=seed) for seed in (0, 0, 1)] == [0, 0, 0]
    first, again, other = seen[:: len(seen) // 3]
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert 0.9 < first.float().std() < 1.4 and first.shape == (11, 16, 512)


def test_tensors_are_found_from_the_root_of_a_trace_set(tmp_path):
    deep = tmp_path / "workloads" / "mla_paged"
    path = written(deep)
    (deep / "inputs.safetensors").rename(tmp_path / "inputs.safetensors")
    assert checked(path) == 0


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kv_indices": {"type": "random"}}, "input kv_indices is random: an index must have a value"),
        ({"q_pe": None}, "input q_pe is missing"),
        ({"q_pe": {"type": "custom"}}, "input q_pe is of the type 'custom', must be safetensors or random"),
        ({"sm_scale": {"type": "scalar", "value": "1"}}, "input sm_scale must be a scalar with a value"),
        ({"q_pe": {"type": "safetensors", "path": "inputs.safetensors"}}, "q_pe has no path or no tensor_key"),
        (
            {"q_pe": {"type": "safetensors", "path": "../x", "tensor_key": "q_pe"}},
            "input q_pe: the path '../x' leads out of the trace set",
        ),
        (
            {"q_pe": {"type": "safetensors", "path": "absent.safetensors", "tensor_key": "q_pe"}},
            "q_pe: there is no absent.safetensors beside the file or above it",
        ),
        (
            {"q_pe": {"type": "safetensors", "path": "inputs.safetensors", "tensor_key": "absent"}},
            "q_pe: inputs.safetensors: ",
        ),
        (
            {"q_pe": {"type": "safetensors", "path": "inputs.safetensors", "tensor_key": "q_nope"}},
            "q_pe has shape [11, 16, 512], its axes say [11, 16, 64]",
        ),
        (
            {"kv_indptr": {"type": "safetensors", "path": "inputs.safetensors", "tensor_key": "floats"}},
            "kv_indptr is torch.float32, must be torch.int32",
        ),
    ],
)
def test_a_workload_that_cannot_be_read_is_an_error_that_names_the_line(tmp_path, capsys, changes, complaint):
    path = written(tmp_path, **changes)
    operands = {name: torch.empty(0) for name in ()} | {
        n: v.contiguous() for n, v in build(CASE).operands().items() if isinstance(v, torch.Tensor)
    }
    save_file(operands | {"floats": torch.zeros(4)}, tmp_path / "inputs.safetensors")
    assert checked(path) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mla-fuzz: ERROR {path}:1: ") and complaint in line


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "1: Expecting property name"),
        ("[]", "1: it is no trace"),
        ('{"definition": "gemm", "workload": {}}', "1: it is a workload of 'gemm', not of mla_paged_prefill"),
        (json.dumps({"definition": DEFINITION, "workload": {"uuid": "u"}}), "1: its workload has no axes"),
        (
            json.dumps({"definition": DEFINITION, "workload": {"uuid": "u", "axes": {"total_q": -1}, "inputs": {}}}),
            "1: axis total_q is -1, must be a number of elements",
        ),
    ],
)
def test_a_line_that_is_no_workload_is_an_error_and_the_others_are_judged(tmp_path, capsys, text, complaint):
    path = written(tmp_path)
    path.write_text(f"{text}\n\n{path.read_text()}")
    assert checked(path) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err and printed.out.endswith("1 PASSED, 0 FAILED, 1 ERROR\n")


def test_a_file_without_workloads_is_status_2(tmp_path, capsys):
    (tmp_path / "empty.jsonl").touch()
    assert checked(tmp_path / "empty.jsonl") == 2
    assert checked(tmp_path / "absent.jsonl") == 2
    assert "absent.jsonl: No such file or directory" in capsys.readouterr().err


def test_a_workload_that_takes_more_memory_than_there_is_is_refused_before_it_is_taken(tmp_path, capsys):
    path = written(tmp_path, q_nope={"type": "random"})
    path.write_text(path.read_text().replace('"total_q": 11', f'"total_q": {1 << 36}'))
    assert checked(path) == 2
    assert "GiB, this machine has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("case", "promise"),
    [
        (Case(lengths=((1, 3, 2),), poison="decoys"), "masked-rows"),
        (Case(lengths=((1, 1, 2),), padded_rows=1, poison="decoys"), "padding"),
        (Case(lengths=((1, 1, 2),), spare_pages=1), "nan-contained"),
        (Case(lengths=((1, 3, 3),), values="nonfinite-seen", poison="decoys"), "causal-contained"),
        (Case(lengths=((1, 2, 9),), pages="garbage", poison="decoys"), "hardened"),
    ],
)
def test_a_workload_is_judged_only_if_the_kernel_promises_what_it_needs(tmp_path, capsys, case, promise):
    path = written(tmp_path, case)
    assert checked(path, contract="hardened", without=[promise]) == 2
    assert f"it needs the promise {promise}, which the contract lacks: " in capsys.readouterr().err
    assert checked(path, contract="hardened") == 0


# --- the trace set ---


@pytest.fixture(scope="module")
def trace_set(tmp_path_factory) -> Path:
    """A trace set with the failures of a kernel."""
    place = tmp_path_factory.mktemp("exchange")
    arguments = ["--kernel", NATURAL, "--max-cases", "6", "--seed", "1", "-n", "0", "--device", "cpu"]
    assert main(["run", *arguments, "--out", str(place / "run")]) == 1
    assert main(["export", str(place / "set"), str(place / "run")]) == 0
    return place / "set"


def test_the_trace_set_has_everything_in_its_place(trace_set):
    files = {str(path.relative_to(trace_set)) for path in trace_set.rglob("*") if path.is_file()}
    [blob] = [file for file in files if file.endswith(".safetensors")]
    assert files == {
        f"definitions/mla_paged/{DEFINITION}.json",
        "solutions/mla_paged/mla_fuzz_triton.json",
        f"workloads/mla_paged/{DEFINITION}.jsonl",
        blob,
    }
    [line] = (trace_set / f"workloads/mla_paged/{DEFINITION}.jsonl").read_text().splitlines()
    value = json.loads(line)
    assert value["solution"] is value["evaluation"] is None
    specs, given = definition(), value["workload"]
    assert given.keys() == {"uuid", "axes", "inputs"} and given["inputs"].keys() == specs["inputs"].keys()
    assert given["axes"].keys() == {name for name, axis in specs["axes"].items() if axis["type"] == "var"}
    for name, place in given["inputs"].items():
        wanted = {"type": "safetensors", "path": blob, "tensor_key": name}
        assert place == wanted or (name == "sm_scale" and math.isfinite(place["value"]))


def test_the_workloads_of_a_trace_set_fail_the_kernel_that_they_come_from_and_pass_ours(trace_set):
    path = trace_set / f"workloads/mla_paged/{DEFINITION}.jsonl"
    assert main(["check", str(path), "--kernel", NATURAL]) == 1
    ours = str(trace_set / "solutions/mla_paged/mla_fuzz_triton.json")
    assert main(["check", str(path), "--kernel", ours]) == 0


def test_a_trace_set_is_not_written_into_a_directory_of_something_else(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match="it is there already, and no trace set"):
        export(tmp_path, [])


def test_flashinfer_bench_reads_the_trace_set(trace_set):
    data = pytest.importorskip("flashinfer_bench.data", reason="the package flashinfer-bench is not installed")
    read = data.TraceSet.from_path(str(trace_set))
    assert list(read.definitions) == [DEFINITION]
    [ours] = read.solutions[DEFINITION]
    assert ours.get_entry_symbol() == "run" and ours.spec.language == "triton"
    [trace] = read.workloads[DEFINITION]
    assert trace.is_workload_trace()
    specs = read.definitions[DEFINITION]
    from flashinfer_bench.bench.utils import load_safetensors

    tensors = load_safetensors(specs, trace.workload, trace_set)
    assert set(tensors) == set(specs.inputs) - {"sm_scale"}
    shapes = dict(zip(specs.inputs, specs.get_input_shapes(trace.workload.axes), strict=True))
    assert all(list(tensor.shape) == shapes[name] for name, tensor in tensors.items())


def test_flashinfer_bench_builds_our_solution_and_runs_it(trace_set, tmp_path, monkeypatch):
    pytest.importorskip("flashinfer_bench.data", reason="the package flashinfer-bench is not installed")
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
    from flashinfer_bench.compile.builders import TritonBuilder
    from flashinfer_bench.data import TraceSet

    read = TraceSet.from_path(str(trace_set))
    runnable = TritonBuilder().build(read.definitions[DEFINITION], read.solutions[DEFINITION][0])
    inputs = make_inputs([(2, 5)])
    output, lse = torch.empty(2, 16, 512, dtype=torch.bfloat16), torch.empty(2, 16)
    runnable.call_destination_passing(*inputs.operands().values(), output, lse)
    golden, golden_lse = float64.attention(inputs)
    torch.testing.assert_close(output.double(), golden, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(lse.double(), golden_lse, atol=1e-4, rtol=1e-4)
