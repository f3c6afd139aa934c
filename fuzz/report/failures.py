"""What the page says of each failure, taken from its dump."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from fuzz.demands import DEMANDS
from fuzz.files import number
from fuzz.report.picture import Picture, pictures
from fuzz.reproducer import RECORD, replay_command
from fuzz.run import Run
from fuzz.words import ratio_text, requests

_RUNS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Failure:
    """One bucket.

    traits  the strata that it needs, as far as is known
    status  new, known, or nothing where there is no earlier run to compare with
    record  its case.json
    worst   (name, value) of what is known of the worst element
    case    (name, value) of what the smallest case is
    """

    bucket: str
    check: str
    demand: str
    traits: str
    cases: int
    status: str
    record: Mapping[str, Any]
    detail: str
    worst: list[tuple[str, str]]
    case: list[tuple[str, str]]
    pictures: list[Picture]
    replay: str


def failure(run: Run, entry: Mapping[str, Any], known: Set[str] | None) -> Failure:
    """The failure that an entry of summary.json tells of; `known` are the buckets of earlier runs, if there are any."""
    dump = run.directory / entry["path"]
    record = json.loads((dump / RECORD).read_text())
    finding = record["finding"]
    return Failure(
        bucket=entry["bucket"],
        check=entry["check"],
        demand=DEMANDS.get(entry["check"], ""),
        traits=("seen with " if entry["bucket"].endswith("+unshrunk") else "needs ")
        + entry["stratum"].replace("+", " + "),
        cases=entry["cases"],
        status="" if known is None else "known" if entry["bucket"] in known else "new",
        record=record,
        detail=finding["detail"],
        worst=_worst_element(finding),
        case=_case(record["case"]),
        pictures=pictures(dump, "lse" if entry["check"] == "lse" else "output"),
        replay=replay_command(dump, run.options.kernel),
    )


def _worst_element(finding: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if finding.get("index") is not None:
        # of a result, but for the one check that names an operand
        named = ("row", "head", "column") if finding["check"] != "inputs-untouched" else ("index", "", "")
        where = (f"{axis} {i}".strip() for axis, i in zip(named, finding["index"], strict=False))
        rows.append(("element", ", ".join(where)))
    if finding.get("variant"):
        rows.append(("variant", finding["variant"]))
    for name in ("got", "expected"):
        if finding.get(name) is not None:
            rows.append((name, f"{number(finding[name]):.9g}"))
    if finding.get("allowed") is not None:
        low, high = map(number, finding["allowed"])
        rows.append(("allowed", f"{low:.9g} to {high:.9g}"))
    if finding.get("ratio") is not None:
        rows.append(("error / bound", ratio_text(number(finding["ratio"]))))
    return rows


def _case(case: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A case as people read it: its lengths, its strata, its numbers as far as they are not 0."""
    strata = [f"{name.replace('_', ' ')} {value}" for name, value in case.items() if isinstance(value, str)]
    rows = [("lengths", "; ".join(requests(case.get("lengths", []), _RUNS_SHOWN))), ("strata", ", ".join(strata))]
    return rows + [(name.replace("_", " "), str(n)) for name, n in case.items() if isinstance(n, int) and n]
