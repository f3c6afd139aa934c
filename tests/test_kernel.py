"""The production kernel against the golden reference, and each promise of its contract on a small case of its own.

On a GPU where there is one, on Hopper as other GPUs run it as well; otherwise in Triton's interpreter, there as Hopper
runs it as well.
"""

import itertools
from dataclasses import replace

import pytest
import torch

import kernel
from kernel import emulated, portable
from kernel.contract import Inputs
from reference import bounds
from tests.reference_inputs import make_inputs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_HOPPER = DEVICE == "cuda" and torch.cuda.get_device_capability() == (9, 0)
NAN, INF = float("nan"), float("inf")


def on_device(inputs: Inputs) -> Inputs:
    values = inputs.operands().values()
    return Inputs(*(value.to(DEVICE) if isinstance(value, torch.Tensor) else value for value in values))


RUNS = [kernel.run, *([emulated.run] if DEVICE == "cpu" else [portable.run] if ON_HOPPER else [])]


@pytest.fixture(autouse=True, params=RUNS, ids=lambda run: f"{run.__module__}.run".replace(".host", ""))
def hopper(request) -> bool:
    """Whether long requests may go to the kernel for Hopper; `run` runs what it says in the test."""
    global _run
    _run = request.param
    return _run is (kernel.run if ON_HOPPER else emulated.run)


def run(inputs: Inputs, **buffers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _run(**inputs.operands(), **buffers)


def assert_right(inputs: Inputs, output: torch.Tensor, lse: torch.Tensor) -> None:
    expected = bounds.expected(inputs)
    low, high = bounds.interval(expected, output.dtype)
    lost = expected.contaminated | expected.lse.isnan()
    clean = ~(expected.empty | lost)
    assert ((output >= low) & (output <= high))[clean].all()
    assert ((lse.double() - expected.lse).abs() <= expected.lse_error)[clean].all()
    assert (output[expected.empty].view(torch.int16) == 0).all()
    assert torch.isneginf(lse[expected.empty]).all()
    assert lse[lost].isnan().all() and output[lost].isnan().all()


def assert_same_bits(one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert torch.equal(one[0].view(torch.int16), other[0].view(torch.int16))
    assert torch.equal(one[1].view(torch.int32), other[1].view(torch.int32))


LENGTHS = {
    "one key": [(1, 1)],
    "tile edges": [(1, 63), (1, 64), (1, 65), (5, 128), (4, 67)],
    "ragged": [(3, 40), (5, 7), (2, 90)],
    "empty requests": [(0, 0), (2, 3), (0, 5), (3, 0), (0, 0), (1, 2), (0, 4)],
    "masked rows": [(33, 1), (6, 2), (5, 5)],
    "one query": [(1, 200), (1, 5)],
    "split": [(1, 1100), (0, 700), (2, 1300), (5, 40), (1, 512), (1, 513)],
    "many rows": [(4, 3), (0, 2), (9, 7), (2, 0), (3, 1)],
    "many requests": [(1, i % 7) for i in range(70)],
    "no request": [],
    "no query": [(0, 3), (0, 0)],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_agrees_with_the_golden_reference(lengths, dtype):
    inputs = on_device(make_inputs(lengths, dtype=dtype))
    assert_right(inputs, *run(inputs))


@pytest.mark.parametrize("scale", [0.0, -0.1, 1e-20, 3.0], ids=repr)
def test_any_scale(scale):
    inputs = on_device(make_inputs([(3, 70), (6, 4)], sm_scale=scale))
    assert_right(inputs, *run(inputs))


def test_every_small_pair_of_lengths():
    inputs = on_device(make_inputs(list(itertools.product(range(5), repeat=2))))
    assert_right(inputs, *run(inputs))


def test_nan_contained_in_pages_that_no_slot_names():
    inputs = make_inputs([(2, 65), (3, 3)])
    for poison in (NAN, INF):
        dead = torch.ones(inputs.num_pages, dtype=torch.bool)
        dead[inputs.kv_indices] = False
        inputs.ckv_cache[dead] = poison
        inputs.kpe_cache[dead] = poison
        given = on_device(inputs)
        assert_right(given, *run(given))


def test_padded_rows_are_empty_and_spare_indices_unused():
    inputs = make_inputs([(3, 5), (2, 2)], padded_rows=9)
    expected = run(on_device(inputs))
    spare = torch.tensor([-1, 2**31 - 1, inputs.num_pages, -(2**31)], dtype=torch.int32)
    given = on_device(replace(inputs, kv_indices=torch.cat([inputs.kv_indices, spare])))
    results = run(given)
    assert_right(given, *results)
    assert_same_bits(results, expected)


def strided(inputs: Inputs) -> dict[str, Inputs]:
    """The same values in layouts that servers use."""

    def view(tensor: torch.Tensor, *, row: int, start: int, step: int = 1) -> torch.Tensor:
        buffer = torch.full((*tensor.shape[:-1], row), NAN, dtype=tensor.dtype)
        place = buffer[..., start : start + step * tensor.shape[-1] : step]
        place.copy_(tensor)
        return place

    def every_other(tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensor, torch.full_like(tensor, -1)], 1)[:, 0]

    q = torch.cat([inputs.q_nope, inputs.q_pe], -1)
    k = torch.cat([inputs.ckv_cache, inputs.kpe_cache], -1)
    by_head = {name: getattr(inputs, name).transpose(0, 1).contiguous().transpose(0, 1) for name in ("q_nope", "q_pe")}
    odd = {name: view(getattr(inputs, name), row=1200, start=1, step=2)
           for name in ("q_nope", "q_pe", "ckv_cache", "kpe_cache")}  # fmt: skip
    indices = {name: every_other(getattr(inputs, name)) for name in ("qo_indptr", "kv_indptr", "kv_indices")}
    return {
        "fused": replace(
            inputs, q_nope=q[..., :512], q_pe=q[..., 512:], ckv_cache=k[..., :512], kpe_cache=k[..., 512:]
        ),
        "offset by one element": replace(inputs, q_nope=view(inputs.q_nope, row=520, start=1)),
        "by head": replace(inputs, **by_head),
        "every other element": replace(inputs, **odd),
        "every other index": replace(inputs, **indices),
    }


@pytest.mark.parametrize("layout", list(strided(make_inputs([(1, 1)]))))
def test_any_strides_and_offsets_give_the_same_bits(hopper, layout):
    inputs = make_inputs([(5, 70), (2, 9)])
    view = strided(inputs)[layout]
    given = view if DEVICE == "cpu" else _copy_layout(view)
    results, others = run(given), run(on_device(inputs))
    assert_right(given, *results)
    if not hopper or layout in ("fused", "by head"):
        assert_same_bits(results, others)
    # Elsewhere long requests take another kernel: rows do not move in 16-byte pieces, or the page ids are strided.
    assert_same_bits((results[0][5:], results[1][5:]), (others[0][5:], others[1][5:]))


def _copy_layout(inputs: Inputs) -> Inputs:
    """The inputs on the GPU with their strides and offsets, which `Tensor.to` does not keep."""
    moved = {}
    for name, value in inputs.operands().items():
        if isinstance(value, torch.Tensor):
            storage = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).to(DEVICE)
            value = storage.as_strided(value.shape, value.stride(), value.storage_offset())
        moved[name] = value
    return Inputs(**moved)


@pytest.mark.parametrize("name", ["qo_indptr", "kv_indptr", "kv_indices"])
def test_any_index_tensor_may_be_int64(name):
    inputs = on_device(make_inputs([(5, 70), (2, 9)]))
    assert_same_bits(run(replace(inputs, **{name: getattr(inputs, name).long()})), run(inputs))


def test_repeatable():
    inputs = on_device(make_inputs([(7, 150), (2, 9)]))
    first = run(inputs)
    for _ in range(3 if DEVICE == "cpu" else 200):
        assert_same_bits(run(inputs), first)


def test_page_invariant():
    inputs = make_inputs([(5, 70), (2, 9)])
    renamed = torch.randperm(inputs.num_pages, generator=torch.Generator().manual_seed(1))
    ckv, kpe = torch.empty_like(inputs.ckv_cache), torch.empty_like(inputs.kpe_cache)
    ckv[renamed], kpe[renamed] = inputs.ckv_cache, inputs.kpe_cache
    moved = replace(inputs, ckv_cache=ckv, kpe_cache=kpe, kv_indices=renamed[inputs.kv_indices.long()].int())
    assert_same_bits(run(on_device(moved)), run(on_device(inputs)))


def test_batch_invariant():
    lengths = [(3, 40), (5, 130), (0, 3), (6, 2), (2, 90)]
    inputs = make_inputs(lengths)
    whole = run(on_device(inputs))
    for request in range(len(lengths)):
        rows = slice(*inputs.qo_indptr[request : request + 2].tolist())
        keys = slice(*inputs.kv_indptr[request : request + 2].tolist())
        alone = replace(
            inputs,
            q_nope=inputs.q_nope[rows],
            q_pe=inputs.q_pe[rows],
            qo_indptr=inputs.qo_indptr[request : request + 2] - rows.start,
            kv_indptr=inputs.kv_indptr[request : request + 2] - keys.start,
            kv_indices=inputs.kv_indices[keys],
        )
        assert_same_bits(run(on_device(alone)), (whole[0][rows], whole[1][rows]))


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=repr)
@pytest.mark.parametrize("cache", ["ckv_cache", "kpe_cache"])
@pytest.mark.parametrize("position", [0, -4, -3, -2, -1])
@pytest.mark.parametrize("kv_len", [67, 131], ids="{} keys".format)
def test_causal_contained(cache, value, position, kv_len):
    inputs = make_inputs([(5, kv_len)])
    clean = run(on_device(inputs))
    position %= kv_len
    getattr(inputs, cache)[inputs.kv_indices[position], 0, 3] = value
    output, lse = run(on_device(inputs))
    sees = torch.arange(kv_len - 5, kv_len, device=DEVICE) >= position
    # A rotary part of -Inf may only take the key's weight away.
    if cache == "ckv_cache" or value != value:
        assert not output[sees].isfinite().all(-1).any()
    assert_same_bits((output[~sees], lse[~sees]), (clean[0][~sees], clean[1][~sees]))


@pytest.mark.parametrize(("q_len", "kv_len"), [(20, 9), (133, 129)])
def test_tiles_that_see_nothing_are_empty_whatever_the_first_key_holds(q_len, kv_len):
    inputs = make_inputs([(q_len, kv_len)])
    inputs.ckv_cache[inputs.kv_indices[0], 0, 15] = NAN
    output, lse = run(on_device(inputs))
    masked = q_len - kv_len
    assert (output[:masked].view(torch.int16) == 0).all()
    assert torch.isneginf(lse[:masked]).all()
    assert lse[masked:].isnan().all()


BAD_PAGES = [-1, -(2**31), 2**31 - 1, 10_000]


@pytest.mark.parametrize("page", BAD_PAGES)
def test_hardened_against_pages_outside_the_cache(page):
    inputs = make_inputs([(2, 30), (6, 70), (2, 3)])
    clean = run(on_device(inputs))
    inputs.kv_indices[30 + 66] = page
    output, lse = run(on_device(inputs))
    names_it = torch.zeros(10, dtype=torch.bool, device=DEVICE)
    names_it[4:8] = True  # query i of the second request sees positions up to 64 + i
    assert output[names_it].isnan().all() and lse[names_it].isnan().all()
    assert_same_bits((output[~names_it], lse[~names_it]), (clean[0][~names_it], clean[1][~names_it]))


HUGE = 2**31 - 1
GARBAGE = [[0, 2, HUGE], [0, HUGE, 3], [-5, 2, 8], [0, 8, 2], [7, 7, 7], [-(2**31), HUGE, 5], [3, 100, 4]]


@pytest.mark.parametrize("indptr", GARBAGE, ids=repr)
@pytest.mark.parametrize("name", ["qo_indptr", "kv_indptr"])
def test_hardened_against_garbage_row_pointers(name, indptr):
    inputs = make_inputs([(2, 5), (1, 3)])
    given = on_device(replace(inputs, **{name: torch.tensor(indptr, dtype=torch.int32)}))
    output, lse = run(given)
    if name == "kv_indptr":
        assert_right(given, output, lse)


@pytest.mark.parametrize("indptr", [[0, 1500, 700, 2700], [2000, 3000, 1000, 4100], [-3, 1500, 2100, 9100]], ids=repr)
def test_hardened_where_long_requests_overlap(indptr):
    inputs = on_device(make_inputs([(1, 1500), (1, 600), (2, 2000)]))
    given = replace(inputs, kv_indptr=torch.tensor(indptr, dtype=torch.int32, device=DEVICE))
    assert_right(given, *run(given))


def test_batch_invariant_however_many_rows_there_are():
    """Beyond some number each program takes several rows."""
    inputs = make_inputs([(2, 5), (1, 40), (3, 70), (2, 2)])
    many = {
        name: torch.cat([getattr(inputs, name), torch.zeros_like(getattr(inputs, name)[:1]).expand(count, -1, -1)])
        for name, count in dict.fromkeys(("q_nope", "q_pe"), 10 if DEVICE == "cpu" else 3000).items()
    }
    given = on_device(replace(inputs, **many))
    output, lse = run(given)
    assert_right(given, output, lse)
    assert_same_bits((output[:8], lse[:8]), run(on_device(inputs)))


def test_batch_invariant_where_a_request_is_split():
    inputs = make_inputs([(1, 700), (2, 1100)])
    whole = run(on_device(inputs))
    alone = replace(
        inputs,
        q_nope=inputs.q_nope[1:],
        q_pe=inputs.q_pe[1:],
        qo_indptr=torch.tensor([0, 2], dtype=torch.int32),
        kv_indptr=torch.tensor([0, 1100], dtype=torch.int32),
        kv_indices=inputs.kv_indices[700:],
    )
    assert_same_bits(run(on_device(alone)), (whole[0][1:], whole[1][1:]))


@pytest.mark.parametrize("position", [0, 700, 1099], ids=repr)
def test_causal_contained_in_a_split_request(position):
    inputs = make_inputs([(2, 1100)])
    clean = run(on_device(inputs))
    inputs.ckv_cache[inputs.kv_indices[position], 0, 3] = INF
    output, lse = run(on_device(inputs))
    sees = torch.arange(1098, 1100, device=DEVICE) >= position
    assert not output[sees].isfinite().all(-1).any()
    assert_same_bits((output[~sees], lse[~sees]), (clean[0][~sees], clean[1][~sees]))


@pytest.mark.parametrize(("q_len", "kv_len"), [(4, 6), (1, 6), (4, 100), (1, 100)])
@pytest.mark.parametrize("claim", [2, 500, HUGE], ids=repr)
def test_rows_that_reach_past_kv_indices_are_nan(q_len, kv_len, claim):
    inputs = make_inputs([(q_len, kv_len)])
    claimed = min(kv_len + claim, HUGE)
    given = on_device(replace(inputs, kv_indptr=torch.tensor([0, claimed], dtype=torch.int32)))
    output, lse = run(given)
    assert_right(given, output, lse)
    reaches = claimed - q_len + torch.arange(1, q_len + 1, device=DEVICE) > kv_len
    assert (lse.isnan().all(-1) == reaches).all() and (output.isnan().all(-1).all(-1) == reaches).all()


def test_a_cache_without_pages():
    inputs = make_inputs([(2, 3), (1, 0)])
    empty = replace(inputs, ckv_cache=inputs.ckv_cache[:0], kpe_cache=inputs.kpe_cache[:0])
    output, lse = run(on_device(empty))
    assert output[:2].isnan().all() and lse[:2].isnan().all()
    assert (output[2] == 0).all() and torch.isneginf(lse[2]).all()


def test_result_buffers_are_written_and_returned():
    inputs = on_device(make_inputs([(3, 5)], padded_rows=2))
    output = torch.full((5, 16, 600), NAN, dtype=torch.bfloat16, device=DEVICE)[..., 7:519]
    lse = torch.full((16, 5), NAN, device=DEVICE).T
    results = run(inputs, output=output, lse=lse)
    assert results[0] is output and results[1] is lse
    assert_same_bits((output.contiguous(), lse.contiguous()), run(inputs))


def test_operands_stay_as_they_are():
    inputs = on_device(make_inputs([(3, 70)]))
    before = {name: value.clone() for name, value in inputs.operands().items() if name != "sm_scale"}
    run(inputs)
    assert all(torch.equal(getattr(inputs, name), value) for name, value in before.items())


@pytest.mark.parametrize("kv_len", [1, 64, 128])
def test_scores_that_are_all_minus_infinity_are_no_empty_row(kv_len):
    inputs = make_inputs([(1, kv_len)])
    inputs.q_pe[..., 0] = 1
    inputs.kpe_cache[..., 0] = -INF
    output, lse = run(on_device(inputs))
    assert lse.isnan().all() and output.isnan().all()
