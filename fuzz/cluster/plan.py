"""How a run is cut into shards. Each is part I of N as --shard names it: its units, and so its seeds and cases, follow
from I, N and the seed of the run, and from nothing else."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path

from fuzz.options import WHOLE, Options, Shard
from fuzz.run import Run
from fuzz.units import CASES

# Units of a shard for each of its processes: minutes of work, so that starting the processes is little beside it; fewer
# in a short run, so that every worker has some.
LEAST_UNITS, MOST_UNITS = 8, 64
# A run without a number of cases has more shards than it will ever come to.
ENDLESS = 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The division of a run.

    shards     how many there are
    cases      of all shards of the seed together: the --max-cases of each
    processes  workers of a shard, each on a core of its node; on a GPU they share it
    """

    shards: int
    cases: int
    processes: int


def divide(options: Options, slots: int, processes: int) -> Plan:
    """The division of a run among `slots` shards at a time."""
    most = MOST_UNITS * processes
    if options.max_cases is None:
        return Plan(ENDLESS, ENDLESS * options.shard.count * most * CASES, processes)
    units = len(range(options.shard.index, -(-options.max_cases // CASES), options.shard.count))
    # two for each slot, if they are not too short or long, but one at least
    size = min(max(-(-units // (2 * slots)), LEAST_UNITS * processes), -(-units // slots) or 1, most)
    return Plan(max(1, -(-units // size)), options.max_cases, processes)


def part(run: Run, plan: Plan, index: int) -> Run:
    """Shard `index` of a run, to be done as a run of its own. The part of a driver that has a part itself is again one
    of the whole."""
    whole = run.options.shard
    options = dataclasses.replace(
        run.options,
        seed=run.seed,
        device=run.device,
        shard=Shard(whole.index + whole.count * index, whole.count * plan.shards),
        max_cases=plan.cases,
        max_time=None,
        max_failures=None,
        out=Path("."),
    )
    return Run.begun(options, run.seed, run.device, Path("."), started=0.0)


def command(one: Run) -> str:
    """The command that runs a shard alone."""
    options = one.options
    words = ["python", "-m", "fuzz", "run", "--kernel", options.kernel, "--seed", str(one.seed)]
    words += ["--contract", options.contract] if options.contract else []
    words += [word for promise in options.without for word in ("--without", promise)]
    words += ["--profile", options.profile] if options.profile else []
    words += ["--strata", ",".join(options.strata)] if options.strata else []
    words += ["--sandbox", options.sandbox] if options.sandbox != "auto" else []
    words += ["--sanitize", options.sanitize] if options.sanitize else []
    words += ["--shard", str(options.shard)] if options.shard != WHOLE else []
    return shlex.join([*words, "--max-cases", str(options.max_cases)])
