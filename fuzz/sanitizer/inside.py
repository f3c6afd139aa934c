"""What runs under compute-sanitizer: a process that judges a batch of cases, one after the other."""

from __future__ import annotations

import faulthandler
import json
import os
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from fuzz.case import Case
from fuzz.checks import Verdict, judge
from fuzz.checks.results import KernelRaised
from fuzz.journal import Journal
from fuzz.loading import load
from fuzz.options import UsageError
from fuzz.rig import Recording
from fuzz.sanitizer import handover
from fuzz.sanitizer.exact import Exact
from fuzz.tensorfile import write_tensors

REQUEST, JOURNAL, OBSERVED = "request.json", "batch", "observed.safetensors"
# Events of the journal: the process has started, or cannot do it; a case begins, has ended, or made the judge fail; all
# are done, and this is where the kernel hands over to warps.
STARTED, REFUSED, BEGINS, ENDS, BROKEN, HANDOVERS = "started", "refused", "begins", "ends", "broken", "handovers"

_LOOKING = 0.5  # seconds between looks at whether the parent still runs


def main(directory: Path) -> None:
    """Judge the cases of the request in a directory, and write down there what is found; of a single case also what the
    kernel gave."""
    faulthandler.enable()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    asked = json.loads((directory / REQUEST).read_text())
    journal = Journal(directory, JOURNAL)
    journal.write(STARTED, pid=os.getpid())
    try:
        target = Exact(load(asked["kernel"], asked["profile"]), torch.device(asked["device"]))
    except UsageError as error:
        journal.write(REFUSED, message=str(error))
        return
    torch.set_num_threads(1)
    torch.zeros(1, device=target.device)  # so that there is a context to look at, whatever the kernel does
    _judge_all(target, asked, directory, journal)
    journal.write(HANDOVERS, files={name: places.to_json() for name, places in handover.of_loaded().items()})


def _judge_all(target: Exact, asked: dict[str, Any], directory: Path, journal: Journal) -> None:
    last = time.monotonic() + asked["seconds"]
    if asked["until"] is not None:
        last = min(last, asked["until"])
    for value in asked["cases"]:
        if time.monotonic() > last:
            return
        journal.write(BEGINS)
        found = _judged(Case.from_json(value), target, asked, directory)
        journal.write(**found)
        if found["event"] == BROKEN or any(finding["check"] == "alive" for finding in found["findings"]):
            return  # the GPU may be in no state to go on


def _judged(case: Case, target: Exact, asked: dict[str, Any], directory: Path) -> dict[str, Any]:
    recording = Recording(target)
    try:
        verdict = judge(case, recording, contract=frozenset(asked["contract"]), also=frozenset(asked["also"]))
    except Exception:
        return {"event": BROKEN, "message": traceback.format_exc()}
    except BaseException as error:  # sys.exit
        verdict = Verdict(case, {"alive": None}, [KernelRaised.of(error).finding()])
    if len(asked["cases"]) == 1 and recording.results:
        write_tensors(directory / OBSERVED, recording.results)
    return {"event": ENDS, **verdict.to_json()}


def _end_with(parent: int) -> None:
    """End this process when compute-sanitizer is gone, which was killed then."""
    while os.getppid() == parent:
        time.sleep(_LOOKING)
    os._exit(1)
