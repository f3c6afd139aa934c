"""One result from the runs of several machines, each of which did a part of the work: the journals of all in one
directory, and from these everything else, as for any run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import outdir
from fuzz.journal import Event, Journal
from fuzz.options import WHOLE, Shard, UsageError
from fuzz.run import Run
from fuzz.summary import write_results
from fuzz.totals import Totals

# Nearly all lines, and those that say nothing of workers, machines or ends: they are copied as they are.
_BULK = (b'{"event":"case",', b'{"event":"verdict",')
# Events that hold for a run alone and not for the whole that it is merged into.
OWN = ("worker", "device", "stop", "resumed")


@dataclass(frozen=True, slots=True)
class Part:
    """A run to merge; `summary` is that of summary.json, None if the run was killed before it wrote one."""

    run: Run
    began: str
    summary: dict[str, Any] | None


def merge(directories: Sequence[Path], out: Path) -> int:
    """Write the results of several runs as those of one into `out`, and return its exit status: 1 if any run found a
    failure, else 2 if any could not be done, was killed or is missing, else 0.

    Raises:
        UsageError: the runs are not parts of one whole, or a directory cannot be used.
    """
    parts = [_part(directory) for directory in directories]
    _check(parts, out)
    with outdir.occupied(out, keep=True):
        run = dataclasses.replace(
            parts[0].run,
            options=dataclasses.replace(parts[0].run.options, out=out, shard=WHOLE),
            directory=out,
            shards=sum(part.run.shards for part in parts),
        )
        outdir.save(run, began=min(part.began for part in parts))
        told = Told()
        for index, part in enumerate(parts):
            _copy(part, f"{index}-", run, told)
        journal = Journal(run.journals, "merge")
        told.write(journal)
        if missing := _missing(parts):
            journal.write("error", usage=False, message=f"shards that were not merged: {', '.join(missing)}")
        totals = Totals(run.journals)
        totals.update()
        whole = not missing and all(part.summary is not None and part.summary["exit_status"] == 0 for part in parts)
        status = 1 if totals.buckets() else 0 if whole else 2
        elapsed = max(totals.elapsed if part.summary is None else part.summary["elapsed_s"] for part in parts)
        write_results(run, totals, elapsed, status)
    return status


def _part(directory: Path) -> Part:
    run, began = outdir.load(directory)
    try:
        return Part(run, began, json.loads((directory / "summary.json").read_text()))
    except FileNotFoundError:
        return Part(run, began, None)
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory / 'summary.json'}: {error}") from error


def _check(parts: Sequence[Part], out: Path) -> None:
    """What has to be the same, and what has to differ, for the numbers of several runs to add up."""
    first = parts[0].run
    done: dict[Shard, Path] = {}
    for part in parts:
        run = part.run
        if run.directory.resolve() == out.resolve():
            raise UsageError(f"--out {out} is one of the runs to merge")
        for what, ours, theirs in (
            ("kernels", first.options.kernel, run.options.kernel),
            ("contracts", first.options.claim.contract, run.options.claim.contract),
            ("promises left out", first.options.claim.without, run.options.claim.without),
            ("numerics profiles", first.options.claim.profile, run.options.claim.profile),
            ("seeds", first.seed, run.seed),
            ("numbers of shards", first.options.shard.count, run.options.shard.count),
        ):
            if ours != theirs:
                raise UsageError(f"{first.directory} and {run.directory} have different {what}: {ours} and {theirs}")
        shard = run.options.shard
        if shard in done:
            raise UsageError(f"{done[shard]} and {run.directory} did the same cases: both are shard {shard}")
        done[shard] = run.directory


def _missing(parts: Sequence[Part]) -> list[str]:
    done = {part.run.options.shard for part in parts}
    count = parts[0].run.options.shard.count
    return [str(shard) for shard in (Shard(index, count) for index in range(count)) if shard not in done]


@dataclass(slots=True)
class Told:
    """What journals say of machines and ends, each once."""

    devices: dict[str, None] = field(default_factory=dict)
    versions: dict[str, dict[str, None]] = field(default_factory=dict)
    strata: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        if event["event"] == "device":
            self.devices[event["device"]] = None
            for name, version in event["versions"].items():
                self.versions.setdefault(name, {})[version] = None
            # one machine that can draw a stratum is enough
            self.strata = {name: reason and self.strata.get(name, reason) for name, reason in event["strata"].items()}
        elif event["event"] == "stop":
            self.reasons[event["reason"]] = None

    def machines(self) -> Event:
        """A `device` event that tells of all machines."""
        versions = {name: ", ".join(found) for name, found in self.versions.items()}
        return {"event": "device", "device": ", ".join(self.devices), "versions": versions, "strata": self.strata}

    def write(self, journal: Journal) -> None:
        if self.devices:
            journal.write(**self.machines())
        journal.write("stop", reason=", ".join(self.reasons))


def _copy(part: Part, prefix: str, run: Run, told: Told) -> None:
    """Copy the journals of a run, with `prefix` before the names of its workers, and its evidence."""
    reason = part.summary["stopped"] if part.summary is not None else "killed"
    told.hear({"event": "stop", "reason": reason})
    for path in part.run.journals.glob("*.jsonl"):
        with path.open("rb") as source, (run.journals / f"{prefix}{path.name}").open("wb") as target:
            for line in source:
                if not line.endswith(b"\n"):
                    break  # a process was killed while it wrote it
                if line.startswith(_BULK):
                    target.write(line)
                else:
                    event = json.loads(line)
                    told.hear(event)
                    if event["event"] not in OWN:
                        target.write(renamed(event, prefix))
    if part.run.evidence.exists():
        shutil.copytree(part.run.evidence, run.evidence, dirs_exist_ok=True)


def renamed(event: Event, prefix: str) -> bytes:
    """The line of an event, with `prefix` before the name of the worker in it."""
    if "worker" in event:
        event["worker"] = prefix + event["worker"]
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
