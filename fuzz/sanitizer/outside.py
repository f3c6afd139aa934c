"""The worker's side: batches of cases, each judged by a process under compute-sanitizer."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

from fuzz.case import Case
from fuzz.checks import Finding, Verdict
from fuzz.checks.invariance import INVARIANCES
from fuzz.files import write_json
from fuzz.options import UsageError
from fuzz.sanitizer import inside, tool
from fuzz.sanitizer.handover import Places, set_aside
from fuzz.sanitizer.log import Report, parse
from fuzz.sanitizer.process import BY_ITSELF, Process
from fuzz.strata.strategy import Budget
from reference.profile import PROFILES, Profile

# What a case may cost there: every access is looked at, which takes tens to hundreds of times as long.
SMALL = Budget("cuda", tiles=64, most_tiles=512, memory=1 << 28, heavy_one_in=16)

_BATCH = 90.0  # seconds after which a batch begins no new case
_LAST_CASE = 2.0  # seconds before the end after which none is begun: it would be lost
_NO_LIMIT = float("inf")
_SHOWN = 4  # lines of an error in the text of a finding; all of them are kept beside it
_LONGEST = 400  # characters of what a process printed, in a message


@dataclass(frozen=True, slots=True)
class Named:
    """A kernel under test by name: it is loaded in another process."""

    spec: str
    profile: Profile


@dataclass(frozen=True, slots=True)
class Sanitized:
    """A test rig, as `fuzz.rig.Rig` is one, whose cases are judged under a tool of compute-sanitizer.

    tool      its name, and that of the check which errors fail
    target    the kernel under test
    contract  the promises that it is held to
    device    "cuda"
    program   the path of compute-sanitizer
    aside     where reports were that are no errors, each time, see `fuzz.sanitizer.handover`
    """

    tool: str
    target: Named
    contract: frozenset[str]
    device: str
    program: str
    aside: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, spec: str, profile: str, contract: frozenset[str], device: str) -> Sanitized:
        """For a kernel as `fuzz.loading.load` takes it.

        Raises:
            UsageError: there is no compute-sanitizer, or no GPU for it.
        """
        return cls(name, Named(spec, PROFILES[profile]), contract, device, tool.require(name, device))

    def verdict(self, case: Case, also: Set[str] = frozenset()) -> Verdict:
        """The verdict on a case, in a process of its own. Raises UsageError if the tool does not work here, or if the
        kernel cannot be loaded."""
        return self._alone(case, also)[0]

    def judge(self, case: Case, check: str) -> tuple[Verdict, dict[str, torch.Tensor]]:
        """The verdict on a case, with `check` among the checks, and what the kernel gave. Raises UsageError too."""
        return self._alone(case, {check} & INVARIANCES.keys())

    def batch(self, cases: Sequence[Case], until: float) -> list[Verdict]:
        """The verdicts on the first of some cases, as many as there are by a time of time.monotonic, when nothing of it
        runs any more. Raises UsageError too.

        An error counts for one case. For the others of its process the check did not run: what they did is not known.
        """
        done = self._run(cases, until)
        if not done.report.entries:
            for verdict in done.verdicts:
                verdict.add(self.tool)
        elif done.verdicts:
            part = self._narrowed(cases, _Part.of(0, done), until)
            self._add_error(done.verdicts[part.first], part.report, part.count)
        return done.verdicts

    def _alone(self, case: Case, also: Set[str]) -> tuple[Verdict, dict[str, torch.Tensor]]:
        done = self._run([case], _NO_LIMIT, also)
        [verdict] = done.verdicts
        if done.report.entries:
            self._add_error(verdict, done.report, 1)
        else:
            verdict.add(self.tool)
        return verdict, done.observed

    def _narrowed(self, cases: Sequence[Case], part: _Part, until: float) -> _Part:
        """The smallest part of a batch with errors in which there still are some; one case, if the time suffices."""
        while part.count > 1:
            half = part.count // 2
            pieces = [(part.first, half), (part.first + half, part.count - half)]
            if part.dies:  # of the last case: memcheck ends the context at the first error
                pieces.insert(0, (part.first + part.count - 1, 1))
            for first, count in pieces:
                if time.monotonic() > until:
                    return part
                again = self._run(cases[first : first + count], until)
                if again.report.entries and again.verdicts:
                    part = _Part.of(first, again)
                    break
            else:
                return part
        return part

    def _add_error(self, verdict: Verdict, report: Report, count: int) -> None:
        """Have the check fail that a tool is, for what it reports of a process with so many cases."""
        entry = report.entries[0]
        more = f"; {report.count} errors" if report.count > 1 else ""
        among = f"; in one process with {count} cases, which of them is not known" if count > 1 else ""
        detail = f"{', '.join(entry.lines[:_SHOWN])}{more}{among}"
        # What the call raised after the tool had ended its context is the same error.
        verdict.findings = [finding for finding in verdict.findings if finding.check != "alive"]
        verdict.add(self.tool, Finding(self.tool, detail, cause=entry.kind, printed="\n".join(entry.lines)))

    def _run(self, cases: Sequence[Case], until: float, also: Set[str] = frozenset()) -> _Done:
        """Judge cases in one process, until a time at which it is gone."""
        with tempfile.TemporaryDirectory(prefix="mla-fuzz-") as name:
            place = Path(name)
            request = {
                "kernel": self.target.spec,
                "profile": self.target.profile.name,
                "contract": sorted(self.contract),
                "device": self.device,
                "also": sorted(also),
                "cases": [case.to_json() for case in cases],
                "seconds": _BATCH,
                "until": until - _LAST_CASE if until < _NO_LIMIT else None,
            }
            write_json(place / inside.REQUEST, request)
            process = Process(self.tool, self.program, place)
            try:
                ended = process.wait(until)
            finally:
                process.kill()
            return self._told(cases, process, place, ended)

    def _told(self, cases: Sequence[Case], process: Process, place: Path, ended: str) -> _Done:
        """What a process left behind."""
        report = parse(process.log())
        verdicts: list[Verdict] = []
        unfinished: Case | None = None
        for event in process.events():
            if event["event"] == inside.REFUSED:
                raise UsageError(event["message"])
            if event["event"] == inside.BROKEN:
                raise RuntimeError(f"the judge failed under {self.tool}:\n{event['message']}")
            if event["event"] == inside.BEGINS:
                unfinished = cases[len(verdicts)]
            if event["event"] == inside.ENDS:
                verdicts.append(Verdict.from_json(cases[len(verdicts)], event))
                unfinished = None
            if event["event"] == inside.HANDOVERS:
                places = {name: Places.from_json(lines) for name, lines in event["files"].items()}
                report, aside = set_aside(report, places)
                self.aside.extend(aside)
        if unfinished is not None:
            finding = process.death(ended)
            if finding is not None or report.entries:
                verdicts.append(Verdict(unfinished, {"alive": None}, [finding] if finding else []))
        elif report.trouble and ended == BY_ITSELF:
            said = " ".join(f"{report.trouble}; {process.printed()}".split())
            raise UsageError(f"--sanitize {self.tool}: compute-sanitizer does not work here: {said[:_LONGEST]}")
        observed = place / inside.OBSERVED
        return _Done(verdicts, report, load_file(observed) if observed.exists() else {})


@dataclass(frozen=True, slots=True)
class _Done:
    """What one process did: the verdicts on the first cases, and what the tool said of all of them."""

    verdicts: list[Verdict]
    report: Report
    observed: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive cases of a batch in whose process there were errors; `dies`: the last of them did not return."""

    first: int
    count: int
    dies: bool
    report: Report

    @classmethod
    def of(cls, first: int, done: _Done) -> _Part:
        dies = any(finding.check == "alive" for finding in done.verdicts[-1].findings)
        return cls(first, len(done.verdicts), dies, done.report)
