"""failures/ in the directory of a run: a dump for each bucket, kept in step with what the run has found."""

from __future__ import annotations

import json
import shutil

from fuzz.buckets import Bucket
from fuzz.files import strict
from fuzz.reproducer import FACTS, Reproducer, evidence_name, write_dump
from fuzz.run import Run
from fuzz.totals import Totals


class Dumps:
    """Writes the dumps of a run. Each holds the smallest case of its bucket; buckets that are no more go."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._written: dict[str, str] = {}  # bucket -> what its dump was made of

    def update(self, totals: Totals) -> None:
        """Write what has changed since the last call."""
        buckets = {bucket.name: bucket for bucket in totals.buckets()}
        for place in self._run.failures.glob("*"):
            if place.is_dir() and place.name not in buckets:
                shutil.rmtree(place)
                self._written.pop(place.name, None)
        for name, bucket in buckets.items():
            evidence = self._run.evidence / evidence_name(bucket.check, bucket.smallest.case)
            made_of = json.dumps([strict(bucket.smallest.to_json()), (evidence / FACTS).exists()])
            if self._written.get(name) != made_of:
                write_dump(self._run.failures / name, self._record(bucket, totals), evidence)
                self._written[name] = made_of

    def _record(self, bucket: Bucket, totals: Totals) -> Reproducer:
        options = self._run.options
        return Reproducer(
            bucket=bucket.name,
            check=bucket.check,
            kernel=options.kernel,
            contract=options.claim.contract,
            without=options.claim.without,
            profile=options.claim.profile,
            case=bucket.smallest.case,
            strata=tuple(bucket.smallest.strata),
            finding=bucket.smallest.finding,
            device=totals.device or self._run.device,
            versions=totals.versions,
        )
