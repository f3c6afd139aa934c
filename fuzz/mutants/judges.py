"""Faults of the reference and the judge themselves: a suite that cannot fail is the commonest defect of all.

The fuzzer cannot see them, our own tests must: `tests` are the files that are run.
"""

from __future__ import annotations

from fuzz.mutants.edit import Edit
from fuzz.mutants.mutant import Mutant

_REFERENCE = ("tests/test_reference_closed_forms.py", "tests/test_reference_semantics.py")
_BOUND = ("tests/test_bounds_interval.py", "tests/test_bounds_soundness.py")
_JUDGE = ("tests/test_judge.py",)
_GUARDS = ("tests/test_guards.py", "tests/test_judge.py")
_BUILD = ("tests/test_build.py", "tests/test_hashing.py")


def _one(
    name: str, bug: str, tests: tuple[str, ...], function: str, before: str, after: str, *, count: int = 1
) -> Mutant:
    return Mutant(name, (Edit(function, before, after, count),), "", bug, tests=tests)


_GOLDEN = (
    _one("golden lse in base e", "FlashMLA PR #106: the reference itself in the wrong unit", _REFERENCE,
         "reference/float64.py:evaluate", "torch.log2(total)", "torch.log(total)"),
    _one("golden scale in float64", "the definition rounds it to float32", _REFERENCE,
         "base2_scale", "torch.tensor(inputs.sm_scale, dtype=torch.float32).item()", "inputs.sm_scale"),
    _one("golden causal edge one late", "an oracle with the kernel's own bug", _REFERENCE,
         "row_spans", "prefix + begin - row + 1", "min(prefix + begin - row + 2, slot_end - slot)"),
    _one("golden mask from the top left", "sparkinfer #3, in the oracle", _REFERENCE,
         "row_spans", "prefix = (slot_end - slot) - (row_end - row)", "prefix = 0"),
    _one("golden lse +inf where nothing is seen", "FlashMLA's convention", _REFERENCE,
         "reference/float64.py:empty_results", "-math.inf", "math.inf"),
    _one("golden rotary part left out", "an oracle of another operator", _REFERENCE,
         "reference/float64.py:queries", "torch.cat([inputs.q_nope[block.place], inputs.q_pe[block.place]], dim=-1)",
         "torch.cat([inputs.q_nope[block.place], 0 * inputs.q_pe[block.place]], dim=-1)"),
    _one("golden page -1 is the last page", "the definition's own code indexes so", _REFERENCE,
         "reference/float64.py:pages", "(page < 0) | (page >= inputs.num_pages)", "page >= inputs.num_pages"),
    _one("golden 0 * NaN hidden", "a reference that forgives", _REFERENCE,
         "reference/float64.py:non_finite_values",
         "occurs(seen, value.isnan()) | occurs(seen & (weight == 0), value.isinf()) | (up & down)", "up & down"),
    _one("golden keys past kv_indices forgiven", "a clamp in the oracle", _REFERENCE,
         "row_spans", "in_bounds = max(0, num_slots - slot) if slot >= 0 else 0", "in_bounds = slot_end - slot"),
    _one("golden rows of two requests mixed", "a wrong row offset", _REFERENCE,
         "reference/blocks.py:Group.blocks", "slice(first.row + start, first.row + end) if alone else row + offset",
         "row + offset.flip(0)"),
)  # fmt: skip

_BOUNDS = (
    _one("bound ten times as wide", "a guessed tolerance", _BOUND,
         "reference/sums.py:_bound", "any_void = bool(void.any())",
         "any_void = bool(void.any())\noutput_error.mul_(10)"),
    _one("lse bound a hundred times as wide", "a guessed tolerance", _BOUND,
         "reference/sums.py:_bound", "(lse_error * SLACK).masked_fill(void, math.inf)",
         "(lse_error * 100).masked_fill(void, math.inf)"),
    _one("rounding of P left out", "an unsound bound", _BOUND,
         "rounding_of", "p_unit = p_type.eps / 2", "p_unit = 0.0"),
    _one("dot products taken for exact", "an unsound bound", _BOUND,
         "rounding_of", "dot = constants.kappa * KEY_DIM * u", "dot = 0.0"),
    _one("interval without its ends", "a correct result on the edge", _BOUND + _JUDGE,
         "_check_output", "(output >= low) & (output <= high)", "(output > low) & (output < high)"),
    _one("interval open above", "one side never looked at", _JUDGE,
         "_check_output", "(output >= low) & (output <= high)", "output >= low"),
    _one("every bound void", "nothing but the envelope is checked", _BOUND,
         "reference/sums.py:_bound", "void = (tau >= VOID) | (denominator >= VOID)",
         "void = (tau >= 0) | (denominator >= VOID)"),
)  # fmt: skip

_CHECKS = (
    _one("NaN passes", "cubecl PR #1070, Liger-Kernel #259", _JUDGE,
         "_check_output", "clean & ~inside", "clean & ((output < low) | (output > high))"),
    _one("NaN passes in the lse", "FlashInfer-Bench: NaN compares false", _JUDGE,
         "_check_lse", "clean & ~inside", "clean & ((value < low) | (value > high))"),
    _one("lse not compared", "flash-attention, flex_attention, FLA", _JUDGE,
         "_check_window", "_check_lse(verdict, results.lse, expected, tainted, clean)", "pass"),
    _one("rows without keys not compared", "FlashInfer's tests skip them", _JUDGE,
         "_check_window", "_check_empty(verdict, results, expected.empty & rows[:, None])", "pass"),
    _one("-0 passes for +0", "a comparison by value", _JUDGE,
         "_check_empty", "bits(results.output) != 0", "results.output != 0"),
    _one("+inf passes for -inf", "triton_kernels: the sign of an infinity is not looked at", _JUDGE,
         "_check_empty", "~torch.isneginf(results.lse)", "~torch.isinf(results.lse)"),
    _one("finite rows pass where NaN is due", "a judge that looks away from NaN", _JUDGE,
         "_check_output", "tainted & output.isfinite() & ~(inside & expected.output.isfinite())", "tainted & False"),
    _one("results not poisoned", "starter-kit #21: an empty buffer holds the reference's results", _JUDGE,
         "fuzz/checks/results.py:_poisoned", "bits(buffer).fill_(_POISON[buffer.dtype])", "bits(buffer).fill_(0)"),
    _one("kernel's own memory not poisoned", "torch.empty looks right", _JUDGE,
         "_PoisonedAllocations.__torch_dispatch__", "bits(made).fill_(_POISON[made.dtype])", "pass"),
    _one("scratch not poisoned", "torch.empty looks right, once more", _JUDGE,
         "fuzz/checks/results.py:run", "_PoisonedAllocations(scratch=bool(buffers))",
         "_PoisonedAllocations(scratch=False) if not buffers else torch.no_grad()"),
    _one("scratch poisoned by NaN alone", "a maximum passes over NaN", _JUDGE,
         "_spoil", "elements[first::4] = _DECOY[tensor.dtype]", "pass"),
    _one("compiled kernels judged as they were written", "a mode keeps torch.compile from compiling", _JUDGE,
         "_PoisonedAllocations.ignore_compile_internals", "True", "False"),
    _one("unwritten results not looked for", "FlashInfer #1395", _JUDGE,
         "check_written", "unwritten(tensor)", "unwritten(tensor).all()"),
    _one("guards not looked at", "PyTorch PR #45294: the allocator hides it", _GUARDS,
         "check_bounds", "not whole", "False"),
    _one("operands not compared", "PyTorch #120802", _JUDGE,
         "fuzz/checks/memory.py:Snapshot.changed", "bits(part) ^ bits(self._held[name])",
         "torch.zeros_like(part)"),
    _one("operands compared with themselves", "a check that cannot fail", _JUDGE,
         "fuzz/checks/memory.py:Snapshot.holds", "map(torch.equal, held, contents)",
         "map(torch.equal, contents, contents)"),
    _one("exceptions are no failures", "a worker that swallows errors", _JUDGE,
         "fuzz/checks/__init__.py:_judged",
         "verdict.add('alive', error.finding())", "verdict.add('alive')"),
    _one("differing bits compared by value", "0 and -0", _JUDGE,
         "fuzz/checks/trial.py:different_bits", "(bits(one) != bits(other)) & ~(one.isnan() & other.isnan())",
         "(one - other).abs() > 1e-2"),
    _one("stale results pass", "results cached by pointer", _JUDGE,
         "fuzz/checks/invariance.py:fresh", "renew(inputs, replace(trial.generated, seed=trial.generated.seed ^ 1))",
         "trial.inputs.sm_scale"),
    _one("dead pages keep their content", "a check that changes nothing", _JUDGE,
         "fuzz/checks/invariance.py:dead_content", "replace(case, poison=poison)", "case"),
    _one("later keys keep their content", "a check that changes nothing", _JUDGE,
         "fuzz/checks/invariance.py:causality",
         "(2 - cache[changed].float().clamp(-2, 2)).nan_to_num(1.0).to(cache.dtype)", "cache[changed]"),
    _one("pages renamed to themselves", "a check that changes nothing", _JUDGE,
         "fuzz/checks/invariance.py:page_invariant",
         "torch.randperm(inputs.num_pages, generator=generator).to(inputs.device)",
         "torch.arange(inputs.num_pages, device=inputs.device)"),
    _one("request alone is the whole batch", "a check that changes nothing", _JUDGE,
         "fuzz/checks/invariance.py:batch_invariant", "call(trial.target, alone, trial.case, buffers)",
         "type(here)(*(part[rows] for part in call(trial.target, inputs, trial.case).named().values()), ())"),
)  # fmt: skip

_MEMORY = (
    _one("no guard bands", "writes land in a neighbour", _GUARDS,
         "fuzz/guards.py:intact", "words ^ PATTERN", "torch.zeros_like(words)", count=2),
    _one("dead pages not poisoned", "FlashInfer #941 would pass", _BUILD,
         "_dead_pages", "is_dead[table.page] = False\nreturn is_dead.nonzero()[:, 0]", "return table.page[:0]"),
    _one("padded rows not poisoned", "vLLM PR #38359 would pass", _BUILD,
         "fuzz/build.py:_poison",
         "POISONS[case.poison].rows(case.seed, name, padding, view.shape[2], view.dtype)[:, None]", "0"),
    _one("page 0 spared", "aiter PR #4245 would pass", _BUILD,
         "_dead_pages", "is_dead[table.page] = False", "is_dead[table.page] = False\nis_dead[:1] = False"),
)  # fmt: skip

JUDGES = (*_GOLDEN, *_BOUNDS, *_CHECKS, *_MEMORY)
