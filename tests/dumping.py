"""Makes dumps for tests, as a run does."""

from pathlib import Path

from fuzz.buckets import bucket_name
from fuzz.case import Case
from fuzz.describe import describe, device_name, traits_of, versions
from fuzz.evidence import write_whole_dump
from fuzz.files import strict
from fuzz.loading import load
from fuzz.reproducer import Reproducer
from fuzz.rig import Rig
from kernel.contract import CONTRACTS

KERNELS = Path(__file__).parent / "wrong_kernels.py"


def spec(name: str) -> str:
    """The --kernel of one of `tests/wrong_kernels.py`."""
    return f"{KERNELS}:{name}"


def rig(name: str, contract: str = "serving", device: str = "cpu") -> Rig:
    return Rig(load(spec(name)), device, CONTRACTS[contract])


def dump(directory: Path, name: str, case: Case, check: str, contract: str = "serving") -> Path:
    """The dump of a case on which a wrong kernel fails `check`, in `directory`/failures."""
    tested = rig(name, contract)
    verdict, observed = tested.judge(case, check)
    finding = next(strict(finding.to_json()) for finding in verdict.findings if finding.check == check)
    record = Reproducer(
        bucket=bucket_name(check, traits_of(case), finding, shrunk=True),
        check=check,
        kernel=spec(name),
        contract=contract,
        without=(),
        case=case.to_json(),
        strata=tuple(describe(case)["strata"]),
        finding=finding,
        device=device_name("cpu"),
        versions=versions(),
    )
    place = directory / "failures" / record.bucket
    write_whole_dump(place, record, case, verdict, observed, device="cpu", profile=tested.target.profile)
    return place
