"""The judge: each way of being wrong fails the check that is named for it, and a correct kernel passes them all."""

import math
import re
from dataclasses import replace

import pytest
import torch

import fuzz.checks
import kernel
from fuzz.build import build
from fuzz.case import Case
from fuzz.checks import CHECKS, elsewhere, is_made, judge, memory, results, storage
from fuzz.checks.elsewhere import Elsewhere
from fuzz.checks.invariance import INVARIANCES
from fuzz.checks.numeric import beyond_rounding, expected_of
from fuzz.target import Function, Target
from kernel.contract import CONTRACTS
from reference.bounds import interval

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALL = frozenset(INVARIANCES)
CASE = Case(lengths=((1, 3, 70), (1, 5, 2), (1, 2, 9)), pages="permuted", spare_pages=2, padded_rows=1, seed=6)


@pytest.fixture(autouse=True)
def no_invariance_by_chance(monkeypatch):
    monkeypatch.setattr(fuzz.checks, "_drawn", lambda case, contract: set())


def target(function, *, buffers: bool = True) -> Function:
    return Function("tests:kernel", function, buffers)


def tampered(tamper) -> Target:
    """Our kernel, with its results changed by `tamper(output, lse)`."""

    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        tamper(output, lse)

    return target(run)


def failures(tested: Target, case: Case = CASE, contract: str = "hardened", also=frozenset()) -> dict[str, str]:
    verdict = judge(case, tested, device=DEVICE, contract=CONTRACTS[contract], also=also)
    return {finding.check: str(finding) for finding in verdict.findings}


def test_a_finding_tells_the_variant_of_its_row_where_the_kernel_does():
    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        output[4, 2, 17] = 1e9

    def wrong(device):
        target = Elsewhere(Function("tests:kernel", run, True), torch.device(device))
        [finding] = judge(CASE, target, device="cpu", contract=CONTRACTS["hardened"]).findings
        return finding

    assert wrong(DEVICE).variant == ""
    run.variant = lambda *, row, kv_indices, **operands: f"{kv_indices.device.type}-{row}"
    assert wrong(DEVICE).variant == f"{DEVICE}-4"


def test_our_kernel_passes_every_check():
    verdict = judge(CASE, target(kernel.run), device=DEVICE, contract=CONTRACTS["hardened"], also=ALL)
    made = [name for name in verdict.ran if name in ALL]
    assert made == [name for name in INVARIANCES if name in made], "the order in which findings are told"
    assert not verdict.findings
    on_gpu = {"side-stream", "graph"} if DEVICE == "cuda" else set()
    assert set(verdict.ran) | {"other-device"} == set(CHECKS) - {"side-stream", "graph"} | on_gpu
    assert 0.1 < verdict.ran["output"] <= 1
    assert 0 < verdict.ran["lse"] <= 1


def set_element(index, value):
    def tamper(output, lse):
        (output if len(index) == 3 else lse)[index] = value

    return tamper


EMPTY, ROW = 3, 1  # of CASE: row 3 sees no key, row 1 sees 69
FAULTS = {
    "a NaN": (set_element((ROW, 5, 17), math.nan), "output", "[1, 5, 17]"),
    "an Inf": (set_element((ROW, 0, 0), math.inf), "output", "[1, 0, 0]"),
    "a NaN in the LSE": (set_element((ROW, 5), math.nan), "lse", "[1, 5]"),
    "an LSE of -inf": (set_element((ROW, 5), -math.inf), "lse", "[1, 5]"),
    "an LSE of +inf for an empty row": (set_element((EMPTY, 2), math.inf), "empty-rows", "[3, 2]"),
    "a finite LSE for an empty row": (set_element((EMPTY, 2), -5e4), "empty-rows", "[3, 2]"),
    "a NaN LSE for an empty row": (set_element((EMPTY, 2), math.nan), "empty-rows", "[3, 2]"),
    "-0 in an empty row": (set_element((EMPTY, 2, 1), -0.0), "empty-rows", "[3, 2, 1]"),
    "a number in a padded row": (set_element((10, 2, 1), 1e-30), "empty-rows", "[10, 2, 1]"),
    "one wrong element": (set_element((ROW, 15, 511), 0.75), "output", "[1, 15, 511]"),
}


@pytest.mark.parametrize(("tamper", "check", "index"), FAULTS.values(), ids=FAULTS)
def test_one_wrong_element_fails_with_its_index(tamper, check, index):
    found = failures(tampered(tamper))
    assert set(found) == {check}
    assert f"at {index}" in found[check] and "got " in found[check] and "expected " in found[check]


def test_one_ulp_beyond_the_interval_fails_and_its_edge_passes():
    inputs = build(CASE, DEVICE)
    _low, high = interval(expected_of(CASE, inputs), torch.bfloat16)
    where = (ROW, 4, 100)

    def beyond(output, lse):
        output[where] = high[where]
        output.view(torch.int16)[where] += 1 if high[where] > 0 else -1

    assert set(failures(tampered(set_element(where, high[where])), CASE)) <= {"output"}
    message = failures(tampered(beyond))["output"]
    assert re.search(r"at \[1, 4, 100\], got .*, expected .*, allowed .* to .*, ratio 1\.\d", message)
    assert "row 1 is query 1 of 3 of request 0 and sees 69 of 70 keys" in message


def test_an_element_at_the_end_of_its_interval_passes_however_close_to_the_bound_that_is():
    inputs = build(CASE, DEVICE)
    expected = expected_of(CASE, inputs)
    for end in interval(expected, torch.bfloat16):
        ratio = (beyond_rounding(end, expected.output) / expected.output_error)[ROW]
        where = (ROW, *(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape)))
        assert 0.99 < ratio.max() <= 1
        assert failures(tampered(set_element(where, end[where])), CASE) == {}


def test_one_wrong_element_in_a_million_fails():
    case = Case(lengths=((1, 128, 1),), seed=3)
    found = failures(tampered(set_element((127, 3, 200), 3.0)), case)
    assert "1 of 1048576 elements are outside the bound" in found["output"]


def test_a_transposed_lse_fails():
    case = Case(lengths=((1, 16, 40),), seed=5)

    def transpose(output, lse):
        lse.copy_(lse.T.clone())

    assert set(failures(tampered(transpose), case)) == {"lse"}


def test_our_kernel_passes_every_check_on_copies():
    for buffers in (True, False):
        tested = moved(target(kernel.run, buffers=buffers))
        verdict = judge(CASE, tested, device="cpu", contract=CONTRACTS["hardened"], also=ALL)
        assert not verdict.findings and verdict.ran["output"] > 0.1


def test_an_unwritten_row_fails_in_a_buffer_and_in_own_memory():
    def skips_a_row(*, output, lse, **operands):
        full, full_lse = kernel.run(**operands)
        output[:2], output[3:] = full[:2], full[3:]
        lse.copy_(full_lse)

    def returns_fresh_memory(**operands):
        output, lse = torch.empty_like(operands["q_nope"]), torch.empty(operands["q_nope"].shape[:2], device=DEVICE)
        skips_a_row(output=output, lse=lse, **operands)
        return output, lse

    for tested in (target(skips_a_row), target(returns_fresh_memory, buffers=False)):
        assert "8192 of 90112 elements of output were not written" in failures(tested)["written"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scratch_holds_nan_and_large_numbers_by_turns(dtype):
    """NaN, as 0 * NaN shows; numbers, as they show where NaN is due and where a maximum passes over NaN."""
    scratch = []

    def run(*, output, lse, **operands):
        scratch.append(torch.empty(2, 3, dtype=dtype, device=output.device).flatten().float())
        kernel.run(**operands, output=output, lse=lse)

    assert not failures(target(run))
    assert scratch[0].isnan().tolist() == [True, True, False, False, True, True]
    assert (scratch[0][2:4] > 1e4).all()


def test_an_operator_may_leave_some_of_its_results_undefined(monkeypatch):
    """No operator of torch does on the CPU; FlashAttention-3 does, where a context is not split."""
    dispatch = results._PoisonedAllocations.__torch_dispatch__

    def leaves_one_undefined(mode, function, *rest):
        if function is not torch.ops.aten.unbind.int:
            return dispatch(mode, function, *rest)
        return dispatch(mode, lambda *_, **__: [torch.ones(2), None], *rest)

    monkeypatch.setattr(results._PoisonedAllocations, "__torch_dispatch__", leaves_one_undefined)
    with results._PoisonedAllocations(scratch=False):
        first, second = torch.zeros(2, 2).unbind()
    assert first.tolist() == [1, 1] and not second.numel()


def test_a_compiled_kernel_is_judged_compiled():
    compiled = []

    def backend(graph, example):
        compiled.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def doubled(x):
        return 2 * x

    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        doubled(lse)

    assert not failures(target(run))
    assert compiled


def test_a_result_cached_by_pointer_fails_as_stale():
    cached = {}

    def run(**operands):
        pointer = operands["q_nope"].data_ptr()
        if pointer not in cached:
            cached[pointer] = kernel.run(**operands)
        return cached[pointer]

    assert set(failures(target(run, buffers=False), also={"fresh"})) == {"fresh"}


def moved(tested: Target) -> Elsewhere:
    return Elsewhere(tested, torch.device(DEVICE))


@pytest.mark.parametrize("where", [lambda tested: tested, moved], ids=["in place", "on copies"])
def test_writes_outside_the_results_are_seen(where):
    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        output.as_strided((1,), (1,), output.storage_offset() - 1).fill_(0)

    assert "memory around output was written" in failures(where(target(run)))["in-bounds"]


def _as_if_contiguous(buffer: torch.Tensor) -> torch.Tensor:
    strides = torch.empty(buffer.shape, device="meta").stride()
    return buffer.as_strided(buffer.shape, strides, buffer.storage_offset())


@pytest.mark.parametrize("where", [lambda tested: tested, moved], ids=["in place", "on copies"])
@pytest.mark.parametrize("name", ["output", "lse"])
def test_a_given_result_that_is_taken_for_contiguous_is_seen_where_it_is_not(name, where):
    def run(*, output, lse, **operands):
        given = {"output": output, "lse": lse}
        kernel.run(**operands, **given | {name: _as_if_contiguous(given[name])})

    other = {"output": "lse", "lse": "output"}[name]
    for seed in range(4):
        case = replace(CASE, seed=seed)
        assert not failures(where(target(run)), replace(case, layout=f"given-{other}"))
        assert not failures(where(target(kernel.run)), replace(case, layout=f"given-{name}"))
        assert {"written", name} & failures(where(target(run)), replace(case, layout=f"given-{name}")).keys()


def test_checks_that_call_the_kernel_again_give_it_results_of_the_same_layout():
    seen = set()

    def run(*, output, lse, **operands):
        seen.add((output.stride(), lse.stride()))
        kernel.run(**operands, output=output, lse=lse)

    assert not failures(target(run), replace(CASE, layout="given-output"), also=ALL - {"batch-invariant"})
    assert len(seen) == 1 and not seen & {((8192, 512, 1), (16, 1))}


def test_an_output_whose_rows_lie_far_apart_shows_an_offset_of_32_bits():
    case = Case(lengths=((1, 3, 20),), layout="wide-output")

    def run(*, output, lse, **operands):
        full, full_lse = kernel.run(**operands)
        lse.copy_(full_lse)
        for row in range(3):
            wrapped = (row * output.stride(0) + (1 << 31)) % (1 << 32) - (1 << 31)
            output.as_strided(output.shape[1:], output.stride()[1:], output.storage_offset() + wrapped).copy_(full[row])

    assert not failures(target(kernel.run), case)
    assert "8192 of 24576 elements of output were not written" in failures(target(run), case)["written"]


@pytest.mark.parametrize("where", [lambda tested: tested, moved], ids=["in place", "on copies"])
def test_changed_operands_are_seen(where):
    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        operands["kv_indices"][3] += 1

    assert "kv_indices was changed by the call (1 of 81 elements) at [3]" in failures(where(target(run)))[
        "inputs-untouched"
    ].replace(", at", " at")


@pytest.mark.parametrize("limit", [memory._COPY_LIMIT, 1 << 12], ids=["all of it kept", "samples of large operands"])
@pytest.mark.parametrize("name", ["q_nope", "q_pe", "ckv_cache", "kpe_cache", "qo_indptr", "kv_indptr", "kv_indices"])
def test_a_byte_changed_around_an_operand_is_seen_and_named(monkeypatch, name, limit):
    monkeypatch.setattr(memory, "_COPY_LIMIT", limit)

    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        storage = operands[name].untyped_storage()
        torch.empty(0, dtype=torch.uint8, device=DEVICE).set_(storage)[-1] ^= 1

    assert failures(target(run)) == {"in-bounds": f"in-bounds: memory around {name} was written"}


@pytest.mark.parametrize(("in_order", "waits"), [(True, 1), (False, 3)])
def test_a_kernel_that_keeps_to_the_stream_is_waited_for_once(monkeypatch, in_order, waits):
    waited = []
    for module in (elsewhere, storage):
        monkeypatch.setattr(module, "wait_for", waited.append)
    inputs = build(CASE)
    output, lse = torch.empty(11, 16, 512, dtype=torch.bfloat16), torch.empty(11, 16)
    Elsewhere(target(kernel.run), torch.device(DEVICE), in_order=in_order)(inputs, output, lse)
    assert len(waited) == waits


def test_an_exception_is_a_failure_of_alive():
    def run(**operands):
        raise RuntimeError("no such layout")

    assert failures(target(run, buffers=False)) == {"alive": "alive: RuntimeError: no such layout"}


WRONG_FORMS = {
    "output": (lambda output, lse: (output.float(), lse), "torch.float32"),
    "lse": (lambda output, lse: (output, lse.T), "shape (16, 11)"),
}


@pytest.mark.parametrize("name", WRONG_FORMS)
def test_results_of_another_form_fail_before_numbers_are_compared(name):
    change, message = WRONG_FORMS[name]
    found = failures(target(lambda **operands: change(*kernel.run(**operands)), buffers=False))
    assert set(found) == {name} and message in found[name]


def test_bits_that_change_from_call_to_call_are_not_repeatable():
    calls = []

    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        calls.append(None)
        lse[0, 0] += len(calls) * 1e-5

    assert "repeatable" in failures(target(run), also={"repeatable"})


def test_a_result_that_depends_on_page_names_is_not_page_invariant():
    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        lse[0, 0] += 5e-7 * int(operands["kv_indices"][0])

    assert "page-invariant" in failures(target(run), also={"page-invariant"})


def test_a_result_that_depends_on_the_batch_is_not_batch_invariant():
    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        lse[0] += 1e-6 * operands["qo_indptr"].shape[0]
        lse[-2] += 1e-6 * operands["qo_indptr"].shape[0]

    assert "batch-invariant" in failures(target(run), also={"batch-invariant"})


def test_a_request_alone_has_its_results_as_far_apart_as_in_the_batch():
    """A kernel may go by strides, and those of a buffer made for fewer rows are others."""

    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        lse.mul_(1 + 1e-6 * (output.stride(1) % 7))

    heads_first = replace(CASE, layout="given-output", seed=0)
    assert "batch-invariant" not in failures(target(run), heads_first, also={"batch-invariant"})


def test_a_result_that_depends_on_later_keys_is_not_causal():
    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        lse[0] += 1e-5 * operands["ckv_cache"][operands["kv_indices"][-1], 0, 0].float()

    assert "causality" in failures(target(run), Case(lengths=((1, 3, 70),)), also={"causality"})


def test_a_result_that_depends_on_dead_pages_fails():
    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        lse[0] += torch.where(operands["ckv_cache"][0, 0, 0].isnan(), 0.0, 1e-6)

    assert "dead-content" in failures(target(run), also={"dead-content"})


def test_a_kernel_without_repeatable_bits_is_judged_by_the_bound():
    calls = []

    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        calls.append(None)
        lse[:3] += 1e-7 * (len(calls) % 2)

    case = Case(lengths=((1, 3, 70),), seed=1)
    assert not failures(target(run), case, "definition", also={"dead-content", "causality", "fresh"})


def test_a_check_is_made_where_its_promise_is():
    serving = CONTRACTS["serving"] - {"lse", "batch-invariant"}
    not_made = {check for check in CHECKS if not is_made(check, serving)}
    assert not_made == {"lse", "batch-invariant"} and is_made("memcheck", serving)
    assert all(is_made(check, CONTRACTS["hardened"]) for check in CHECKS)


def test_a_case_that_needs_more_than_the_contract_is_refused():
    with pytest.raises(ValueError, match="needs the promise masked-rows, padding"):
        judge(CASE, target(kernel.run), device=DEVICE, contract=CONTRACTS["definition"])


def test_keys_with_nan_must_reach_the_rows_that_see_them_and_no_other():
    case = Case(lengths=((1, 5, 67),), values=_contaminating(), seed=2)
    assert not failures(target(kernel.run), case)

    def hides(output, lse):
        output.nan_to_num_(0.0)
        lse.nan_to_num_(0.0)

    assert set(failures(tampered(hides), case)) == {"output", "lse"}


def _contaminating() -> str:
    from fuzz.strata.values import VALUES

    return next(name for name, values in VALUES.items() if not values.finite)


@pytest.mark.parametrize(
    "case", [CASE, Case(lengths=((3, 5, 9), (1, 0, 4), (2, 7, 3)), pages="shared-prefix")], ids=str
)
def test_rows_judged_in_windows_give_the_same_verdict(monkeypatch, case):
    whole = judge(case, target(kernel.run), device=DEVICE, contract=CONTRACTS["hardened"])
    monkeypatch.setattr(fuzz.checks.windows, "ROWS", 3)
    parts = judge(case, target(kernel.run), device=DEVICE, contract=CONTRACTS["hardened"])
    assert not whole.findings and not parts.findings
    assert parts.ran.keys() == whole.ran.keys()
    assert parts.ran["output"] == pytest.approx(whole.ran["output"], rel=1e-3)
    assert failures(tampered(set_element((ROW + 6, 5, 17), 9.0)), case)["output"].count("at [7, 5, 17]") == 1


def test_a_huge_operand_is_sampled(monkeypatch):
    monkeypatch.setattr(fuzz.checks.memory, "_COPY_LIMIT", 1 << 14)

    def run(*, output, lse, **operands):
        kernel.run(**operands, output=output, lse=lse)
        operands["ckv_cache"][operands["kv_indices"][0]] = 0

    assert "ckv_cache was changed by the call" in failures(target(run))["inputs-untouched"]
