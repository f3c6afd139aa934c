"""Which failures are one, and how their bucket is called."""

import pytest

from fuzz.buckets import BY_CHANCE, bucket_name, common, is_bucket_name, is_same, kind_of, telling, title
from fuzz.case import Case
from fuzz.describe import traits_of

FINDING = {"index": [0, 0, 0], "rows": "boundary"}


@pytest.mark.parametrize(
    ("case", "traits"),
    [
        (Case(((1, 1, 1),)), set()),
        (Case(((1, 1, 2),)), {"lengths:keys"}),
        (Case(((2, 1, 1),)), {"lengths:requests"}),
        (Case(((1, 1, 66),)), {"lengths:keys", "lengths:key-tiles"}),
        (Case(((1, 1, 65),)), {"lengths:keys", "lengths:key-tiles", "lengths:key-edge"}),
        (Case(((1, 2, 1),)), {"lengths:queries", "lengths:masked-rows"}),
        (Case(((1, 5, 5),)), {"lengths:queries", "lengths:query-tiles", "lengths:keys"}),
        (Case(((1, 1, 1),), dtype="float16", spare_pages=3), {"dtype:float16", "tail:spare_pages"}),
    ],
)
def test_traits_are_what_sets_a_case_apart_from_the_simplest(case, traits):
    assert traits_of(case) == traits


def test_the_seed_is_no_trait():
    assert traits_of(Case(((1, 1, 1),), seed=9)) == set()


def test_a_smaller_case_needs_no_more():
    for keys in (1, 2, 63, 66, 130, 9000):
        for queries in (1, 2, 5):
            case, larger = Case(((1, queries, keys + 5),)), Case(((2, queries + 1, 2 * keys + 5),))
            reaches = {trait for trait in traits_of(case) - BY_CHANCE if trait != "lengths:masked-rows"}
            assert reaches <= traits_of(larger)


def test_names_tell_check_row_and_what_is_needed_and_leave_out_what_follows():
    traits = {"lengths:keys", "lengths:key-tiles", "pages:permuted"}
    assert bucket_name("output", traits, FINDING, shrunk=True) == "output-boundary+lengths-key-tiles+pages-permuted"
    assert bucket_name("alive", (), {"detail": "died"}, shrunk=True) == "alive"
    assert bucket_name("output", traits, FINDING, shrunk=False) == "output-boundary+unshrunk"
    assert title(traits) == "lengths:key-tiles+pages:permuted" and title(()) == "any"


def test_variants_of_a_kernel_have_buckets_of_their_own():
    one, other = ({"check": "output", **FINDING, "variant": variant} for variant in ("lone", "tiled"))
    assert kind_of(one) == "output-lone" and kind_of(other) == "output-tiled"
    assert kind_of({"check": "output", **FINDING}) == "output"
    assert bucket_name("output", {"lengths:keys"}, one, shrunk=True) == "output-boundary-lone+lengths-keys"
    assert is_bucket_name(bucket_name("output", (), other, shrunk=False))


def test_long_names_are_cut_and_still_differ():
    many = {f"values:{'x' * 20}{i}" for i in range(20)}
    names = {bucket_name("output", traits, FINDING, shrunk=True) for traits in (many, many | {"zzz"})}
    assert len(names) == 2 and all(len(name) < 200 and is_bucket_name(name) for name in names)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "-rf", ".hidden", "a\0", "a\nb", "a" * 300, None, 3])
def test_what_could_lead_elsewhere_is_no_bucket_name(name):
    assert not is_bucket_name(name)


def test_every_family_of_strata_makes_a_name():
    traits = traits_of(Case(((1, 1, 1),), pages="across-2^22", layout="one-head", index_dtype="int64", padded_rows=1))
    assert is_bucket_name(bucket_name("output", traits, FINDING, shrunk=True))


def test_edges_do_not_tell_failures_apart():
    at_65 = frozenset({"lengths:keys", "lengths:key-tiles", "lengths:key-edge"})
    at_66 = frozenset({"lengths:keys", "lengths:key-tiles"})
    assert is_same(at_65, at_66) and is_same(at_66, at_65)
    assert common(at_65, at_66) == common(at_66, at_65) == at_66
    assert common(at_65, at_65) == at_65
    assert not is_same(frozenset({"pages:permuted"}), at_66)


def test_checks_that_call_again_count_only_where_the_first_results_are_right():
    def found(*checks):
        return [finding["check"] for finding in telling([{"check": check} for check in checks])]

    assert found("output", "fresh", "lse", "repeatable") == ["lse", "output"]
    assert found("fresh", "repeatable") == ["repeatable", "fresh"]
    assert found() == []
    assert telling([{"check": "lse", "n": 1}, {"check": "lse", "n": 2}]) == [{"check": "lse", "n": 1}]
