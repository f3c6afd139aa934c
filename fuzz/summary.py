"""The files in which a run leaves its results: summary.json, junit.xml, report.html and failures/, all made from its
journals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fuzz import reproducer
from fuzz.buckets import Bucket
from fuzz.dumps import Dumps
from fuzz.files import strict, write_json, write_text
from fuzz.report import page
from fuzz.run import Run
from fuzz.totals import Totals

SCHEMA = 1


def write_results(run: Run, totals: Totals, elapsed: float, exit_status: int) -> None:
    """Write all results of a run into its directory, each file at once."""
    Dumps(run).update(totals)
    values = strict(summary(run, totals, elapsed, exit_status))
    write_json(run.directory / "summary.json", values)
    write_text(run.directory / "junit.xml", junit(run, totals, elapsed))
    page.write(run, totals, values)


def summary(run: Run, totals: Totals, elapsed: float, exit_status: int) -> dict[str, Any]:
    """The content of summary.json. Ratios are observed/bound; null where the check has none."""
    claim = run.options.claim
    return {
        "schema": SCHEMA,
        "kernel": run.options.kernel,
        "contract": claim.contract,
        "without": list(claim.without),
        "profile": claim.profile,
        "device": totals.device or run.device,
        "seed": run.seed,
        "cases": totals.cases,
        "elapsed_s": round(elapsed, 2),
        "cases_per_s": round(totals.cases / elapsed, 3) if elapsed > 0 else 0.0,
        "strata": {
            name: {
                "cases": tally.cases,
                "failed": tally.failed,
                "worst_output_ratio": tally.worst.get("output"),
                "worst_lse_ratio": tally.worst.get("lse"),
            }
            for name, tally in sorted(totals.strata.items())
        },
        "checks": {
            name: {"cases": tally.cases, "failed": tally.failed, "worst_ratio": tally.worst[name]}
            for name, tally in sorted(totals.checks.items())
        },
        "failures": [
            {
                "bucket": bucket.name,
                "check": bucket.check,
                "stratum": bucket.stratum,
                "cases": bucket.cases,
                "path": str(Path("failures") / bucket.name),
                "replay": replay_command(run, bucket),
            }
            for bucket in totals.buckets()
        ],
        "unfinished": [event["case"] for event in totals.unfinished()],
        "lost": totals.lost,
        "warnings": totals.warnings,
        "errors": [event["message"] for event in totals.errors],
        "stopped": totals.stopped,
        "exit_status": exit_status,
    }


def replay_command(run: Run, bucket: Bucket) -> str:
    """The command that runs the smallest case of a bucket again."""
    return reproducer.replay_command(run.failures / bucket.name, run.options.kernel)


def junit(run: Run, totals: Totals, elapsed: float) -> str:
    """JUnit XML: a test case for each check that never failed, one for each bucket, one for each error."""
    found = totals.buckets()
    passed = [name for name in sorted(totals.checks) if not totals.checks[name].failed]
    suite = ElementTree.Element(
        "testsuite",
        name="mla-fuzz",
        tests=str(len(passed) + len(found) + len(totals.errors)),
        failures=str(len(found)),
        errors=str(len(totals.errors)),
        skipped="0",
        time=f"{elapsed:.2f}",
    )
    for name in passed:
        tally = totals.checks[name]
        _testcase(suite, run, name, {"cases": tally.cases, "worst_ratio": tally.worst[name]})
    for bucket in found:
        properties = {
            "cases": bucket.cases,
            "stratum": bucket.stratum,
            "ratio": bucket.smallest.finding.get("ratio"),
            "replay": replay_command(run, bucket),
        }
        case = _testcase(suite, run, bucket.name, properties)
        message = bucket.smallest.finding.get("message") or bucket.smallest.finding["detail"]
        _element(case, "failure", f"{message}\n{replay_command(run, bucket)}", type=bucket.check)
    for event in totals.errors:
        case = _testcase(suite, run, "error", {})
        _element(case, "error", event["message"])
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text.decode() + "\n"


def _testcase(suite: ElementTree.Element, run: Run, name: str, properties: dict[str, Any]) -> ElementTree.Element:
    case = ElementTree.SubElement(suite, "testcase", classname=run.options.kernel, name=name)
    if properties:
        group = ElementTree.SubElement(case, "properties")
        for key, value in properties.items():
            if value is not None:
                ElementTree.SubElement(group, "property", name=key, value=str(value))
    return case


def _element(parent: ElementTree.Element, tag: str, text: str, **attributes: str) -> None:
    """An element with a text and its first line as message, without the characters that XML cannot hold."""
    legal = re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
    element = ElementTree.SubElement(parent, tag, attributes, message=legal.partition("\n")[0])
    element.text = legal
