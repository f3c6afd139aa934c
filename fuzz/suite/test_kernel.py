"""What pytest collects for a fuzz run: the property, once for each worker."""

import pytest

from fuzz.describe import device_name, versions
from fuzz.options import UsageError
from fuzz.property import Property
from fuzz.run import Run
from fuzz.sanitizer.outside import Sanitized
from fuzz.sanitizer.work import SanitizedWorker
from fuzz.worker import Worker, refuse


def test_kernel_keeps_its_promises(fuzz_run: Run, fuzz_worker: str, shard: int) -> None:
    refused: UsageError | None = None
    try:
        tested = Property(fuzz_run)
    except UsageError as error:
        refused = error
    if refused is not None:  # outside of the handler, or pytest tells the error once for each that led to it
        refuse(fuzz_run, fuzz_worker, refused)

    if isinstance(tested.rig, Sanitized):
        worker: Worker = SanitizedWorker(fuzz_run, fuzz_worker, tested, tested.rig)
    else:
        worker = Worker(fuzz_run, fuzz_worker, tested)
    worker.tell(device_name(fuzz_run.device), versions())
    worker.work()
    if worker.failing:
        messages = [failing.finding["message"] for failing in worker.failing.values()]
        pytest.fail("\n".join([*messages, f"smallest cases in {fuzz_run.directory}"]), pytrace=False)
