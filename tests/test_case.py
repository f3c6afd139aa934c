import json

import pytest

from fuzz.case import FAMILIES, NAMED, Case, is_bell_shaped, is_finite, promises_needed, strata_of
from kernel.contract import PROMISES

CASES = [
    Case(()),
    Case(((1, 1, 1),)),
    Case(((2, 3, 70), (1, 0, 4)), pages="permuted", seed=(1 << 64) - 1, padded_rows=2, spare_indices=3, spare_pages=4),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_json_gives_an_equal_case_back(case: Case) -> None:
    text = json.dumps(case.to_json(), allow_nan=False)
    assert Case.from_json(json.loads(text)) == case


@pytest.mark.parametrize("family", NAMED)
def test_every_named_stratum_makes_a_case_and_is_listed_by_it(family: str) -> None:
    for name in FAMILIES[family]:
        case = Case(((1, 2, 3),), **{family: name})
        assert f"{family}:{name}" in strata_of(case)
        assert promises_needed(case) <= set(PROMISES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": None}, "seed is None, must be an integer"),
        ({"seed": True}, "seed is True, must be an integer"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616, must be 0 .. "),
        ({"seed": 1.0}, "seed is 1.0, must be an integer"),
        ({"padded_rows": -1}, "padded_rows is -1"),
        ({"spare_pages": 1 << 40}, "spare_pages is 1099511627776"),
        ({"pages": "scrambled"}, "pages is 'scrambled', must be one of identity"),
        ({"pages": ["identity"]}, "pages is "),
        ({"lengths": [[1, 2]]}, r"lengths\[0\] is \(1, 2\), must be \(count, q_len, kv_len\)"),
        ({"lengths": [[0, 2, 2]]}, r"lengths\[0\] count is 0"),
        ({"lengths": [[1, -2, 2]]}, r"lengths\[0\] q_len is -2"),
        ({"lengths": [[1, 2, 1 << 30]]}, r"lengths\[0\] kv_len is 1073741824"),
        ({"lengths": [[1 << 20, 64, 0]]}, "total_q of lengths is 67108864"),
        ({"lengths": [[1, "2", 2]]}, r"lengths\[0\] q_len is '2', must be an integer"),
        ({"lengths": "none"}, "lengths must be a list"),
        ({"lengths": [7]}, "lengths must be a list"),
        ({"color": "red"}, "color is no field of a case"),
    ],
)
def test_a_damaged_object_is_refused_naming_the_field(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.from_json(Case(((1, 1, 1),)).to_json() | change)


def test_a_missing_field_is_named() -> None:
    value = Case(((1, 1, 1),)).to_json()
    del value["poison"]
    with pytest.raises(ValueError, match="poison is missing"):
        Case.from_json(value)


@pytest.mark.parametrize("value", [None, [], "case", 3])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="must be an object"):
        Case.from_json(value)


def test_smaller_cases_sort_first() -> None:
    plain = Case(((1, 2, 2),))
    ordered = [
        Case(((1, 1, 1),)),
        plain,
        Case(((1, 2, 2),), seed=5),
        Case(((1, 2, 2),), values="one-hot"),
        Case(((1, 2, 2),), values="one-hot", pages="permuted"),
        Case(((1, 2, 3),)),
        Case(((2, 2, 2),)),
        Case(((1, 64, 500),)),
    ]
    assert sorted(ordered[4:] + ordered[:4], key=lambda case: case.size) == ordered


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"poison": "decoys"}, {"base"}),
        ({}, {"base", "nan-contained"}),
        ({"lengths": ((1, 3, 0),)}, {"base", "nan-contained"}),
        ({"lengths": ((1, 3, 2),)}, {"base", "nan-contained", "masked-rows"}),
        ({"padded_rows": 1}, {"base", "nan-contained", "padding"}),
        ({"spare_indices": 1}, {"base", "nan-contained", "padding"}),
        ({"layout": "fused"}, {"base", "nan-contained", "strided"}),
        ({"index_dtype": "int64-indices"}, {"base", "nan-contained", "int64-indices"}),
        ({"values": "nonfinite-seen"}, {"base", "nan-contained"}),
        ({"values": "nonfinite-seen", "pages": "shared-prefix"}, {"base", "nan-contained", "causal-contained"}),
        ({"values": "nonfinite-beyond"}, {"base", "nan-contained", "causal-contained"}),
        ({"pages": "garbage"}, {"base", "nan-contained", "hardened"}),
        ({"indptr": "kv-max"}, {"base", "nan-contained", "hardened"}),
    ],
)
def test_a_case_needs_the_promises_that_its_strata_test(changes: dict, needed: set[str]) -> None:
    assert promises_needed(Case(**{"lengths": ((1, 2, 3),)} | changes)) == needed


def test_the_statistical_verdict_is_for_independent_rounding_errors_only() -> None:
    assert is_bell_shaped(Case(((1, 2, 3),)))
    for change in ({"values": "correlated"}, {"scale": "zero"}, {"pages": "hot-page"}, {"indptr": "kv-min"}):
        assert not is_bell_shaped(Case(((1, 2, 3),), **change))


def test_only_the_nonfinite_strata_are_not_finite() -> None:
    names = {name for name in FAMILIES["values"] if not is_finite(Case(((1, 1, 1),), values=name))}
    assert names == {"nonfinite-seen", "nonfinite-beyond", "nonfinite-hidden", "nonfinite-query"}
