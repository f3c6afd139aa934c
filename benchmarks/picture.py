"""`python -m benchmarks.picture RESULT.json PICTURE.svg`: each workload's time over its roofline, ours and peers'."""

import html
import json
import math
import sys
from pathlib import Path

from benchmarks.row import Row
from benchmarks.workloads import Workload, load_workloads
from fuzz.options import DEFAULT_KERNEL

_ROW, _LEFT, _WIDTH, _TOP = 16, 150, 640, 44
_DECADES = 4  # from 1 x to 10,000 x the roofline; what is slower sits at the right edge
_COLOURS = {
    DEFAULT_KERNEL: "#c0392b",
    "flash_attention_3": "#2c7fb8",
    "flashinfer_fa3": "#41b6c4",
    "triton_m64": "#888888",
}


def draw(rows: list[Row]) -> str:
    """An SVG of one line per workload, sorted by its roofline time; `rows` as in the benchmark's JSON."""
    times = {(row["name"], row["kernel"]): row["us"] for row in rows}
    measured = {name for name, _ in times}
    workloads = sorted((w for w in load_workloads() if w.name in measured), key=lambda w: w.roof_us)
    kernels = [*dict.fromkeys(row["kernel"] for row in rows), *(peer for peer in _COLOURS if peer != DEFAULT_KERNEL)]
    height = _TOP + _ROW * len(workloads) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 60}" height="{height}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for place, kernel in enumerate(kernels):
        x = _LEFT + place * _WIDTH / len(kernels)
        parts.append(f'<circle cx="{x}" cy="14" r="4" fill="{_COLOURS.get(kernel, "#8e44ad")}"/>')
        parts.append(f'<text x="{x + 8}" y="18">{html.escape(kernel)}</text>')
    for decade in range(_DECADES + 1):
        x = _x(10.0**decade)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{_TOP - 8}" y2="{height - 20}" stroke="#ddd"/>')
        parts.append(f'<text x="{x}" y="{height - 6}" text-anchor="middle">{10**decade} x roofline</text>')
    for line, workload in enumerate(workloads):
        y = _TOP + _ROW * line
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{html.escape(workload.name)}</text>')
        parts.extend(_dot(workload, kernel, times, y) for kernel in reversed(kernels))
    return "\n".join([*parts, "</svg>", ""])


def _dot(workload: Workload, kernel: str, times: dict[tuple[str, str], float], y: float) -> str:
    took = times.get((workload.name, kernel)) or workload.peers_us.get(kernel)
    if took is None:
        return ""
    x, colour = _x(took / workload.roof_us), _COLOURS.get(kernel, "#8e44ad")
    title = f"<title>{took:.1f} us</title>"
    return f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="{colour}" fill-opacity="0.85">{title}</circle>'


def _x(ratio: float) -> float:
    return _LEFT + _WIDTH * min(max(math.log10(ratio), 0), _DECADES) / _DECADES


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(draw(json.loads(source.read_text())["rows"]))
