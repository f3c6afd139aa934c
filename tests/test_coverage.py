"""The table at the end of a run."""

from fuzz.coverage import table
from fuzz.totals import Tally, Totals


def test_rates_are_per_thousand_and_what_was_not_run_is_named_with_its_reason(tmp_path):
    totals = Totals(tmp_path)
    totals.cases = 8
    totals.reach = {"pages:identity": "", "pages:hot-page": "", "lengths:huge-q": "needs 65,537 tiles"}
    totals.reach |= dict.fromkeys(("values:bell", "values:huge"), "not among --strata")
    totals.strata = {"pages:identity": Tally(cases=6)}
    totals.counts.residues["kv_len"].update({63: 2, 5: 4})
    assert list(table(totals)) == [
        "cases per 1,000:",
        "  pages: identity 750, hot-page 0",
        "  kv_len mod 64: 0 0, 1 0, 63 250",
        "  prefix mod 64: 0 0, 1 0, 63 0",
        "  not run: lengths:huge-q: needs 65,537 tiles",
        "  not run: values:bell, values:huge: not among --strata",
    ]


def test_a_run_without_cases_has_no_table(tmp_path):
    assert not list(table(Totals(tmp_path)))
