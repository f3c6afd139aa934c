"""Puts report.html together from what is known of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fuzz.coverage import never_drawn
from fuzz.files import number, write_text
from fuzz.report import charts
from fuzz.report.failures import Failure, failure
from fuzz.report.history import began, earlier_runs, history
from fuzz.report.lines import file_lines
from fuzz.report.tables import check_rows, heat_map
from fuzz.run import Run
from fuzz.strata.lengths import TILE_KEYS
from fuzz.totals import Totals
from fuzz.words import counted, date, duration, ratio_text, short

NAME = "report.html"


def write(run: Run, totals: Totals, summary: Mapping[str, Any]) -> None:
    """Write DIR/report.html.

    summary  what summary.json holds; each of its failures has its case.json, and tensors perhaps, in DIR/<path>
    """
    write_text(run.directory / NAME, page(run, totals, summary))


def page(run: Run, totals: Totals, summary: Mapping[str, Any]) -> str:
    """The page: HTML that loads nothing and runs nothing."""
    when, counts = began(run.directory), totals.counts
    earlier = earlier_runs(run, when, summary["schema"])
    known = {bucket for one in earlier for bucket in one.buckets} if earlier else None
    failures = [failure(run, entry, known) for entry in summary["failures"]]
    checks = check_rows(summary, counts)
    return _template().render(
        summary=summary,
        when=date(when),
        verdict=_verdict(summary, failures),
        failures=failures,
        incidents=any(summary.get(kind) for kind in ("errors", "warnings", "lost", "unfinished")),
        figures=_figures(summary, totals.reach),
        checks=checks,
        heat=heat_map(summary, counts, checks, totals.reach),
        never_drawn=never_drawn(totals.reach, summary["strata"]),
        tile=TILE_KEYS,
        residues={
            f"{name} mod {TILE_KEYS}": charts.residues(name, hits, TILE_KEYS) for name, hits in counts.residues.items()
        },
        lengths=charts.lengths(counts.lengths),
        lines=file_lines(run.directory),
        pace=charts.pace(counts.pace, summary["elapsed_s"]),
        history=history(run, when, summary, earlier) if earlier else None,
        versions=totals.versions,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the run says of the kernel: kind is pass, fail or void."""

    kind: str
    headline: str
    reasons: list[str]


def _verdict(summary: Mapping[str, Any], failures: list[Failure]) -> Verdict:
    cases, flaws = counted(summary["cases"], "case"), _flaws(summary)
    if failures:
        new = sum(one.status == "new" for one in failures)
        known = sum(one.status == "known" for one in failures)
        compared = [f"{new} new, {known} known from earlier runs"] if new or known else []
        return Verdict("fail", f"Failed: {counted(len(failures), 'failure')} in {cases}", compared + flaws)
    if summary["exit_status"] == 0:
        return Verdict("pass", f"Passed: nothing found in {cases}", flaws)
    return Verdict("void", f"No verdict after {cases}", flaws or [f"the run stopped: {summary['stopped']}"])


def _flaws(summary: Mapping[str, Any]) -> list[str]:
    """What keeps a run from being whole."""
    reasons = []
    if summary["cases"] == 0:
        reasons.append("no case was run")
    if summary["errors"]:
        reasons.append(f"{counted(len(summary['errors']), 'error')}, see below")
    # of merged runs, it has the reasons of all
    reasons += [f"the run was {end} before its end" for end in ("interrupted", "killed") if end in summary["stopped"]]
    if summary["unfinished"]:
        reasons.append(f"{counted(len(summary['unfinished']), 'case')} unfinished when the run ended")
    return reasons


def _figures(summary: Mapping[str, Any], reach: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(name, value, remark) of the numbers at the top."""
    stopped = f"stopped: {summary['stopped']}" if summary["stopped"] else ""
    met = summary["strata"].keys()
    possible = met | {stratum for stratum, reason in reach.items() if not reason}
    return [
        ("cases", f"{summary['cases']:,}", f"{summary['cases_per_s']:.3g} per second"),
        ("time", duration(summary["elapsed_s"]), stopped),
        ("strata met", f"{len(met)} of {len(possible)}", f"by {counted(len(summary['checks']), 'check')}"),
        ("worst output", _worst(summary, "output"), "of the bound, where it passed"),
        ("worst lse", _worst(summary, "lse"), "of the bound, where it passed"),
    ]


def _worst(summary: Mapping[str, Any], check: str) -> str:
    return ratio_text(number(summary["checks"].get(check, {}).get("worst_ratio")))


@cache
def _template() -> Template:
    loader = PackageLoader("fuzz.report", ".")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"json": _json, "short": short, "worst": _worst}
    return environment.get_template("page.html")


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)
