"""`python -m benchmarks`: our kernel, or another beside it, on the 44 workloads, each checked in the same run."""

import argparse
import json
import math
from pathlib import Path

import torch
import triton

from benchmarks.picture import draw
from benchmarks.row import Row
from benchmarks.timing import host_us, kernel_us
from benchmarks.workloads import Cache, Workload, build, load_workloads, sample_rows
from fuzz.loading import load
from fuzz.options import DEFAULT_KERNEL
from fuzz.target import Target
from kernel.contract import Inputs
from reference import bounds

CHECKED_ROWS = 32


def main() -> int:
    arguments = _parse()
    if not torch.cuda.is_available():
        print("benchmarks need a CUDA GPU: torch sees none")
        return 2
    targets = {spec: load(spec) for spec in (DEFAULT_KERNEL, *arguments.against)}
    workloads = [w for w in load_workloads() if not arguments.only or w.name in arguments.only]
    generator = torch.Generator("cuda").manual_seed(arguments.seed)
    cache = Cache.random(torch.device("cuda"), generator)
    rows: list[Row] = []
    for workload in workloads:
        inputs = build(workload, cache, generator)
        for spec, target in targets.items():
            rows.append(_measure(workload, inputs, spec, target, generator))
            print(_line(rows[-1]), flush=True)
    for spec in targets:
        print(_means(spec, [row for row in rows if row["kernel"] == spec]))
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": _machine(), "rows": rows}, indent=1, allow_nan=False) + "\n")
    if arguments.picture:
        arguments.picture.write_text(draw(rows))
    return 1 if any(row["outside"] for row in rows if row["kernel"] == DEFAULT_KERNEL) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--against", action="append", default=[], metavar="SPEC", help="also time module:function")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this workload")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write an SVG")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _measure(workload: Workload, inputs: Inputs, spec: str, target: Target, generator: torch.Generator) -> Row:
    output, lse = target(inputs)
    sampled, alone = sample_rows(inputs, CHECKED_ROWS, generator)
    expected = bounds.expected(alone)
    low, high = bounds.interval(expected, output.dtype)
    outside = ~((output[sampled] >= low) & (output[sampled] <= high)).all(-1)
    error = (output[sampled].double() - expected.output).norm() / expected.output.norm()
    lse_error = None if lse is None else (lse[sampled].double() - expected.lse).abs()
    if lse_error is not None:
        outside |= ~(lse_error <= expected.lse_error)
    us = kernel_us(lambda: target(inputs))
    return {
        "name": workload.name,
        "kernel": spec,
        "us": us,
        "host_us": host_us(lambda: target(inputs)),
        "tflops": workload.gflop / us * 1e3,
        "of_roof": workload.roof_us / us,
        "output_error": error.item(),
        "lse_error": None if lse_error is None else lse_error.max().item(),
        "outside": int(outside.sum()),
        "speedup": {peer: took / us for peer, took in workload.peers_us.items()},
    }


def _line(row: Row) -> str:
    peers = " ".join(f"{peer} {ratio:.2f}" for peer, ratio in sorted(row["speedup"].items()))
    lse = "none" if row["lse_error"] is None else f"{row['lse_error']:.1e}"
    verdict = f"{row['outside']} ROWS OUTSIDE THE BOUND" if row["outside"] else "inside the bound"
    return (
        f"{row['name']:16} {row['kernel']} {row['us']:9.1f} us {row['tflops']:6.1f} TFLOP/s  "
        f"roof {row['of_roof']:.2f}  host {row['host_us']:.0f} us  {verdict}, error {row['output_error']:.1e} "
        f"lse {lse}  | {peers}"
    )


def _means(spec: str, rows: list[Row]) -> str:
    peers = sorted({peer for row in rows for peer in row["speedup"]})
    ratios = {peer: [row["speedup"][peer] for row in rows if peer in row["speedup"]] for peer in peers}
    means = (f"{peer} {math.exp(sum(map(math.log, r)) / len(r)):.3f} ({len(r)})" for peer, r in ratios.items())
    return f"{spec}, geometric mean of peer time over ours: " + ", ".join(means)


def _machine() -> dict[str, str]:
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}


if __name__ == "__main__":
    raise SystemExit(main())
