"""What gathering costs the driver of a run on a cluster, in CPU time: the journals of a run stand for those of a shard.

    python -m benchmarks.shards DIR            # DIR is what --out of a run was; docs/scale.md has what came out
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import tempfile
import time
from pathlib import Path

from fuzz import outdir
from fuzz.cluster.gather import Gathered
from fuzz.cluster.host import News
from fuzz.journal import read
from fuzz.run import Run
from fuzz.summary import write_results
from fuzz.totals import GENERATE

SHARDS = (10, 100, 1000, 10_000)


def main() -> None:
    """Print a line for each number of shards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="a run of as many cases as a shard should have")
    parser.add_argument("--shards", type=int, nargs="+", default=SHARDS, metavar="N")
    parsed = parser.parse_args()
    run, _ = outdir.load(parsed.directory)
    news = News({path.name: path.read_bytes() for path in run.journals.glob("*.jsonl") if path.stat().st_size})
    cases = sum(
        event["event"] == "case" and event["phase"] == GENERATE
        for path in run.journals.glob("*.jsonl")
        for event, _ in read(path)
    )
    print(f"{cases} cases and {sum(map(len, news.lines.values())):,} bytes a shard")
    print("shards     cases  gather s  us/case  results s  resume s  journals MB  memory MB")
    for count in parsed.shards:
        with tempfile.TemporaryDirectory() as directory:
            _measure(dataclasses.replace(run, directory=Path(directory)), news, count)


def _measure(run: Run, news: News, count: int) -> None:
    run.journals.mkdir()
    began = time.process_time()
    gathered = Gathered(run)
    for shard in range(count):
        gathered.left(shard, at=float(shard))
        gathered.take(shard, news)
        gathered.finish(shard)
    gathered.write("stop", reason="all cases done")
    gathering = time.process_time() - began
    began = time.process_time()
    write_results(run, gathered.totals, gathering, 0)
    results = time.process_time() - began
    began = time.process_time()
    Gathered(run).take_up()
    resuming = time.process_time() - began
    cases = gathered.totals.cases
    size = sum(path.stat().st_size for path in run.journals.iterdir()) / 1e6
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{count:6}  {cases:8}  {gathering:8.2f}  {1e6 * gathering / cases:7.1f}  {results:9.2f}  {resuming:8.2f}"
        f"  {size:11.1f}  {memory:9.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
