"""The options of a fuzz run: one table for the command line, pytest and the environment.

Each option has an environment twin, ``--max-time`` and ``MLA_FUZZ_MAX_TIME``; the command line wins. Nothing here
imports torch, so that the process that only hands out the work starts at once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.claims import CLAIMS, OURS, Claim
from fuzz.demands import UNDER_A_TOOL
from fuzz.parsers import duration, names, one_of, positive, redis_url, reported, seed

DEFAULT_KERNEL = OURS
DEFAULT_OUT = Path("fuzz-results")
DEFAULT_MAX_TIME = 120.0
WORKERS_VARIABLE = "MLA_FUZZ_WORKERS"  # the twin of -n, which is xdist's own option under pytest


class UsageError(Exception):
    """What the user asked for cannot be done; the message is one helpful line."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index`, from 0, of the `count` into which machines divide a run."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


WHOLE = Shard(0, 1)


@dataclass(frozen=True, slots=True)
class Options:
    """What one run is asked to do. Times are in seconds; None is "no limit" or "decide later"."""

    kernel: str = DEFAULT_KERNEL
    contract: str | None = None
    without: tuple[str, ...] = ()
    profile: str | None = None
    max_time: float | None = None
    max_cases: int | None = None
    seed: int | None = None
    device: str = "auto"
    sandbox: str = "auto"
    sanitize: str | None = None
    strata: tuple[str, ...] = ()
    max_failures: int | None = None
    shard: Shard = WHOLE
    database: str | None = None
    out: Path = DEFAULT_OUT

    def __post_init__(self) -> None:
        if self.shard != WHOLE and self.seed is None:
            raise UsageError("--shard: the machines that share a run need the same --seed")

    @property
    def claim(self) -> Claim:
        """What the kernel is held to: what is asked for, otherwise what it is known to claim."""
        known = CLAIMS.get(self.kernel, Claim())
        profile = self.profile or known.profile
        if self.contract is not None:
            return Claim(self.contract, self.without, profile)
        return Claim(known.contract, tuple(dict.fromkeys(known.without + self.without)), profile)

    @property
    def subject(self) -> str:
        """What failures are remembered of: the kernel, and the tool that it runs under."""
        return self.kernel if self.sanitize is None else f"{self.kernel} under {self.sanitize}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for run.json and for xdist's workers."""
        return dataclasses.asdict(self) | {"out": str(self.out)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Options:
        """The inverse of to_json."""
        tuples = {name: tuple(values[name]) for name in ("without", "strata")}
        return cls(**{**values, **tuples, "shard": Shard(**values["shard"]), "out": Path(values["out"])})


def shard(text: str) -> Shard:
    """A shard as 'i/n' with i from 0 to n - 1."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a shard; write 0/4, 1/4, 2/4, 3/4 for four machines")
    index, count = int(match[1]), int(match[2])
    if index >= count:
        raise ValueError(f"there is no shard {index} of {count}, they count from 0")
    return Shard(index, count)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its flag, the parser of its text, and what --help says."""

    flag: str
    metavar: str
    parse: Callable[[str], Any]
    help: str
    repeated: bool = False

    @property
    def field(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def dest(self) -> str:
        """The attribute of the parsed namespace; prefixed, as pytest's namespace is shared between plugins."""
        return "fuzz_" + self.field

    @property
    def variable(self) -> str:
        return "MLA_FUZZ_" + self.field.upper()


TABLE = (
    Option(
        "--kernel",
        "SPEC",
        str,
        f"kernel under test: module:function, path/file.py:function or solution.json ({DEFAULT_KERNEL})",
    ),
    Option(
        "--contract",
        "NAME",
        one_of("definition", "serving", "hardened"),
        "the promises to check: definition, serving or hardened (hardened for our kernel, definition for others)",
    ),
    Option("--without", "PROMISE", names, "leave a promise of the contract out; may be repeated", repeated=True),
    Option(
        "--profile",
        "NAME",
        one_of("default", "fast-math", "rounded-denominator", "flashinfer"),
        "numerics that the kernel documents and is judged by, see reference/profile.py (default)",
    ),
    Option("--max-time", "TIME", duration, "wall time of the whole run, start-up included: 90s, 10m, 8h (2m)"),
    Option("--max-cases", "N", positive, "number of generated cases; without --max-time the only limit"),
    Option("--seed", "N", seed, "seed of the run: the same seed gives the same cases with any number of workers"),
    Option("--device", "NAME", one_of("auto", "cpu", "cuda"), "auto, cpu (Triton's interpreter) or cuda"),
    Option(
        "--sandbox",
        "WHEN",
        one_of("auto", "always", "never"),
        "run the kernel in a child process, so that a crash or hang is a failure of one case (auto: if it is not ours)",
    ),
    Option(
        "--sanitize",
        "TOOL",
        one_of(*UNDER_A_TOOL),
        f"run small cases under this tool of NVIDIA's compute-sanitizer: {', '.join(UNDER_A_TOOL)}",
    ),
    Option("--strata", "NAME,...", names, "draw these strata only"),
    Option("--max-failures", "N", positive, "stop after this many different failures"),
    Option("--shard", "I/N", shard, "do part I, from 0, of the N into which machines divide the run of one --seed"),
    Option(
        "--database",
        "URL",
        redis_url,
        "Redis server that keeps failing cases for other runs, redis://HOST:PORT (a directory, .hypothesis/)",
    ),
    Option("--out", "DIR", Path, f"where the results go ({DEFAULT_OUT}); those of an earlier run move to DIR/earlier"),
)

# How a run is carried out; not kept with what it was asked to do.
EXECUTION = (
    Option("--ray", "ADDRESS", str, "spread the run over the Ray cluster at ADDRESS, or over one made here: local"),
    Option(
        "--resume",
        "DIR",
        Path,
        "go on with the run in DIR, which was interrupted or killed, with its own options; --max-time counts from now",
    ),
)
ALL = TABLE + EXECUTION


def add_options(add: Callable[..., Any]) -> None:
    """Declare every option through `add`: argparse's add_argument or the addoption of a pytest group."""
    for option in ALL:
        add(
            option.flag,
            dest=option.dest,
            metavar=option.metavar,
            type=reported(option.parse),
            action="append" if option.repeated else "store",
            default=None,
            help=f"{option.help} [{option.variable}]",
        )


def given(
    namespace: object, environ: Mapping[str, str], options: Iterable[Option] = TABLE
) -> dict[str, Any]:
    """Those of the options that the user set, by field: on the command line, else in the environment.

    Raises:
        UsageError: an environment twin that cannot be read, or that is none.
    """
    known = [option.variable for option in ALL] + [WORKERS_VARIABLE]
    for variable in environ:
        if variable.startswith("MLA_FUZZ_") and variable not in known:
            raise UsageError(f"{variable}: there is no such option; there are {', '.join(known)}")
    values: dict[str, Any] = {}
    for option in options:
        value = getattr(namespace, option.dest, None)
        text = environ.get(option.variable)
        if value is not None:
            values[option.field] = tuple(name for part in value for name in part) if option.repeated else value
        elif text:
            try:
                values[option.field] = option.parse(text)
            except ValueError as error:
                raise UsageError(f"{option.variable}: {error}") from None
    return values
