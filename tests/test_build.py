import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuzz.build import build, memory_bytes, poison_anew
from fuzz.case import Case, is_finite
from fuzz.guards import intact
from fuzz.strata.indptr import INDPTRS
from fuzz.strata.layouts import INDEX_DTYPES, LAYOUTS, allocate_results
from fuzz.strata.pages import PAGES
from fuzz.strata.poison import POISONS
from fuzz.strata.scales import SCALES
from fuzz.strata.values import VALUES
from kernel.contract import Inputs, check_inputs

RAGGED = Case(((1, 3, 70), (2, 0, 5), (1, 5, 3), (1, 4, 0), (1, 2, 20)), spare_pages=3)
RENAMED = [name for name, pages in PAGES.items() if not (pages.shared or pages.broken)]


def gathered(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys by position, whatever their pages."""
    pages = inputs.kv_indices[: int(inputs.kv_indptr[-1])].long()
    return inputs.ckv_cache[pages, 0], inputs.kpe_cache[pages, 0]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


def live_pages(inputs: Inputs) -> torch.Tensor:
    pages = inputs.kv_indices[: int(inputs.kv_indptr[-1])].long()
    return pages[(pages >= 0) & (pages < inputs.num_pages)].unique()


@pytest.mark.parametrize(
    "change",
    [{"pages": name} for name in PAGES if not PAGES[name].broken]
    + [{"values": name} for name in VALUES]
    + [{"layout": name} for name in LAYOUTS]
    + [{"scale": name} for name in SCALES]
    + [{"poison": name} for name in POISONS]
    + [{"index_dtype": name} for name in INDEX_DTYPES]
    + [{"dtype": "float16"}, {"padded_rows": 3}, {"spare_indices": 9}, {"lengths": ()}, {"lengths": ((3, 0, 0),)}],
    ids=str,
)
def test_operands_of_every_stratum_are_valid_and_guarded(change: dict) -> None:
    inputs = build(replace(RAGGED, **change))
    check_inputs(**inputs.operands())
    by_storage: dict[int, list[torch.Tensor]] = {}
    for operand in inputs.operands().values():
        if isinstance(operand, torch.Tensor):
            by_storage.setdefault(operand.untyped_storage().data_ptr(), []).append(operand)
    assert all(intact(*views) for views in by_storage.values())
    assert len(by_storage) == (5 if change.get("layout") in ("fused", "index-packed") else 7)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_keep_their_values_when_lengths_shrink(values: str, dtype: str) -> None:
    """Those whose content depends on the row's number alone: patterns follow the lengths."""
    long = Case(((1, 6, 40), (1, 5, 40)), values=values, dtype=dtype, pages="permuted", seed=11)
    short = replace(long, lengths=((1, 4, 38), (1, 2, 37)), pages="identity")
    before, after = build(long), build(short)
    ckv, kpe = gathered(before)
    ckv_short, kpe_short = gathered(after)
    kept = torch.cat((torch.arange(38), 40 + torch.arange(37)))
    rows = torch.tensor([0, 1, 2, 3, 6, 7])
    if VALUES[values].finite and values != "needle-block":
        assert same_bits(ckv[kept], ckv_short)
        assert same_bits(kpe[kept], kpe_short)
    if values not in ("needle-edge", "needle-beyond", "nonfinite-query"):
        assert same_bits(before.q_nope[rows], after.q_nope)
        assert same_bits(before.q_pe[rows], after.q_pe)


@pytest.mark.parametrize("pages", RENAMED)
@pytest.mark.parametrize("values", ["bell", "rising"])
def test_tables_that_only_rename_pages_keep_every_key(pages: str, values: str) -> None:
    plain, renamed = build(replace(RAGGED, values=values)), build(replace(RAGGED, values=values, pages=pages))
    assert all(same_bits(a, b) for a, b in zip(gathered(plain), gathered(renamed), strict=True))
    assert live_pages(renamed).numel() == RAGGED.total_kv


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_keep_every_value(layout: str) -> None:
    for seed in range(4):
        plain, moved = build(replace(RAGGED, seed=seed)), build(replace(RAGGED, layout=layout, seed=seed))
        heads = slice(None) if LAYOUTS[layout].heads else slice(0, 1)
        for name, operand in plain.operands().items():
            other = getattr(moved, name)
            if name in ("q_nope", "q_pe"):
                assert same_bits(operand[:, heads].expand_as(operand), other)
            elif isinstance(operand, torch.Tensor):
                assert same_bits(operand, other)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize(
    "pages", [name for name, pages in PAGES.items() if not pages.sparse and name not in ("no-pages", "one-page")]
)
def test_every_dead_page_is_poisoned_and_no_live_one(pages: str, poison: str) -> None:
    inputs = build(replace(RAGGED, pages=pages, poison=poison))
    dead = torch.ones(inputs.num_pages, dtype=torch.bool)
    dead[live_pages(inputs)] = False
    assert dead.sum() >= 3
    assert bool(dead[0]) == (pages != "from-zero")
    for cache in (inputs.ckv_cache, inputs.kpe_cache):
        holds = {"nan": cache.isnan(), "inf": cache.isinf(), "decoys": cache.abs() > 8}[poison]
        assert holds[dead].all() if poison != "decoys" else holds[dead].any(-1).all()
        assert not holds[~dead].any()


@pytest.mark.parametrize("layout", [name for name, layout in LAYOUTS.items() if not layout.sparse])
@pytest.mark.parametrize("pages", ["permuted", "shared-prefix", "garbage"])
def test_operands_that_are_poisoned_anew_are_those_of_the_other_case(layout: str, pages: str) -> None:
    case = replace(RAGGED, layout=layout, pages=pages, padded_rows=3)
    other = replace(case, poison="inf")
    inputs = build(case)
    poison_anew(inputs, other)
    assert digest(inputs) == digest(build(other)) != digest(build(case))


def test_what_names_no_page_may_be_the_first_id_past_the_cache() -> None:
    inputs = build(replace(RAGGED, pages="just-past", spare_indices=0))
    absent = inputs.kv_indices[inputs.kv_indices >= inputs.num_pages]
    assert absent.numel() and (absent == inputs.num_pages).all() and (inputs.kv_indices >= 0).all()


@pytest.mark.parametrize("spare", [0, 1])
def test_ids_of_64_bits_may_name_page_1_when_they_are_cut(spare: int) -> None:
    inputs = build(Case(((1, 1, 40),), pages="aliases", index_dtype="int64", spare_pages=spare))
    absent = inputs.kv_indices[(inputs.kv_indices < 0) | (inputs.kv_indices >= inputs.num_pages)]
    assert absent.numel() and (absent.int() == 1).all()
    assert absent.unique().tolist() == [(1 << 32) + 1 if inputs.num_pages % 2 else -(1 << 63) + 1]


def test_a_cache_without_pages_is_named_all_the_same() -> None:
    inputs = build(replace(RAGGED, pages="no-pages"))
    assert inputs.num_pages == 0
    assert inputs.kv_indices.shape[0] == RAGGED.total_kv + RAGGED.spare_indices > 0
    assert not live_pages(inputs).numel()


def test_a_cache_of_one_page_is_named_by_all() -> None:
    inputs = build(replace(RAGGED, pages="one-page"))
    assert inputs.num_pages == 1
    assert not inputs.kv_indices[: RAGGED.total_kv].any()
    assert inputs.ckv_cache.isfinite().all()


def test_swapped_row_pointers_fall_once() -> None:
    plain = build(RAGGED).kv_indptr
    for seed in range(6):
        swapped = build(replace(RAGGED, indptr="kv-swapped", seed=seed)).kv_indptr
        assert torch.equal(swapped.sort().values, plain)
        assert (swapped.diff() < 0).sum() <= 1 and (swapped != plain).sum() in (0, 2)
    assert build(Case((), indptr="kv-swapped")).kv_indptr.tolist() == [0]


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("qo-max", {(0, 2, 2**31 - 1), (0, 2**31 - 1, 5), (0, 5, 6)}),
        ("qo-negative", {(-1, 0, 5), (-1, 2, 5), (0, -1, 5)}),
    ],
)
def test_rows_outside_are_claimed_in_three_ways(name: str, claims: set[tuple[int, ...]]) -> None:
    cases = [Case(((1, 2, 30), (1, 3, 5)), indptr=name, poison="decoys", seed=seed) for seed in range(40)]
    assert {tuple(build(case).qo_indptr.tolist()) for case in cases} >= claims


def test_the_score_of_a_hidden_key_is_minus_infinity_for_every_head() -> None:
    inputs = build(Case(((1, 5, 12),), values="nonfinite-hidden"))
    pages = inputs.kv_indices.long()
    content, rotary = inputs.ckv_cache[pages, 0].double(), inputs.kpe_cache[pages, 0].double()
    scores = inputs.q_nope.double() @ content.T + inputs.q_pe.double() @ rotary.T
    hidden = torch.isneginf(content).any(-1)
    assert torch.equal(hidden, torch.isneginf(rotary).any(-1)) and hidden.any()
    assert torch.isneginf(scores[..., hidden]).all() and scores[..., ~hidden].isfinite().all()


@pytest.mark.parametrize("pages", [name for name, pages in PAGES.items() if pages.sparse])
def test_sparse_caches_are_poisoned_at_page_0_and_beside_live_pages(pages: str) -> None:
    inputs = build(replace(RAGGED, pages=pages))
    live = live_pages(inputs)
    near = torch.cat((live - 1, live + 1, torch.tensor([0])))
    near = near[(near < inputs.num_pages) & ~torch.isin(near, live)]
    assert inputs.ckv_cache[near].isnan().all()
    assert inputs.kpe_cache[near].isnan().all()
    assert (
        memory_bytes(replace(RAGGED, pages=pages), "cpu")
        < 32 << 20
        < memory_bytes(replace(RAGGED, pages=pages), "cuda")
    )


@pytest.mark.parametrize("exponent", [22, 23, 24])
def test_pages_straddle_the_boundary_above_readable_zeros(exponent: int) -> None:
    inputs = build(replace(RAGGED, pages=f"across-2^{exponent}"))
    live, boundary = live_pages(inputs), 1 << exponent
    assert live.min() < boundary - 20
    assert live.max() > boundary + 20
    # where page * 512 lands when it wraps at 32 bits
    wrapped = (live * 512 + (1 << 31)) % (1 << 32) - (1 << 31)
    storage = torch.empty(0, dtype=torch.bfloat16).set_(inputs.ckv_cache.untyped_storage())
    first = inputs.ckv_cache.storage_offset() + wrapped
    assert first.min() >= 0
    lost = wrapped != live * 512
    assert lost.any()
    rows = storage[first[lost][:, None] + torch.arange(512)]
    assert (rows.isnan().any(1) | (rows == 0).all(1)).all()


def test_hostile_slots_name_no_page_in_the_table_s_own_width() -> None:
    for dtype in ("int32", "int64"):
        inputs = build(replace(RAGGED, pages="garbage", index_dtype=dtype))
        wrong = (inputs.kv_indices < 0) | (inputs.kv_indices >= inputs.num_pages)
        assert 5 <= wrong.sum() <= 40
        cut = inputs.kv_indices[wrong].to(torch.int32)
        assert bool(((cut > 0) & (cut < inputs.num_pages)).any()) == (dtype == "int64")


def test_spare_entries_of_the_table_name_no_page() -> None:
    inputs = build(replace(RAGGED, spare_indices=6))
    spare = inputs.kv_indices[RAGGED.total_kv :].tolist()
    assert spare == [-1, -(1 << 31), inputs.num_pages, (1 << 31) - 1, -1, -(1 << 31)]


def test_padded_rows_are_poisoned() -> None:
    inputs = build(replace(RAGGED, padded_rows=2))
    assert inputs.total_q == RAGGED.total_q + 2
    assert inputs.q_nope[-2:].isnan().all()
    assert not inputs.q_nope[:-2].isnan().any()


@pytest.mark.parametrize("name", [name for name, indptr in INDPTRS.items() if not indptr.valid])
def test_spoiled_row_pointers_are_refused_by_the_check_of_inputs(name: str) -> None:
    with pytest.raises(ValueError, match="indptr"):
        check_inputs(**build(replace(RAGGED, indptr=name)).operands())


@pytest.mark.parametrize("name", INDEX_DTYPES)
def test_index_dtypes_are_as_named(name: str) -> None:
    inputs = build(replace(RAGGED, index_dtype=name))
    assert (inputs.qo_indptr.dtype, inputs.kv_indptr.dtype, inputs.kv_indices.dtype) == INDEX_DTYPES[name].dtypes


def test_pages_are_shared_as_named() -> None:
    lengths = ((1, 3, 40), (1, 2, 31))
    duplicates = build(Case(lengths, pages="duplicates")).kv_indices
    assert 10 < duplicates[:40].unique().numel() <= 20
    assert not torch.isin(duplicates[:40], duplicates[40:]).any()
    shared = build(Case(lengths, pages="shared-prefix")).kv_indices
    assert torch.equal(shared[:16], shared[40:56])
    assert shared.unique().numel() == 71 - 16
    assert build(Case(lengths, pages="hot-page")).kv_indices.unique().numel() == 1


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_finite_strata_are_finite_and_stay_far_from_overflow(values: str, dtype: str) -> None:
    case = Case(((1, 20, 300), (1, 4, 4), (1, 2, 2)), values=values, dtype=dtype, seed=3)
    inputs = build(case)
    ckv, kpe = (keys.double() for keys in gathered(inputs))
    queries = (inputs.q_nope.double(), inputs.q_pe.double())
    finite = all(x.isfinite().all() for x in (ckv, kpe, *queries))
    assert finite == is_finite(case)
    if finite:
        magnitude = [q.abs().flatten(0, 1) @ keys.abs().T for q, keys in zip(queries, (ckv, kpe), strict=True)]
        largest_scale = max(abs(scale.value(3)) for scale in SCALES.values())
        assert largest_scale * sum(magnitude).max() < 2.0**126
        assert (1 << 20) * ckv.abs().max() < 2.0**126


def scores(case: Case) -> torch.Tensor:
    """Logits [rows, heads, keys] of the only request in float64, those past the causal edge included."""
    inputs = build(case)
    ckv, kpe = (keys.double() for keys in gathered(inputs))
    return inputs.sm_scale * (inputs.q_nope.double() @ ckv.T + inputs.q_pe.double() @ kpe.T)


def test_bell_logits_spread_over_a_few_units() -> None:
    for values, low, high in (("bell", 1.5, 4.0), ("nope-only", 1.5, 4.0), ("pe-only", 0.5, 1.5)):
        assert low < scores(Case(((1, 8, 200),), values=values)).std() < high


@pytest.mark.parametrize(("values", "dominant"), [("needle-edge", 0), ("needle-beyond", 1)])
def test_the_needle_stands_at_each_row_s_causal_edge_or_just_past_it(values: str, dominant: int) -> None:
    q_len, kv_len = 20, 60
    logits = scores(Case(((1, q_len, kv_len),), values=values))
    edge = torch.arange(q_len) + kv_len - q_len + dominant
    inside = edge < kv_len
    assert (logits.argmax(-1)[inside] == edge[inside, None]).all()
    top = logits[inside].topk(2).values
    assert (top[..., 0] - top[..., 1]).min() > 20


def test_the_block_needle_dominates_even_heads_from_every_kind_of_position() -> None:
    seen = set()
    for seed in range(40):
        logits = scores(Case(((1, 1, 100),), values="needle-block", seed=seed))[0]
        seen.add(int(logits[0].argmax()))
        assert logits[0].argmax() == logits[1].argmin()
    assert {0, 99} < seen
    assert {position % 16 for position in seen - {99}} == {15, 0, 1}


def test_power_of_two_weights_are_powers_of_two() -> None:
    logits = scores(Case(((1, 2, 300),), values="power-of-two", scale="ln2")) / torch.tensor(2.0).double().log()
    assert torch.allclose(logits, logits.round(), atol=1e-6)
    assert (logits.amax(-1).abs() < 1e-6).all()
    assert logits.round().unique().numel() == 13


def test_slopes_rise_and_fall_by_more_than_thirty_binades_a_tile() -> None:
    for values, sign in (("rising", 1), ("falling", -1)):
        logits = scores(Case(((1, 1, 70000),), values=values)) * 1.4427
        per_tile = logits[..., 64:] - logits[..., :-64]
        assert (sign * per_tile).min() > 30


def test_correlated_weights_lie_just_above_a_midpoint_of_bfloat16() -> None:
    logits = scores(Case(((1, 1, 50),), values="correlated", scale="ln2"))[0, :, 1:]
    weights = logits.exp()
    assert (weights - (0.5 + 2.0**-9)).abs().max() < 2.0**-22
    assert (weights > 0.5 + 2.0**-9).all()


def test_huge_logits_are_as_large_as_named() -> None:
    both = scores(Case(((1, 2, 300),), values="logits-1e5"))
    assert both.max() > 1e5 and both.min() < -1e5
    assert scores(Case(((1, 2, 300),), values="logits-below")).max() < -5e4


def test_cancelling_scores_lose_two_decimal_orders() -> None:
    case = Case(((1, 4, 100),), values="cancelling-scores")
    inputs = build(case)
    magnitude = inputs.q_nope.double().abs() @ gathered(inputs)[0].double().abs().T
    assert (magnitude * inputs.sm_scale / scores(case).abs()).median() > 100


def test_subnormal_values_are_subnormal() -> None:
    for dtype in ("bfloat16", "float16"):
        ckv = gathered(build(Case(((1, 1, 40),), values="subnormal", dtype=dtype)))[0]
        assert ckv.double().abs().max() < torch.finfo(ckv.dtype).tiny
        assert (ckv != 0).double().mean() > 0.95


def test_zeros_have_both_signs() -> None:
    inputs = build(Case(((1, 4, 40),), values="signed-zeros"))
    for operand in (gathered(inputs)[0], inputs.q_nope):
        zeros = operand[operand == 0]
        assert 0.2 < zeros.signbit().double().mean() < 0.8


@pytest.mark.parametrize("seed", range(8))
def test_non_finite_keys_are_seen_by_all_rows_or_first_by_a_later_one(seed: int) -> None:
    lengths = ((1, 4, 9), (1, 5, 3), (1, 3, 30), (1, 2, 2))
    starts = [0, 9, 12, 42]
    for values in ("nonfinite-seen", "nonfinite-beyond"):
        ckv, kpe = gathered(build(Case(lengths, values=values, seed=seed)))
        bad = ~(ckv.isfinite().all(1) & kpe.isfinite().all(1))
        assert bad[:9].any()
        for (_, q_len, kv_len), start in zip(lengths, starts, strict=True):
            for position in bad[start : start + kv_len].nonzero()[:, 0].tolist():
                first_row = max(0, position - (kv_len - q_len))
                assert first_row == 0 if values == "nonfinite-seen" else 0 < first_row < q_len


def test_non_finite_queries_hit_one_head_of_one_row() -> None:
    inputs = build(Case(((1, 6, 9),), values="nonfinite-query", seed=2))
    assert (~inputs.q_pe.isfinite()).sum() == 1
    assert inputs.q_nope.isfinite().all()


def test_layouts_are_as_named() -> None:
    def moved(layout: str, seed: int = 0) -> Inputs:
        return build(replace(RAGGED, layout=layout, seed=seed))

    fused = moved("fused")
    assert fused.q_pe.data_ptr() - fused.q_nope.data_ptr() == 1024
    assert fused.kpe_cache.stride() == fused.ckv_cache.stride() == (576, 576, 1)
    assert all(moved("offset").operands()[name].data_ptr() % 4 == 2 for name in ("q_nope", "kpe_cache"))
    assert moved("odd-strides").q_nope.stride() == (16 * 513 + 2, 513, 1)
    assert moved("transposed").q_nope.stride(1) > moved("transposed").q_nope.stride(0)
    assert moved("columns").ckv_cache.stride(0) == 1
    assert moved("stepped").ckv_cache.stride(2) == 2
    assert moved("one-head").q_nope.stride(1) == 0
    assert moved("index-offset").kv_indices.data_ptr() % 8 == 4
    assert moved("index-stepped").kv_indptr.stride() == (2,)
    packed = moved("index-packed")
    before, at = packed.kv_indptr, packed.kv_indices.storage_offset()
    assert packed.kv_indices.as_strided(before.shape, (1,), at - before.shape[0]).data_ptr() == before.data_ptr()
    wide = set()
    for seed in range(12):
        for name, operand in moved("wide", seed).operands().items():
            if isinstance(operand, torch.Tensor) and (operand.shape[0] - 1) * operand.stride(0) >= 1 << 31:
                wide.add(name)
                assert operand.storage_offset() >= 1 << 31
    assert wide == {"q_nope", "q_pe", "ckv_cache", "kpe_cache"}


def test_given_results_are_as_named() -> None:
    def strides(layout: str, rows: int) -> set[tuple[tuple[int, ...], ...]]:
        made = [allocate_results(LAYOUTS[layout], rows, torch.float16, torch.device("cpu"), seed) for seed in range(12)]
        assert all(output.dtype == torch.float16 and lse.dtype == torch.float32 for output, lse in made)
        assert all(intact(part) for pair in made for part in pair)
        return {(output.stride(), lse.stride()) for output, lse in made}

    plain = ((8192, 512, 1), (16, 1))
    for layout in LAYOUTS.keys() - {"stepped", "given-output", "given-lse", "wide-output"}:
        assert strides(layout, 3) == {plain}
    assert strides("stepped", 3) == {((16384, 1024, 2), plain[1])}
    assert strides("given-output", 3) == {
        (output, plain[1]) for output in ((8336, 520, 1), (8210, 513, 1), (512, 1536, 1), (16384, 1024, 2), (1, 3, 48))
    }
    assert strides("given-lse", 3) == {(plain[0], lse) for lse in ((1, 4), (19, 1), (32, 2))}
    assert all(lse != (16, 1) for _, lse in strides("given-lse", 1))
    [((row, head, column), lse)] = strides("wide-output", 3)
    assert 2 * row >= 1 << 31 and (head, column) == (512, 1) and lse == plain[1]
    assert strides("wide-output", 1) == {plain}


DIGESTS = Path(__file__).with_name("digests.json")
SPANNING = json.loads(DIGESTS.read_text())


def digest(inputs: Inputs) -> str:
    """Of dtype, shape and bytes of all operands; of sparse caches, the pages that are named and their neighbours."""
    state = hashlib.sha256()
    for name, operand in inputs.operands().items():
        if isinstance(operand, torch.Tensor):
            state.update(f"{name} {operand.dtype} {tuple(operand.shape)}".encode())
            if name.endswith("_cache") and inputs.num_pages > 1 << 20:
                near = (live_pages(inputs)[:, None] + torch.tensor([-1, 0, 1], device=inputs.device)).flatten()
                operand = operand[near[near < inputs.num_pages].unique()]
            state.update(operand.contiguous().view(torch.uint8).cpu().numpy().tobytes())
        else:
            state.update(f"{name} {operand.hex()}".encode())
    return state.hexdigest()


@pytest.mark.parametrize("recorded", SPANNING, ids=lambda recorded: recorded["name"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_case_has_the_same_bits_on_every_device_and_in_every_version(recorded: dict, device: str) -> None:
    case = Case.from_json(recorded["case"])
    if device == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no GPU")
        torch.cuda.empty_cache()
        if memory_bytes(case, device) > torch.cuda.mem_get_info()[0]:
            pytest.skip("not enough free GPU memory")
    assert digest(build(case, device)) == recorded["sha256"]


def test_recorded_cases_span_all_strata_that_shape_operands() -> None:
    cases = [Case.from_json(recorded["case"]) for recorded in SPANNING]
    for family, registry in (
        ("pages", PAGES),
        ("values", VALUES),
        ("layout", LAYOUTS),
        ("scale", SCALES),
        ("poison", POISONS),
        ("index_dtype", INDEX_DTYPES),
        ("indptr", INDPTRS),
    ):
        assert {getattr(case, family) for case in cases} == registry.keys()
