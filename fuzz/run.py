"""What all processes of one run agree on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.files import write_text
from fuzz.options import DEFAULT_MAX_TIME, Options

SUITE = Path(__file__).parent / "suite"


@dataclass(frozen=True, slots=True)
class Run:
    """One run. Times are of time.monotonic, which all processes of a machine share.

    device    'cpu' or 'cuda'
    started   when the first process of the run started
    deadline  when the last one has to be gone, or None
    patience  seconds that one shard may take, or None; for the short fuzz within an ordinary test run
    shards    the number of test items, one for each worker
    sharing   how many workers share a GPU, or the CPU
    resumed   how often the run was gone on with after an early end
    """

    options: Options
    seed: int
    device: str
    directory: Path
    started: float
    deadline: float | None
    patience: float | None
    shards: int
    sharing: int
    resumed: int = 0

    @classmethod
    def begun(cls, options: Options, seed: int, device: str, directory: Path, started: float) -> Run:
        """A run that begins; one without any limit ends after a default time."""
        if options.max_time is None and options.max_cases is None:
            options = dataclasses.replace(options, max_time=DEFAULT_MAX_TIME)
        deadline = None if options.max_time is None else started + options.max_time
        return cls(options, seed, device, directory, started, deadline, patience=None, shards=1, sharing=1)

    def named(self, process: str) -> str:
        """The name in this run of a process that pytest or xdist calls `process`, which no process had before."""
        return f"r{self.resumed}-{process}" if self.resumed else process

    @property
    def journals(self) -> Path:
        return self.directory / "journal"

    @property
    def failures(self) -> Path:
        """Where the dumps are, a directory for each bucket."""
        return self.directory / "failures"

    @property
    def evidence(self) -> Path:
        """What workers keep of failing cases, a directory each; see `fuzz.reproducer.evidence_name`."""
        return self.journals / "evidence"

    def stop(self, when: str) -> None:
        """Ask all workers to stop: 'finish' to generate no more, 'now' to search no more either."""
        write_text(self.journals / "stop", when)

    def stop_wanted(self) -> str | None:
        """What `stop` was called with last."""
        try:
            return (self.journals / "stop").read_text()
        except FileNotFoundError:
            return None

    def to_json(self) -> dict[str, Any]:
        """Plain values, for run.json and for xdist's workers."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"options": self.options.to_json(), "directory": str(self.directory)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        """The inverse of to_json."""
        options, directory = Options.from_json(values["options"]), Path(values["directory"])
        return cls(**{**values, "options": options, "directory": directory})
