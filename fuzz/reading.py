"""Dumps read back, from wherever they come: nothing in one is run, and what it claims is checked before it is believed.

Everything that is wrong with one is a UsageError of one line, which names the file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzz import formats
from fuzz.build import memory_bytes
from fuzz.case import Case, promises_needed
from fuzz.evidence import input_tensors
from fuzz.options import UsageError
from fuzz.record import read_json, read_record
from fuzz.reproducer import EVIDENCE, RECORD, Reproducer
from fuzz.tensorfile import LIMIT, read_tensors
from kernel.contract import CONTRACTS

_TENSORS = {
    "inputs.safetensors": formats.inputs_of,
    "observed.safetensors": formats.observed_of,
    "expected.safetensors": formats.expected_of,
}


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump that was read. `directory` is None where it is a case.json alone, somewhere else."""

    path: Path
    directory: Path | None
    record: Reproducer
    case: Case
    contract: frozenset[str]


def find(path: Path) -> list[Path]:
    """The records, case.json or another JSON file, that a path means: it is one, a dump that has one, or the directory
    of a run that has dumps in failures/.

    Raises:
        UsageError: there are none.
    """
    _no_link(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such file or directory")
    if (path / RECORD).exists() or (path / RECORD).is_symlink():
        return [path / RECORD]
    failures = path if path.name == "failures" else path / "failures"
    if failures.is_dir():
        _no_link(failures)
        found = sorted(one / RECORD for one in failures.iterdir() if not one.name.startswith("."))
        if found:
            return found
        raise UsageError(f"{path}: the run left no failures")
    raise UsageError(f"{path}: it holds neither a {RECORD} nor failures/")


def read(path: Path) -> Dump:
    """Read a record and check all that lies beside it.

    Raises:
        UsageError: what is wrong with it.
    """
    directory = path.parent if path.name == RECORD else None
    if directory is not None:
        _no_link(directory)
        for name in EVIDENCE:
            _no_link(directory / name)
    record = read_record(path)
    try:
        case = Case.from_json(record.case)
    except ValueError as error:
        raise UsageError(f"{path}: case: {_one_line(str(error))}") from None
    contract = CONTRACTS[record.contract].difference(record.without)
    missing = promises_needed(case) - contract
    if missing:
        raise UsageError(
            f"{path}: the case needs the promise {', '.join(sorted(missing))}, which the contract"
            f" {record.contract!r} of the dump does not make"
        )
    if directory is not None:
        _check_files(directory, case)
    return Dump(path, directory, record, case, contract)


def each_dump(paths: Iterable[Path], use: Callable[[Dump], int]) -> int:
    """Read the dumps that `paths` mean and use each; returns the worst exit status.

    What is wrong with one, a UsageError of its reading or its use, takes a line of stderr and counts as 2; the others
    are used all the same.
    """
    status = 0
    for record in _records(paths):
        try:
            if isinstance(record, UsageError):
                raise record
            status = max(status, use(read(record)))
        except UsageError as error:
            print(f"mla-fuzz: ERROR {error}", file=sys.stderr, flush=True)
            status = 2
    return status


def _records(paths: Iterable[Path]) -> Iterator[Path | UsageError]:
    for path in paths:
        try:
            yield from find(path)
        except UsageError as error:
            yield error


def check_memory(dump: Dump, device: str) -> None:
    """Raise UsageError if this machine cannot hold the case."""
    needed, free = memory_bytes(dump.case, device), free_memory(device)
    if needed > free:
        raise UsageError(
            f"{dump.path}: the case takes {needed / 2**30:.1f} GiB, this machine has {free / 2**30:.1f} GiB free"
        )


def free_memory(device: str) -> int:
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62


def _no_link(path: Path) -> None:
    if path.is_symlink():
        raise UsageError(f"{path}: it is a symbolic link")


def _check_files(directory: Path, case: Case) -> None:
    """Check the files with tensors and the workload, as far as there are any."""
    for name, wanted in _TENSORS.items():
        path = directory / name
        if not path.exists():
            continue
        tensors = read_tensors(path, wanted(case))
        if name == "inputs.safetensors":
            _same_inputs(path, tensors, case)
    if (directory / "workload.jsonl").exists():
        _check_workload(directory / "workload.jsonl")


def _same_inputs(path: Path, held: Mapping[str, torch.Tensor], case: Case) -> None:
    """Raise UsageError if the case builds other operands: the file was changed, or this version builds others."""
    if formats.nbytes(formats.inputs_of(case)) > LIMIT:
        return
    for name, built in input_tensors(case).items():
        if not torch.equal(held[name].reshape(-1).view(torch.uint8), built.reshape(-1).view(torch.uint8)):
            raise UsageError(
                f"{path}: {name} is not what the case builds; the file was changed, or written by another version"
            )


def _check_workload(path: Path) -> None:
    value = read_json(path)
    try:
        inputs = value["workload"]["inputs"]
        places = [given["path"] for given in inputs.values() if given["type"] == "safetensors"]
    except (TypeError, KeyError, AttributeError):
        raise UsageError(f"{path}: it is not one workload") from None
    for place in places:
        if place != "inputs.safetensors":
            raise UsageError(f"{path}: it leads to {str(place)[:60]!r} instead of inputs.safetensors beside it")


def _one_line(text: str) -> str:
    """A text that quotes a file, without what would move a terminal's cursor, and not too long."""
    return "".join(char if char.isprintable() else "?" for char in text)[:500]
