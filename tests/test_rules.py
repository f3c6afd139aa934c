"""The published rules do what their sources do, quirks included; ours kills most, without a false alarm."""

import math
import re
from pathlib import Path

import pytest
import torch

from fuzz.build import build
from fuzz.case import Case
from fuzz.checks.finding import Verdict
from fuzz.checks.memory import check_written
from fuzz.checks.numeric import check_numbers, expected_of
from fuzz.checks.results import Results, call
from fuzz.document import part
from fuzz.rules import published
from fuzz.rules.baselines import flash_attention, flex_attention
from fuzz.rules.comparison import Comparison
from fuzz.rules.emulation import CORRECT, FAULTS, truncated
from fuzz.rules.inputs import STRATA, SUITES
from fuzz.rules.ours import accepts
from fuzz.rules.report import render
from fuzz.rules.table import ALL_RULES, judge_all, score
from fuzz.target import Function
from reference import float64

NAN, INF = math.nan, math.inf


def compared(output=None, lse=None, golden_output=None, golden_lse=None, low_precision=None, eager=None) -> Comparison:
    """A comparison of one-dimensional results of 1000 and 10 elements; all ones where not given."""
    golden_output = torch.ones(1000, dtype=torch.float64) if golden_output is None else golden_output.double()
    golden_lse = torch.ones(10, dtype=torch.float64) if golden_lse is None else golden_lse.double()
    output = golden_output.bfloat16() if output is None else output.bfloat16()
    lse = golden_lse.float() if lse is None else lse.float()
    reference = golden_output.bfloat16()
    return Comparison(
        output=output,
        lse=lse,
        golden_output=golden_output,
        golden_lse=golden_lse,
        low_precision=reference if low_precision is None else low_precision.bfloat16(),
        eager=reference if eager is None else eager.bfloat16(),
        raw=Results(output, lse, ()),
        expected=None,
        rigorous=None,
    )


def with_one(value: float, at: int = 3, size: int = 10, rest: float = 1.0) -> torch.Tensor:
    tensor = torch.full((size,), rest, dtype=torch.float64)
    tensor[at] = value
    return tensor


@pytest.mark.parametrize("rule", published.RULES, ids=lambda rule: rule.name)
def test_every_rule_accepts_the_reference_itself(rule):
    assert rule.accepts(compared())


@pytest.mark.parametrize("rule", published.RULES, ids=lambda rule: rule.name)
def test_every_rule_rejects_a_nan_in_the_output(rule):
    assert not rule.accepts(compared(with_one(NAN, size=1000)))


def test_flashinfer_bench_rejects_a_correct_minus_inf():
    assert not published.flashinfer_bench(compared(golden_lse=with_one(-INF)))


def test_flashinfer_bench_accepts_any_number_where_the_reference_is_not_finite():
    for wanted in (-INF, NAN):
        assert published.flashinfer_bench(compared(lse=with_one(1e6), golden_lse=with_one(wanted)))


def test_flashinfer_bench_asks_for_both_errors_to_be_large():
    small, small_off = (torch.full((1000,), value) for value in (1e-3, 9e-3))
    assert published.flashinfer_bench(compared(small_off, golden_output=small))
    assert published.flashinfer_bench(compared(lse=with_one(20.19), golden_lse=with_one(20.0)))
    assert not published.flashinfer_bench(compared(lse=with_one(20.21), golden_lse=with_one(20.0)))


def test_sol_execbench_lets_one_percent_be_anything_finite():
    some, more = torch.ones(1000), torch.ones(1000)
    some[:10], more[:11] = 1e30, 1e30
    assert published.sol_execbench(compared(some))
    assert not published.sol_execbench(compared(more))


def test_sol_execbench_rejects_equal_infinities():
    assert not published.sol_execbench(compared(golden_lse=with_one(-INF)))


def test_sol_execbench_rejects_all_zeros_however_small_the_reference():
    small, one_number = torch.full((1000,), 1e-4), torch.zeros(1000)
    assert not published.sol_execbench(compared(torch.zeros(1000), golden_output=small))
    one_number[0] = 1e-9
    assert published.sol_execbench(compared(one_number, golden_output=small))


def test_kernelbench_accepts_zeros_for_small_results_and_equal_infinities():
    assert published.kernelbench(compared(torch.zeros(1000), golden_output=torch.full((1000,), 9e-3)))
    assert published.kernelbench(compared(golden_lse=with_one(-INF)))
    assert not published.kernelbench(compared(lse=with_one(INF), golden_lse=with_one(-INF)))
    assert not published.kernelbench(compared(lse=with_one(-5e4), golden_lse=with_one(-INF)))


def test_kernelbench_measures_by_the_candidate():
    """1.01 of 100 off is within 1e-2 + 1e-2 * 101.01, and beyond 1e-2 + 1e-2 * 98.98."""
    golden = with_one(100.0)
    assert published.kernelbench(compared(lse=with_one(101.015), golden_lse=golden))
    assert not published.kernelbench(compared(lse=with_one(98.985), golden_lse=golden))


def test_flash_attention_allows_twice_the_error_of_its_low_precision_run():
    golden = torch.full((1000,), 8.0)
    low_precision = with_one(8.25, size=1000, rest=8.0)
    assert published.flash_attention(compared(with_one(8.5, 7, 1000, 8.0), None, golden, None, low_precision))
    assert not published.flash_attention(compared(with_one(8.75, 7, 1000, 8.0), None, golden, None, low_precision))


def test_flash_attention_adds_the_noise_of_adding_and_subtracting():
    golden = torch.full((1000,), 1.0)
    noise = (golden.bfloat16() + 0.3 - 0.3 - golden.bfloat16()).abs().max().item()
    assert noise == 2**-8
    assert published.flash_attention(compared(with_one(1 + 2**-7, size=1000), None, golden))
    assert not published.flash_attention(compared(with_one(1 + 2**-6, size=1000), None, golden))


def test_suites_that_never_look_at_the_lse():
    for rule in (published.flash_attention, published.flex_attention, published.flash_linear_attention):
        assert rule(compared(lse=torch.full((10,), NAN)))


def test_flex_attention_compares_means_so_that_one_wrong_element_passes():
    eager = torch.full((1000,), 1.0078125)
    assert published.flex_attention(compared(with_one(8.0, size=1000), eager=eager))
    assert not published.flex_attention(compared(torch.full((1000,), 1.015625), eager=eager))


def test_triton_kernels_does_not_look_at_the_sign_of_an_infinity():
    assert published.triton_kernels(compared(lse=with_one(INF), golden_lse=with_one(-INF)))
    assert not published.triton_kernels(compared(lse=with_one(-5e4), golden_lse=with_one(-INF)))


def test_triton_kernels_bounds_the_largest_and_the_root_mean_square_error():
    assert published.triton_kernels(compared(lse=with_one(1.01)))
    assert not published.triton_kernels(compared(lse=with_one(1.03)))
    assert not published.triton_kernels(compared(lse=torch.full((10,), 1.005)))


def test_flash_mla_compares_the_places_of_infinities_by_sign():
    assert published.flash_mla(compared(golden_lse=with_one(-INF)))
    assert not published.flash_mla(compared(lse=with_one(INF), golden_lse=with_one(-INF)))


def test_flash_mla_needs_either_error_small_and_the_direction_right():
    assert published.flash_mla(compared(with_one(1.0078125, size=1000)))
    assert not published.flash_mla(compared(with_one(1.0234375, size=1000)))
    alternating = torch.ones(1000)
    alternating[::2] = 1.0078125  # each within 2.01 / 128, but together 1 - cos is 7.6e-6
    assert not published.flash_mla(compared(alternating))


def test_flash_mla_compares_no_direction_where_the_reference_vanishes():
    assert published.flash_mla(compared(torch.full((1000,), 7e-4), golden_output=torch.zeros(1000)))


def test_flashinfer_skips_the_lse_where_a_request_is_empty():
    assert not published.flashinfer(compared(lse=with_one(2.0)))
    assert published.flashinfer(compared(lse=with_one(2.0), golden_lse=with_one(-INF)))


def test_flash_linear_attention_compares_root_mean_squares_and_rejects_nothing_tiny():
    assert published.flash_linear_attention(compared(with_one(1.15, size=1000)))
    assert not published.flash_linear_attention(compared(with_one(1.25, size=1000)))
    assert published.flash_linear_attention(compared(torch.full((1000,), 1e-6), golden_output=torch.zeros(1000)))


def test_baselines_are_the_same_attention_in_16_bits():
    inputs = SUITES[0].make()
    exact = float64.attention(inputs)[0]
    for low_precision in (flash_attention(inputs), flex_attention(inputs)):
        error = (low_precision.double() - exact).abs().max()
        assert 1e-3 < error < 6e-2


def test_truncation_is_toward_zero():
    x = torch.tensor([1.0, 1.999999, -1.999999, 0.0, 1e-30])
    assert truncated(x, torch.bfloat16).tolist() == [1.0, 1.9921875, -1.9921875, 0.0, truncated(x, torch.bfloat16)[4]]
    assert (truncated(x, torch.bfloat16).float().abs() <= x.abs()).all()


@pytest.mark.parametrize("kind", [*CORRECT, *FAULTS], ids=lambda kind: kind.name)
def test_our_rule_says_what_the_checks_say(kind):
    case = Case(((1, 3, 70), (1, 4, 2)), pages="permuted", seed=9)
    inputs = build(case)
    verdict, results = Verdict(case), call(Function(kind.name, kind(), True), inputs, case)
    written = check_written(results) is None
    if written:
        check_numbers(verdict, inputs, results)
    assert accepts(results, expected_of(case, inputs)) == (written and not verdict.failed)


@pytest.fixture(scope="module")
def judgements():
    torch.set_num_threads(1)
    return list(judge_all())


def test_our_rule_raises_no_false_alarm_and_kills_most(judgements):
    for rule in ALL_RULES[-2:]:
        assert rule.name.startswith("ours") and score(judgements, rule).alarms == 0
    assert max(ALL_RULES, key=lambda rule: score(judgements, rule).kills).name == "ours"


def test_every_fault_shows_somewhere_and_our_rule_kills_it(judgements):
    for fault in FAULTS:
        mine = [one for one in judgements if one.kernel == fault.name]
        assert mine, f"{fault.name} shows on no input set"
        assert any("ours" in one.rejected_by for one in mine), f"our rule never kills: {fault.name}"


def test_the_emulation_is_correct(judgements):
    """Else the false alarms of the others say nothing: the narrowest bound holds for every correct kernel."""
    correct = [one for one in judgements if not one.faulty]
    assert len(correct) == len(CORRECT) * len((*SUITES, *STRATA))
    assert not any("ours" in one.rejected_by for one in correct)


def test_the_report_has_a_line_for_every_rule_and_fault(judgements):
    tables = render(judgements)
    for name in (*(rule.name for rule in ALL_RULES), *(fault.name for fault in FAULTS)):
        assert f"| {name} |" in tables
    in_document = part(Path(__file__).parents[1].joinpath("docs/rules.md").read_text(), "python -m fuzz.rules")
    names = [re.findall(r"^\| (.+?) \|", text, re.MULTILINE) for text in (tables, in_document)]
    assert names[0] == names[1], "docs/rules.md is of another state: python -m fuzz.rules --write docs/rules.md"
