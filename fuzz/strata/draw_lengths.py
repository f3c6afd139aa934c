"""How lengths are drawn: one way for each stratum of `fuzz.strata.lengths`, cut to a number of tiles meanwhile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from fuzz.strata.choices import Choices
from fuzz.strata.lengths import (
    BLOCKS,
    CHUNKS,
    CROWDS,
    GRID_LIMIT,
    INT32_ROWS,
    LONG,
    LONG_CHUNKS,
    MANY,
    MERGED,
    MOST_SHORT,
    MOST_SPLIT,
    SHORT,
    TILE_KEYS,
    TILE_QUERIES,
    TWO_ROUNDS,
    Runs,
    as_runs,
    server_lengths,
    tiles,
)

T = TypeVar("T")
Run = tuple[int, int, int]
LONGEST = 2 * MERGED * LONG_CHUNKS[1] + 1

# 6 unless named: dear and special ones are rarer. Hypothesis favours small numbers where there are more than 128.
_WEIGHTS = {
    "single": 9, "ragged": 9, "masked-rows": 12, "no-queries": 1, "alike": 9, "splits": 15, "crowd": 8,
    "server": 3, "many-requests": 4, "long-context": 2, "huge-q": 8,
}  # fmt: skip
# parts of the budget that a case may use: most are cheap
_PARTS = (8, 8, 4, 4, 2, 1)
# of a single request, which is what lengths shrink to: stratum, part, queries, kind of keys, keys
_CHOICES = 5


def draw_runs(choices: Choices, names: Sequence[str], budget: int, most: int, *, masked: bool, on_gpu: bool) -> Runs:
    """Lengths of one of the strata `names`.

    `budget` is the number of tiles of ordinary cases, `most` that of cases about size; `masked` allows fewer keys than
    queries. `on_gpu`: for a GPU, where our kernel works with larger pieces than in the interpreter.
    """
    name = choices.one_of([name for name in names for _ in range(_WEIGHTS.get(name, 6))])
    part = choices.one_of(_PARTS)
    requests = _STRATA[name](_Drawing(choices, max(1, budget // part), most, masked, on_gpu))
    choices.lengthen(_CHOICES)
    return as_runs(requests)


@dataclass(frozen=True)
class _Drawing:
    """Draws requests that together cost about `tiles`, or `most` in the strata about size."""

    choices: Choices
    tiles: int
    most: int
    masked: bool
    on_gpu: bool

    def integer(self, low: int, high: int) -> int:
        return self.choices.integer(low, high)

    def one_of(self, options: Sequence[T]) -> T:
        return self.choices.one_of(options)

    def queries(self, share: int = 1, least: int = 1) -> int:
        return self.integer(least, TILE_QUERIES * max(1, self.tiles // share))

    def most_keys(self, q_len: int, share: int = 1) -> int:
        """Keys that q_len queries may see within the share of the tiles; at least q_len."""
        key_tiles = max(1, self.tiles // share // -(-q_len // TILE_QUERIES))
        return max(q_len, min(TILE_KEYS * key_tiles, LONGEST))

    def keys(self, q_len: int, share: int = 1) -> int:
        """At least q_len keys: any number, or an edge of kv_len or of the prefix."""
        high = self.most_keys(q_len, share)
        kind = self.one_of(("any", "key-edge", "prefix-edge"))
        if kind == "any":
            return self.integer(q_len, high)
        base = q_len if kind == "prefix-edge" else 0
        return base + self.one_of(_edges(q_len - base, high - base))

    def request(self, share: int = 1) -> Run:
        q_len = self.queries(share)
        return 1, q_len, self.keys(q_len, share)

    def among(self, special: Run, most: int, least: int = 0) -> list[Run]:
        """`special` at any place between `least` to `most` ordinary requests."""
        requests = [self.request(most + 1) for _ in range(self.integer(least, most))]
        requests.insert(self.integer(0, len(requests)), special)
        return requests


@cache
def _edges(low: int, high: int) -> list[int]:
    """Numbers low .. high one below, at or one above the first multiples and the last multiple of a block; those at the
    edges of a tile twice."""
    edges = {low, high} if low else {0, 1}
    for block in BLOCKS:
        first = -(-max(low, 1) // block)
        for multiple in (*range(first, first + 3), high // block):
            edges |= {multiple * block + step for step in (-1, 0, 1)}
    inside = sorted(edge for edge in edges if low <= edge <= high)
    return [edge for edge in inside for _ in range(1 + (edge % TILE_KEYS in (0, 1, TILE_KEYS - 1)))] or [low]


def _single(d: _Drawing) -> list[Run]:
    return [d.request()]


def _ragged(d: _Drawing) -> list[Run]:
    requests = [d.request(2) for _ in range(d.integer(2, 4))]
    if len(set(requests)) == 1:
        _, q_len, kv_len = requests.pop()
        requests.append((1, q_len, kv_len + 1))
    return requests


def _tiny(d: _Drawing) -> list[Run]:
    def request() -> Run:
        q_len = d.integer(1, 4)
        return 1, q_len, d.integer(1 if d.masked else q_len, 4)

    # The first one as a single request is drawn, which then shrinks to that.
    return [request(), *(request() for _ in range(d.integer(0, 2)))]


def _two_rounds(d: _Drawing) -> list[Run]:
    low, high = d.one_of(TWO_ROUNDS)
    return [(1, d.one_of((1, 1, 2, 3)), d.integer(low, high)) for _ in range(d.integer(1, 3))]


def _decode(d: _Drawing) -> list[Run]:
    """Any number of keys, or whole tiles of them."""
    count = d.integer(1, min(6, d.tiles))
    whole = d.most_keys(1, count) // TILE_KEYS
    return [(1, 1, d.one_of((d.keys(1, count), TILE_KEYS * d.integer(1, whole)))) for _ in range(count)]


def _no_prefix(d: _Drawing) -> list[Run]:
    """Any number of queries, or about as many as there are keys in short requests, of many queries or not."""
    q_len = d.one_of((d.queries(), SHORT[d.on_gpu] + d.integer(1, 9), MANY[d.on_gpu] + d.integer(0, 3)))
    return d.among((1, q_len, q_len), 1)


def _key_edge(d: _Drawing) -> list[Run]:
    q_len = d.queries(2)
    edges = [edge for edge in _edges(q_len, d.most_keys(q_len)) if edge >= 15 and edge % 16 in (0, 1, 15)]
    return d.among((1, q_len, d.one_of(edges or [max(16, -(-q_len // 16) * 16)])), 1)


def _prefix_edge(d: _Drawing) -> list[Run]:
    q_len = d.queries(2, least=2)
    edges = [edge for edge in _edges(0, d.most_keys(q_len) - q_len) if edge >= 15]
    return d.among((1, q_len, q_len + d.one_of(edges or [15, 16, 17])), 1)


def _query_edge(d: _Drawing) -> list[Run]:
    edges = [edge for edge in _edges(15, TILE_QUERIES * d.tiles) if edge % 16 in (0, 1, 15)]
    q_len = d.one_of(edges)
    return d.among((1, q_len, d.keys(q_len)), 1)


def _masked_rows(d: _Drawing) -> list[Run]:
    """Any number of queries, or a few more than keys, of which there are more than short requests have; others may be
    such, too."""

    def longer() -> Run:
        kv_len = SHORT[d.on_gpu] + d.integer(1, 9)
        return 1, kv_len + d.integer(1, 11), kv_len

    q_len = d.one_of((d.queries(least=2), d.integer(TILE_KEYS // 4, TILE_KEYS // 2)))
    few, many = (1, q_len, d.integer(1, q_len - 1)), longer()
    requests = [d.one_of((few, many, many))]
    for _ in range(d.integer(0, 2)):
        ordinary, many = d.request(3), longer()
        requests.insert(d.integer(0, len(requests)), d.one_of((ordinary, ordinary, many)))
    return requests


def _empty_kv(d: _Drawing) -> list[Run]:
    return d.among((1, d.queries(2), 0), 2)


def _empty_q(d: _Drawing) -> list[Run]:
    return d.among((1, 0, d.integer(1, 70)), 2, least=1)


def _zero_run(d: _Drawing) -> list[Run]:
    return d.among((d.integer(2, 5), 0, d.one_of((0, 1, 5, 64))), 2, least=1)


def _no_queries(d: _Drawing) -> list[Run]:
    return [(d.integer(0, 3), 0, d.integer(0, 5))]


def _uneven(d: _Drawing) -> list[Run]:
    """One query each; two short contexts and a long one."""
    short = d.integer(1, max(1, d.tiles // 2))
    long = d.integer(TILE_KEYS * short, TILE_KEYS * max(d.tiles, short + 1))
    requests = [(1, 1, short), (1, 1, short + d.integer(0, 2))]
    requests.insert(d.integer(0, 2), (1, 1, long))
    return requests


def _alike(d: _Drawing) -> list[Run]:
    """Nearly a tile of queries each, over more keys than short requests have and too few to be split. The first has
    any number of them, or is just past a multiple, where contexts of about its length begin."""
    q_len = TILE_QUERIES - 1
    least, most = SHORT[d.on_gpu] + 1, q_len * CHUNKS[d.on_gpu] * 4 // 5
    kv_len = d.one_of((d.integer(least, most), 32 * d.integer(least // 32 + 1, most // 32) + 1))
    requests = [(1, q_len, kv_len), (1, q_len, kv_len + d.integer(0, kv_len // 5))]
    if d.one_of((False, True)):
        requests.insert(1, d.request(4))
    return requests


def _splits(d: _Drawing) -> list[Run]:
    """A number of whole chunks for each query and about a key, between requests of about a chunk."""
    q_len = d.one_of((1, 1, *range(2, MOST_SPLIT + 1)))
    lengths = (*(q_len * chunk for chunk in CHUNKS), *LONG_CHUNKS)
    whole = [chunk * count for chunk in lengths for count in (1, 2, 3, 17)]
    if d.on_gpu:
        whole += 2 * [LONG_CHUNKS[1] * (MERGED + 1)]
    affordable = [kv_len for kv_len in whole if kv_len <= TILE_KEYS * d.most // 2]
    kv_len = d.one_of(affordable) + d.one_of((1, 1, q_len, 0, -1))
    chunk = d.one_of(CHUNKS)
    about = [d.integer(d.one_of((chunk // 2, chunk + 1)), 2 * chunk) for _ in range(d.integer(1, 2))]
    requests = [(1, d.one_of((1, 1, 1, 2)), keys) for keys in about]
    requests.insert(d.integer(0, len(requests)), (1, q_len, kv_len))
    return requests


def _crowd(d: _Drawing) -> list[Run]:
    """The last request is the one that is hard to find; or each is, with a query and a key of its own. Or the first and
    the last are both split."""
    crowd = d.one_of((CROWDS[0], *CROWDS, *([MOST_SHORT] if d.on_gpu else [])))
    count = d.integer(crowd + 1, crowd + 9)
    q_len, kv_len = d.one_of(((0, 0), (0, 1), (1, 1))[: 3 if count < d.most else 2])
    last = [d.request(2), (1, 1, d.integer(1, SHORT[0] // 2))]
    if d.on_gpu:
        last.append((1, d.integer(1, TILE_QUERIES + 1), SHORT[1] + d.integer(1, CHUNKS[1])))
    if d.one_of((False, False, True)):
        split = (1, 1, CHUNKS[d.on_gpu] + d.integer(1, 9))
        return [split, (count, q_len, kv_len), split]
    return [(count, q_len, kv_len), d.one_of(last)]


def _server(d: _Drawing) -> list[Run]:
    affordable = sorted((runs for runs in server_lengths().values() if tiles(runs) <= d.most), key=tiles)
    return [*d.one_of(affordable)]


def _many_requests(d: _Drawing) -> list[Run]:
    """Many requests without queries, or with a query or two, and one ordinary request."""
    count = d.integer(GRID_LIMIT + 1, GRID_LIMIT + 300)
    return d.among((count, *d.one_of([(0, 0), (0, 1), (1, 1), (1, 3)][: 4 if d.most > 2 * count else 2])), 1)


def _long_context(d: _Drawing) -> list[Run]:
    """Any number of keys, one about a power of two, or the most; few queries, or what the budget allows up to 70."""
    powers = [LONG << n for n in range(5)]
    longest = min(LONGEST, TILE_KEYS * d.most)
    near = [power + step for power in powers for step in (-1, 0, 1) if LONG <= power + step <= longest]
    kv_len = d.one_of((d.one_of(near), d.integer(LONG, longest), longest))
    tall = max(1, d.most // -(-kv_len // TILE_KEYS))
    return d.among((1, d.integer(1, d.one_of((MOST_SPLIT, min(70, TILE_QUERIES * tall)))), kv_len), 1)


def _huge_q(d: _Drawing) -> list[Run]:
    """Past 2^31 elements in one request; in two, by the second's offset or within its rows; or in tiny requests."""
    rows, kv_len = INT32_ROWS + d.integer(1, 9), d.integer(1, 9)
    if not d.masked:
        return [(rows, 1, kv_len)]
    first = d.one_of((0, INT32_ROWS - 1, INT32_ROWS // 2, rows - 1))
    return [(1, q_len, kv_len) for q_len in (first, rows - first) if q_len]


_STRATA: dict[str, Callable[[_Drawing], list[Run]]] = {
    "single": _single,
    "ragged": _ragged,
    "tiny": _tiny,
    "two-rounds": _two_rounds,
    "decode": _decode,
    "no-prefix": _no_prefix,
    "key-edge": _key_edge,
    "prefix-edge": _prefix_edge,
    "query-edge": _query_edge,
    "masked-rows": _masked_rows,
    "empty-kv": _empty_kv,
    "empty-q": _empty_q,
    "zero-run": _zero_run,
    "no-queries": _no_queries,
    "uneven": _uneven,
    "splits": _splits,
    "crowd": _crowd,
    "alike": _alike,
    "server": _server,
    "many-requests": _many_requests,
    "long-context": _long_context,
    "huge-q": _huge_q,
}
