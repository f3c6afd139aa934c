"""What a run says on the terminal when it begins and when it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fuzz.coverage import table
from fuzz.options import TABLE, WHOLE
from fuzz.parsers import without_password
from fuzz.run import Run
from fuzz.summary import replay_command
from fuzz.totals import Totals
from fuzz.words import counted, ratio_text


def opening(run: Run, environ: Mapping[str, str]) -> list[str]:
    """The options of a run, and which of them the environment set."""
    options, claim = run.options, run.options.claim
    shown = {
        "--kernel": options.kernel,
        "--contract": claim.contract,
        "--without": ",".join(claim.without) or None,
        "--profile": claim.profile,
        "--max-time": f"{options.max_time:g}s" if options.max_time else None,
        "--max-cases": options.max_cases,
        "--seed": run.seed,
        "--device": run.device,
        "--sandbox": options.sandbox if options.sandbox != "auto" else None,
        "--sanitize": options.sanitize,
        "--strata": ",".join(options.strata) or None,
        "--max-failures": options.max_failures,
        "--shard": options.shard if options.shard != WHOLE else None,
        "--database": options.database,
        "--out": run.directory,
    }
    set_by = [f"{option.variable}={environ[option.variable]}" for option in TABLE if environ.get(option.variable)]
    lines = ["mla-fuzz: " + " ".join(f"{flag} {value}" for flag, value in shown.items() if value is not None)]
    lines += [f"mla-fuzz: environment: {' '.join(set_by)}"] * bool(set_by)
    return [without_password(line) for line in lines]


def title(totals: Totals) -> str:
    """The result in a line."""
    if _is_refused(totals):
        return "mla-fuzz: the run could not be done"
    return f"mla-fuzz: {counted(len(totals.buckets()), 'failure')} in {counted(totals.cases, 'case')}"


def closing(run: Run, totals: Totals, *, coverage: bool) -> Iterator[tuple[str, bool]]:
    """The lines below the title, each with whether it tells of something bad. `coverage` has how often each stratum
    and residue came up among them."""
    for bucket in totals.buckets():
        finding = bucket.smallest.finding
        yield f"{bucket.name}  ({counted(bucket.cases, 'case')}; needs {bucket.stratum})", True
        yield f"    {finding.get('message') or finding['detail']}", False
        yield f"    {replay_command(run, bucket)}", False
    for event in totals.errors:
        yield event["message"], True
    if _is_refused(totals):
        return
    for event in totals.unfinished():
        yield f"unfinished: {event['case']}", False
    for one in totals.lost:
        yield f"run again, as {one['why']}: {one['case']}", False
    for message in totals.warnings:
        yield message, False
    if coverage:
        for line in table(totals):
            yield line, False
    worst = ", ".join(f"{check} {ratio_text(totals.worst(check))}" for check in ("output", "lse"))
    yield f"worst observed/bound: {worst}; seed {run.seed}; stopped: {totals.stopped}", False
    yield f"results: {run.directory / 'report.html'}", False


def _is_refused(totals: Totals) -> bool:
    """Whether nothing was run, as what was asked for cannot be done."""
    return not totals.cases and any(event["usage"] for event in totals.errors)
