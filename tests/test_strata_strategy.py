from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from fuzz.build import build, memory_bytes
from fuzz.case import FAMILIES, Case, promises_needed, strata_of
from fuzz.counts import Counts
from fuzz.strata.lengths import CROWDS, LONG_CHUNKS, MERGED, MOST_SHORT, MOST_SPLIT, SHORT, batch, total_q
from fuzz.strata.reach import all_strata
from fuzz.strata.strategy import CPU, GPU, Budget, cases, excluded, resolve
from fuzz.units import explore
from kernel.contract import CONTRACTS, Inputs

EVERYTHING = CONTRACTS["hardened"]


def sample(strategy: st.SearchStrategy[Case], number: int) -> list[Case]:
    drawn: list[Case] = []

    @settings(max_examples=number, database=None, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(strategy)
    def collect(case: Case) -> None:
        drawn.append(case)

    collect()
    return drawn


@pytest.mark.parametrize("budget", [CPU, GPU], ids=lambda budget: budget.device)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_cases_stay_within_the_contract_and_the_budget(contract: str, budget: Budget) -> None:
    for case in sample(cases(CONTRACTS[contract], budget=budget), 300):
        assert promises_needed(case) <= CONTRACTS[contract]
        assert case.tiles <= budget.most_tiles
        assert memory_bytes(case, budget.device) <= budget.memory


@pytest.mark.parametrize("budget", [CPU, GPU], ids=lambda budget: budget.device)
def test_every_stratum_and_residue_is_hit_by_a_thousand_cases_or_excluded_with_a_reason(budget: Budget) -> None:
    drawn = sample(cases(EVERYTHING, budget=replace(budget, heavy_one_in=1)), 1500)
    hit = {name for case in drawn for name in strata_of(case)}
    assert set(all_strata()) - hit == excluded(EVERYTHING, budget).keys()
    counts = Counts()
    for case in drawn:
        counts.add(case.to_json(), (), {}, set())
    assert min(residues[edge] for residues in counts.residues.values() for edge in (0, 1, 63)) >= 50


def test_heavy_strata_are_rare_on_a_gpu() -> None:
    heavy = [case for case in sample(cases(EVERYTHING, budget=GPU), 1000) if memory_bytes(case, "cuda") > 1 << 30]
    assert 0 < len(heavy) < 20


def test_what_does_not_fit_is_named_with_the_reason() -> None:
    assert excluded(EVERYTHING, CPU) == {
        "lengths:many-requests": "needs 16,385 tiles, the budget is 52",
        "lengths:long-context": "needs 128 tiles, the budget is 52",
        "lengths:huge-q": "needs 65,537 tiles, the budget is 52",
    }
    assert excluded(EVERYTHING, GPU) == {}
    small = replace(GPU, memory=20 << 30)
    assert excluded(EVERYTHING, small) == {"pages:across-2^24": "needs 22.0 GiB, the budget is 20.0 GiB"}
    missing = excluded(CONTRACTS["definition"], CPU)
    assert missing["pages:garbage"] == "needs the promise hardened"
    assert missing["tail:padded_rows"] == "needs the promise padding"


def test_chosen_strata_are_drawn_and_no_other_of_their_families() -> None:
    chosen = cases(EVERYTHING, ["pages:permuted", "one-hot", "needle-edge", "masked-rows", "padded_rows"], budget=CPU)
    for case in sample(chosen, 60):
        assert case.pages == "permuted"
        assert case.values in ("one-hot", "needle-edge")
        assert "lengths:masked-rows" in strata_of(case)
        assert case.spare_indices == case.spare_pages == 0


def test_names_of_strata_are_resolved_or_refused() -> None:
    assert resolve(["permuted", "lengths:single"]) == {"pages:permuted", "lengths:single"}
    assert resolve(["dtype"]) == {"dtype:bfloat16", "dtype:float16"}
    with pytest.raises(ValueError, match="no stratum 'scrambled'; there are lengths:single"):
        resolve(["scrambled"])
    with pytest.raises(ValueError, match="lengths:huge-q cannot be drawn: needs 65,537 tiles"):
        cases(EVERYTHING, ["huge-q"], budget=CPU)


def test_a_class_of_mistakes_names_the_strata_that_reveal_it() -> None:
    assert resolve(["F02"]) == {"lengths:huge-q", "layout:wide", "layout:wide-output"}
    with pytest.raises(ValueError, match="F29 shows in no stratum"):
        resolve(["F29"])


@pytest.mark.parametrize("name", FAMILIES["lengths"])
def test_lengths_drawn_for_a_stratum_belong_to_it(name: str) -> None:
    for case in sample(cases(EVERYTHING, [f"lengths:{name}"], budget=GPU), 40):
        assert f"lengths:{name}" in strata_of(case)


def test_names_of_strata_are_told_apart_by_themselves() -> None:
    names = [name.split(":")[1] for name in all_strata()]
    assert len(names) == len(set(names))


def visible(inputs: Inputs, shift: int) -> list[tuple[int, ...]]:
    """Pages that each row sees, its causal edge moved by `shift`."""
    rows = []
    for b in range(inputs.batch):
        q_len = int(inputs.qo_indptr[b + 1] - inputs.qo_indptr[b])
        pages = inputs.kv_indices[int(inputs.kv_indptr[b]) : int(inputs.kv_indptr[b + 1])].tolist()
        rows += [tuple(pages[: max(0, len(pages) - q_len + i + 1 + shift)]) for i in range(q_len)]
    return rows


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("seed", range(3))
def test_an_off_by_one_in_the_causal_mask_shrinks_to_one_small_plain_request(shift: int, seed: int) -> None:
    def fails(case: Case) -> bool:
        inputs = build(case)
        return visible(inputs, shift) != visible(inputs, 0)

    found = minimal(cases(EVERYTHING - {"hardened"}, budget=CPU), fails, seed)
    assert found == Case(((1, 1, 1),) if shift < 0 else ((1, 2, 2),))


@pytest.mark.parametrize("seed", range(3))
def test_a_fault_of_one_stratum_shrinks_to_that_stratum_alone(seed: int) -> None:
    def fails(case: Case) -> bool:
        masked = any(0 < kv_len < q_len for _, q_len, kv_len in case.lengths)
        return masked and case.pages == "permuted" and case.batch >= 2

    found = minimal(cases(EVERYTHING, budget=CPU), fails, seed)
    assert (found.batch, found.total_q, found.total_kv) <= (2, 3, 2)
    assert replace(found, lengths=()) == Case((), pages="permuted")


def minimal(strategy: st.SearchStrategy[Case], fails: Callable[[Case], bool], seed: int) -> Case:
    return find(
        strategy,
        fails,
        settings=settings(max_examples=2000, database=None, deadline=None),
        random=Random(seed),
    )


@pytest.mark.parametrize("name", ["lengths:long-context", "lengths:splits"])
def test_contexts_of_few_queries_go_past_the_chunks_that_are_merged_at_a_time(name: str) -> None:
    """A merge that forgets to rescale from one round of chunks to the next survived on GPUs: there the later round has
    to outweigh the one before."""
    source, values = cases(EVERYTHING, [name], budget=GPU), []
    past = MERGED * LONG_CHUNKS[1]

    def see(case: Case) -> None:
        values.extend(case.values for _, q_len, kv_len in case.lengths if kv_len > past and q_len <= MOST_SPLIT)

    explore(source, 0, 128, see, shrink=False)
    assert len(values) >= 8 and "rising" in values


def test_crowds_for_a_gpu_have_more_rows_than_programs_and_a_request_that_is_not_short() -> None:
    """One in twelve and one in four are expected."""
    drawn = [case.lengths for case in sample(cases(EVERYTHING, ["lengths:crowd"], budget=GPU), 128)]
    assert sum(total_q(runs) > MOST_SHORT for runs in drawn) >= 3
    assert sum(batch(runs) > CROWDS[1] and runs[-1][2] > SHORT[1] for runs in drawn) >= 12


@pytest.mark.parametrize(
    "strata",
    [
        ("lengths:masked-rows", "pages:just-past"),
        ("lengths:tiny", "layout:index-stepped"),
        ("lengths:decode", "lengths:key-edge", "values:nonfinite-hidden"),
        ("lengths:single", "lengths:prefix-edge", "pages:from-zero", "values:nonfinite-beyond"),
    ],
    ids=" ".join,
)
def test_strata_that_say_something_together_are_drawn_together(strata: tuple[str, ...]) -> None:
    *those, last = strata
    such = [names for case in sample(cases(EVERYTHING, budget=CPU), 1500) if {*those} <= {*(names := strata_of(case))}]
    assert len(such) >= 20
    assert 0.2 < sum(last in names for names in such) / len(such) < 0.7
