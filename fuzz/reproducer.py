"""A failure that another person can hold: one directory with the case, what was found, and the tensors.

    case.json              the record below: the case alone rebuilds all operands
    inputs.safetensors     the operands under the definition's names
    observed.safetensors   output and lse as the kernel under test gave them
    expected.safetensors   the golden output and lse, how far each element may be from them, and how far it was
    workload.jsonl         the same operands as a FlashInfer-Bench workload
    README.md              what happened, in words

Workload and tensors are there as far as `fuzz.evidence` can make them: a kernel that kills its process leaves no
results, and no file is larger than `fuzz.tensorfile.LIMIT`. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fuzz.explain import explain
from fuzz.files import strict, write_json, write_text
from fuzz.options import DEFAULT_KERNEL

SCHEMA = 1
DEFINITION = "mla_paged_prefill_causal_h16_ckv512_kpe64_ps1"  # that of kernel.contract, which imports torch
RECORD, README = "case.json", "README.md"
FACTS = "facts.json"  # what a second look at the case showed; part of the evidence, not of the dump
EVIDENCE = ("inputs.safetensors", "observed.safetensors", "expected.safetensors", "workload.jsonl")


@dataclass(frozen=True, slots=True)
class Reproducer:
    """What case.json holds, besides the schema version.

    definition   name of the operator's definition
    bucket       see `fuzz.buckets`
    check        the check that failed
    kernel       the spec of the kernel under test; contract, without: the promises that it made
    profile      the numerics profile (`reference.profile`) that it was judged by
    case         the JSON of a `fuzz.case.Case`
    strata       its strata, family:name
    finding      what `check` said: check, detail, index, got, expected, allowed, ratio, rows, message
    others       what other checks said of the same case
    reproduced   whether the case failed again when the dump was made; None if that was not tried
    wrong        how many elements are wrong, and in which rows, heads and columns; empty where that is not known
    device       the name of the machine's GPU, or what stood in for it
    versions     of what a result depends on
    """

    bucket: str
    check: str
    kernel: str
    contract: str
    without: tuple[str, ...]
    case: dict[str, Any]
    strata: tuple[str, ...]
    finding: dict[str, Any]
    device: str
    versions: dict[str, str]
    profile: str = "default"
    definition: str = DEFINITION
    others: tuple[dict[str, Any], ...] = ()
    reproduced: bool | None = None
    wrong: dict[str, Any] = field(default_factory=dict)

    def to_json(self, place: Path) -> dict[str, Any]:
        """The content of case.json in the directory `place`."""
        return {"schema": SCHEMA, **asdict(self), "replay": replay_command(place, self.kernel)}


def replay_command(place: Path, kernel: str) -> str:
    """The command that replays the dump in `place`. It names a kernel that is not ours, as a dump may not choose what
    is run."""
    command = ["python", "-m", "fuzz", "replay", str(place)]
    if kernel != DEFAULT_KERNEL:
        command += ["--kernel", kernel]
    return shlex.join(command)


def evidence_name(check: str, case: Mapping[str, Any]) -> str:
    """The name of the directory with the evidence for a failing case, the same in all processes of a run."""
    text = json.dumps(strict(dict(case)), sort_keys=True)
    return f"{check}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def write_dump(place: Path, record: Reproducer, evidence: Path) -> None:
    """Make the directory `place` a dump. `evidence` is a directory that `fuzz.evidence` wrote, or does not exist; the
    record gets its facts.

    Each file is written at once, and in an order that leaves a whole dump, if one with fewer files, whenever the
    process is killed: no file lies beside a case that it does not belong to. Other files stay as they are.
    """
    record = _with_facts(record, evidence)
    files = [name for name in EVIDENCE if (evidence / name).is_file()]
    place.mkdir(parents=True, exist_ok=True)
    for name in (*EVIDENCE, README):
        (place / name).unlink(missing_ok=True)
    write_json(place / RECORD, record.to_json(place))
    for name in files:
        _link(evidence / name, place / name)
    write_text(place / README, explain(record, replay_command(place, record.kernel), files))


def _with_facts(record: Reproducer, evidence: Path) -> Reproducer:
    """The record with what the evidence in a directory adds to it; as it is where there is none."""
    try:
        facts = json.loads((evidence / FACTS).read_text())
    except FileNotFoundError:
        return record
    others = tuple(finding for finding in facts["findings"] if finding["check"] != record.check)
    return replace(record, reproduced=facts["reproduced"], others=others, wrong=facts["wrong"])


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        shutil.copyfile(source, part)
        part.replace(target)
