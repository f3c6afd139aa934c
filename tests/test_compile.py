"""Every shipped variant compiles for each architecture, without what a GPU would suffer from.

Triton compiles for a GPU that is not there, and carries ptxas. In a child process, as this one may run the interpreter.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

# Shared memory that one program may have, in bytes; 8.6 and 8.9 have the least of all since Ampere.
SHARED_LIMIT = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448}
# How prefill_hopper comes by its items, and whether it runs beside `short`.
_WAYS = (("listed", "listed", False), ("found", "found", False), ("one", "one", False), ("beside short", "found", True))


@pytest.fixture(scope="module", params=SHARED_LIMIT, ids=lambda capability: f"sm_{capability}")
def compiled(request) -> tuple[int, dict[str, dict]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_compile", str(request.param)],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return request.param, json.loads(done.stdout.splitlines()[-1])


def test_shared_memory_within_the_limit(compiled):
    capability, reports = compiled
    limit = SHARED_LIMIT[capability]
    assert {name: report["shared"] for name, report in reports.items() if report["shared"] > limit} == {}


def test_loops_over_keys_do_not_spill(compiled):
    """A spill counts where it is reloaded at every step: in the innermost loops with matrix products."""
    capability, reports = compiled
    if capability == 90:
        looping = ("prefill", "lone")
        assert {name: reports[name]["local_in_loops"] for name in looping} == dict.fromkeys(looping, 0)


def test_the_kernel_of_small_work_does_not_spill(compiled):
    _, reports = compiled
    assert "0 bytes spill stores, 0 bytes spill loads" in reports["short"]["messages"]


def test_hopper_multiplies_with_wgmma_that_is_not_serialised(compiled):
    capability, reports = compiled
    if capability == 90:
        for name in ("prefill", *(f"prefill_hopper, {name}" for name, _items, _beside in _WAYS)):
            assert reports[name]["wgmma"] > 0
            assert "C75" not in reports[name]["messages"]
        # [8, 1] would be both warpgroups on all keys: twice the work.
        assert set(reports["prefill"]["layouts"]) == {"[4, 2]"}


def _compile(capability: int) -> dict[str, dict]:
    from kernel import lone, merge, plan, prefill, short

    chosen = plan.plan_for(divmod(capability, 10))
    reports = {
        "short": _report(short.short, chosen.short_constants(True, "one"), chosen.options("short"), capability),
        "short, all": _report(short.short, chosen.short_constants(True, "all"), chosen.options("short"), capability),
        "prefill": _report(prefill.prefill, chosen.prefill_constants(True), chosen.options("prefill"), capability),
        "lone": _report(lone.lone, chosen.lone_constants(True), chosen.options("lone"), capability),
        "merge": _report(merge.merge, chosen.merge_constants, chosen.options("merge"), capability),
    }
    return reports | (_compile_for_hopper() if capability == 90 else {})


def _compile_for_hopper() -> dict[str, dict]:
    """What takes the place of `lone` and `prefill` there."""
    from triton.experimental.gluon._runtime import GluonASTSource

    from kernel import plan, prefill_hopper, rest, schedule

    listed = replace(plan.plan_for((9, 0)), listed=True)
    reports = {"schedule": _report(schedule.schedule, listed.schedule_constants, listed.options("schedule"), 90)}
    for name, items, beside in _WAYS:
        constants, options = listed.hopper_constants(True, items, beside), listed.options("prefill_hopper")
        reports[f"prefill_hopper, {name}"] = _report(
            prefill_hopper.prefill_hopper, constants, options, 90, GluonASTSource
        )
    for name, from_list in (("listed", True), ("found", False)):
        constants, options = listed.rest_constants(from_list, True), listed.options("rest")
        reports[f"rest, {name}"] = _report(rest.rest, constants, options, 90)
    return reports


def _report(kernel, constants: dict, options: dict, capability: int, source_class: type | None = None) -> dict:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = dict.fromkeys(("q_nope", "q_pe", "ckv_cache", "kpe_cache", "output"), "*bf16")
    types |= dict.fromkeys(("lse", "scratch", "scratch_lse"), "*fp32")
    types |= dict.fromkeys(("qo_indptr", "kv_indptr", "kv_indices", "items"), "*i32")
    signature = {p.name: "constexpr" if p.is_constexpr else types.get(p.name, p.annotation_type) for p in kernel.params}
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = (source_class or ASTSource)(fn=kernel, signature=signature, constexprs=constexprs)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return {
        "shared": built.metadata.shared,
        "wgmma": built.asm["ptx"].count("wgmma.mma_async"),
        "layouts": re.findall(r"nvidia_mma<.*?warpsPerCTA = (\[.*?\])", built.asm["ttgir"]),
    } | _assembled(built.asm["ptx"], capability)


def _assembled(ptx: str, capability: int) -> dict:
    """What ptxas says, and how many accesses to local memory the loops with matrix products hold."""
    import tempfile

    import triton

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    ptxas = tools / ("ptxas-blackwell" if capability >= 100 and (tools / "ptxas-blackwell").exists() else "ptxas")
    with tempfile.TemporaryDirectory() as folder:
        text, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        text.write_text(ptx)
        target = f"sm_{capability}" + ("a" if capability >= 90 else "")
        done = subprocess.run([ptxas, "-v", "--gpu-name", target, text, "-o", binary], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        listing = subprocess.run([tools / "nvdisasm", "-c", binary], capture_output=True, text=True, check=True).stdout
    return {"messages": done.stderr, "local_in_loops": _local_in_loops(listing.splitlines())}


def _local_in_loops(lines: list[str]) -> int:
    """Local loads and stores in the innermost loops that multiply matrices."""
    labels = {line.strip().rstrip(":"): i for i, line in enumerate(lines) if re.match(r"\s*\.L_x_\d+:", line)}
    branches = [(re.search(r"BRA.*`\((\.L_x_\d+)\)", line), i) for i, line in enumerate(lines)]
    jumps = [(labels.get(target[1], i), i) for target, i in branches if target]
    loops = [(start, end) for start, end in jumps if start < end and any("MMA." in line for line in lines[start:end])]
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return sum(bool(re.search(r"\b(LDL|STL)\b", line)) for start, end in inner for line in lines[start:end])


if __name__ == "__main__":
    print(json.dumps(_compile(int(sys.argv[1]))))
