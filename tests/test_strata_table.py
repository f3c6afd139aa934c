import re
from pathlib import Path

import pytest

from fuzz.case import FAMILIES
from fuzz.strata.faults import FAULTS, FOUND_BY_REPETITION
from fuzz.strata.table import page

STRATA = [(family, name) for family, registry in FAMILIES.items() for name in registry]
DOCS = Path(__file__).parents[1] / "docs" / "strata.md"


def classes(source: str) -> set[str]:
    return set(re.findall(r"F\d\d", source))


def test_the_documentation_is_in_step_with_the_registries() -> None:
    if not DOCS.exists():
        pytest.skip("installed without docs/")
    assert DOCS.read_text() == page(), "out of date: python -m fuzz.strata.table > docs/strata.md"


@pytest.mark.parametrize(("family", "name"), STRATA, ids=[":".join(stratum) for stratum in STRATA])
def test_every_stratum_says_in_a_line_what_it_is_and_where_it_comes_from(family: str, name: str) -> None:
    stratum = FAMILIES[family][name]
    assert 10 <= len(stratum.doc) <= 120
    assert "\n" not in stratum.doc and "|" not in stratum.doc
    known = classes(stratum.source) or stratum.source in ("definition", "numerics")
    assert known, f"{family}:{name} comes from {stratum.source!r}, which is no fault class"
    assert classes(stratum.source) <= FAULTS.keys()


def test_every_class_of_mistakes_has_a_stratum_but_those_that_only_repetition_shows() -> None:
    hunted = set().union(*(classes(FAMILIES[family][name].source) for family, name in STRATA))
    assert hunted == FAULTS.keys() - set(FOUND_BY_REPETITION)
