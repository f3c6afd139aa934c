from fuzz.strata.reach import reach
from fuzz.strata.strategy import CPU
from kernel.contract import CONTRACTS


def test_every_stratum_can_be_drawn_or_says_why_not():
    hardened, definition = (reach(CONTRACTS[name], (), CPU) for name in ("hardened", "definition"))
    assert hardened.keys() == definition.keys()
    assert hardened["values:bell"] == definition["values:bell"] == ""
    assert hardened["lengths:masked-rows"] == ""
    assert definition["lengths:masked-rows"] == "needs the promise masked-rows"
    assert "budget" in hardened["lengths:huge-q"]


def test_strata_chosen_by_hand_leave_the_rest_of_their_family_out():
    reached = reach(CONTRACTS["hardened"], ("bell", "pages:reversed"), CPU)
    assert {name for name, reason in reached.items() if not reason and name.startswith("values:")} == {"values:bell"}
    assert reached["pages:identity"] == "not among --strata"
    assert reached["scale:ln2"] == ""
