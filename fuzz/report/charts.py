"""Charts as inline SVG. Colours are classes of the page, so that they follow its light and dark scheme; each chart says
in words what it shows, for those who do not see it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from fuzz.counts import BINS_PER_DECADE, FIRST_BIN, LAST_BIN, Pace
from fuzz.coverage import edges
from fuzz.words import short

WIDTH = 420  # of every chart, in units that are pixels where there is room
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 6, 16, 30


def histogram(name: str, ratios: Counter[int]) -> Markup:
    """Cases by worst observed/bound ratio of a check, on logarithmic axes, with the bound as a line."""
    bins = range(FIRST_BIN, LAST_BIN + 1)
    plot = _Plot(height=150, low=FIRST_BIN, high=LAST_BIN + 1, most=max(ratios.values(), default=1))
    outside = sum(count for b, count in ratios.items() if b >= 0)
    parts = [plot.grid()]
    parts += [plot.bar(b, ratios[b], "bad" if b >= 0 else "data", _bin_text(b)) for b in bins if ratios[b]]
    for decade in range(FIRST_BIN // BINS_PER_DECADE + 1, LAST_BIN // BINS_PER_DECADE + 1, 2):
        parts.append(plot.tick(decade * BINS_PER_DECADE, _power(decade)))
    parts.append(plot.marker(0, "bound"))
    summary = f"Histogram of {name}: {sum(ratios.values()):,} cases, {outside:,} of them beyond the bound"
    return _svg(parts, 150, summary)


def residues(name: str, counts: Counter[int], modulus: int) -> Markup:
    """Cases by length mod the tile size."""
    plot = _Plot(height=120, low=0, high=modulus, most=max(counts.values(), default=1))
    parts = [plot.grid()]
    for r in range(modulus):
        kind = "edge" if r in edges(modulus) else "data"
        parts.append(plot.bar(r, counts[r], kind, f"{name} mod {modulus} = {r}") if counts[r] else plot.gap(r))
    parts += [plot.tick(r + 0.5, str(r)) for r in (*range(0, modulus, 8), modulus - 1)]
    hit = sum(1 for r in range(modulus) if counts[r])
    return _svg(parts, 120, f"{name} mod {modulus}: {hit} of {modulus} residues were met")


def lengths(counts: Counter[tuple[int, int]]) -> Markup:
    """Cases by number of queries and keys in a request, in powers of two."""
    queries = max((q for q, _ in counts), default=0) + 1
    keys = max((k for _, k in counts), default=0) + 1
    cell_width, cell_height = min(24.0, (WIDTH - _LEFT - _RIGHT) / keys), 14
    height = _TOP + queries * cell_height + _BOTTOM
    darkest = math.log1p(max(counts.values(), default=1))
    parts = ['<text class="axis" x="2" y="11">queries</text>']
    for (q, k), count in sorted(counts.items()):
        x, y = _LEFT + k * cell_width, _TOP + (queries - 1 - q) * cell_height
        parts.append(
            f'<rect class="data" x="{x:.1f}" y="{y}" width="{cell_width - 1:.1f}" height="{cell_height - 1}" '
            f'fill-opacity="{0.12 + 0.88 * math.log1p(count) / darkest:.2f}">'
            f"<title>{_range(q)} queries, {_range(k)} keys: {count:,} cases</title></rect>"
        )
    for q in range(0, queries, 2):
        y = _TOP + (queries - 1 - q) * cell_height + cell_height - 4
        parts.append(f'<text class="axis" text-anchor="end" x="{_LEFT - 5}" y="{y}">{_least(q)}</text>')
    for k in range(0, keys, 2):
        x = _LEFT + (k + 0.5) * cell_width
        parts.append(f'<text class="axis" text-anchor="middle" x="{x:.1f}" y="{height - 16}">{_least(k)}</text>')
    parts.append(
        f'<text class="axis" x="{_LEFT}" y="{height - 3}">keys in a request, from … up to twice as many</text>'
    )
    return _svg(parts, height, f"Lengths: {len(counts)} combinations of queries and keys, in powers of two, were met")


def pace(cases: Pace, elapsed: float) -> Markup:
    """Cases per second over the time of the run."""
    width = cases.width
    rates = [count / min(width, max(elapsed - i * width, 1e-3)) for i, count in enumerate(cases.cases)]
    # what is left over in the last stretch may be too short to give a rate
    if len(rates) > 1 and elapsed - (len(rates) - 1) * width < width / 2:
        rates.pop()
    most = max([*rates, 1e-9])
    end = max(elapsed, len(rates) * width, 1e-3)
    plot = _Plot(height=150, low=0, high=end, most=most, logarithmic=False)
    points = [f"{plot.x(0):.1f},{plot.y(0):.1f}"]
    for i, rate in enumerate(rates):
        points += [f"{plot.x(at):.1f},{plot.y(rate):.1f}" for at in (i * width, (i + 1) * width)]
    points.append(f"{plot.x(len(rates) * width):.1f},{plot.y(0):.1f}")
    parts = [plot.grid(), f'<polygon class="data" points="{" ".join(points)}"/>']
    parts += [plot.tick(at, text) for at, text in _times(end)]
    average = sum(cases.cases) / end
    return _svg(parts, 150, f"Cases per second over time: {average:.3g} on average, {most:.3g} at most")


class _Plot:
    """A plot's area and scales. The logarithmic one shows counts: a single case is visible beside a million."""

    def __init__(self, *, height: int, low: float, high: float, most: float, logarithmic: bool = True) -> None:
        self._height, self._low, self._high = height, low, high
        self._most, self._logarithmic = most, logarithmic

    def x(self, value: float) -> float:
        return _LEFT + (value - self._low) / (self._high - self._low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        if self._logarithmic:
            share = math.log10(1 + value) / math.log10(1 + self._most)
        else:
            share = value / self._most
        return self._bottom - share * (self._bottom - _TOP)

    @property
    def _bottom(self) -> int:
        return self._height - _BOTTOM

    def grid(self) -> str:
        """Horizontal lines with their values."""
        lines = []
        for value in self._levels():
            y = self.y(value)
            lines.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            text = short(value)
            lines.append(f'<text class="axis" text-anchor="end" x="{_LEFT - 5}" y="{y + 3.5:.1f}">{text}</text>')
        return "".join(lines)

    def _levels(self) -> Iterable[float]:
        if not self._logarithmic:
            step = _round_step(self._most / 3)
            return [i * step for i in range(int(self._most / step) + 1)]
        powers = [10**e for e in range(int(math.log10(self._most)) + 1)]
        return [0, *powers[:: -(-len(powers) // 4)]]

    def bar(self, at: float, count: int, kind: str, title: str) -> str:
        left, right, top = self.x(at), self.x(at + 1), self.y(count)
        return (
            f'<rect class="{kind}" x="{left + 0.5:.1f}" y="{top:.1f}" width="{right - left - 1:.1f}" '
            f'height="{self._bottom - top:.1f}"><title>{title}: {count:,} cases</title></rect>'
        )

    def gap(self, at: float) -> str:
        """A mark on the axis where a bar is missing."""
        left, right = self.x(at), self.x(at + 1)
        return f'<rect class="bad" x="{left:.1f}" y="{self._bottom}" width="{right - left:.1f}" height="3"/>'

    def tick(self, at: float, text: str) -> str:
        y = self._bottom + 14
        return f'<text class="axis" text-anchor="middle" x="{self.x(at):.1f}" y="{y}">{text}</text>'

    def marker(self, at: float, text: str) -> str:
        x = self.x(at)
        return (
            f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{self._bottom}"/>'
            f'<text class="axis" text-anchor="middle" x="{x:.1f}" y="{_TOP - 8}">{text}</text>'
        )


def _svg(parts: Sequence[str], height: float, summary: str) -> Markup:
    """The chart. Its texts are all made here, from numbers and the names of checks, which hold no markup."""
    label = Markup.escape(summary)
    return Markup(f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}">{"".join(parts)}</svg>')


def _bin_text(index: int) -> str:
    if index == FIRST_BIN:
        return f"at most {10 ** ((index + 1) / BINS_PER_DECADE):.1g} of the bound"
    if index == LAST_BIN:
        return f"more than {10 ** (index / BINS_PER_DECADE):.0f} times the bound, or not finite"
    low, high = (10 ** (edge / BINS_PER_DECADE) for edge in (index, index + 1))
    return f"{low:.2g} to {high:.2g} times the bound"


def _power(exponent: int) -> str:
    signs = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "1" if exponent == 0 else f"10{str(exponent).translate(signs)}"


def _least(bits: int) -> str:
    return "0" if bits == 0 else short(1 << (bits - 1))


def _range(bits: int) -> str:
    return str((1 << bits) >> 1) if bits < 2 else f"{1 << (bits - 1):,} to {(1 << bits) - 1:,}"


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least)


def _times(end: float) -> list[tuple[float, str]]:
    """Ticks on an axis of time that ends after so many seconds."""
    unit, name = (3600, "h") if end >= 7200 else (60, "min") if end >= 120 else (1, "s")
    step = _round_step(end / unit / 5)
    return [(i * step * unit, f"{i * step:g} {name}") for i in range(int(end / unit / step) + 1)]
