"""Query and key counts of the requests in a batch, and which strata they belong to.

Lengths are numbers in a Case, not a name, so a stratum of lengths is a predicate: a case belongs to all that hold. How
to draw lengths that satisfy one is told in `fuzz.strata.strategy`.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from fuzz.strata.stratum import Stratum

Runs = tuple[tuple[int, int, int], ...]
BLOCKS = (64, 16, 32, 128)
# a tile of the kernels at hand is 4 queries times 64 keys
TILE_QUERIES, TILE_KEYS = 4, 64
LONG = 8192
# our kernel takes requests of more keys than that another way, in the interpreter and on GPUs
SHORT = (16, 128)
# unless there are more than so many of both, keys and queries
MANY = (6, 96)
# of short requests, what it takes in a second round
TWO_ROUNDS = ((9, 16), (65, 128))
# keys in a chunk of split-KV of our kernel: for each query, in the interpreter and on GPUs, and for up to MOST_SPLIT
# queries where there are many keys
CHUNKS, LONG_CHUNKS = (128, 256), (512, 1024)
MOST_SPLIT = 4  # queries of a request that `splits` are drawn for
MERGED = 64  # chunks that our kernel merges at a time on a GPU
MOST_SHORT = 1024  # short rows on a GPU with a program each; of more, programs take some in turn
CROWDS = (31, 128)  # candidates that a search of our kernel looks at at once: of a row's request, of a tile's
GRID_LIMIT = 65_535
INT32_ROWS = (1 << 31) // (16 * 512)


@dataclass(frozen=True, kw_only=True)
class Lengths(Stratum):
    """`holds(runs)` for runs (count, q_len, kv_len) of equal requests."""

    holds: Callable[[Runs], bool]


def as_runs(requests: Iterable[tuple[int, int] | tuple[int, int, int]]) -> Runs:
    """Requests (q_len, kv_len) or runs (count, q_len, kv_len) as the shortest runs."""
    runs: list[tuple[int, int, int]] = []
    for request in requests:
        count, q_len, kv_len = request if len(request) == 3 else (1, *request)
        if count == 0:
            continue
        if runs and runs[-1][1:] == (q_len, kv_len):
            count += runs.pop()[0]
        runs.append((count, q_len, kv_len))
    return tuple(runs)


def batch(runs: Runs) -> int:
    return sum(count for count, _, _ in runs)


def total_q(runs: Runs) -> int:
    return sum(count * q_len for count, q_len, _ in runs)


def total_kv(runs: Runs) -> int:
    return sum(count * kv_len for count, _, kv_len in runs)


def tiles(runs: Runs) -> int:
    """About how many tiles of 4 queries x 64 keys a kernel visits: what the lengths cost.

    A tile that sees no key counts as one, a request without queries as a quarter: kernels launch a program for it.
    """
    idle = sum(count for count, q_len, _ in runs if not q_len)
    return sum(count * _request_tiles(q_len, kv_len) for count, q_len, kv_len in runs) + idle // 4


def _request_tiles(q_len: int, kv_len: int) -> int:
    """The first tile sees `first` keys, the last one all, those between evenly more; half a tile is lost in each."""
    if q_len == 0:
        return 0
    rows = -(-q_len // TILE_QUERIES)
    first = min(max(kv_len - q_len + TILE_QUERIES, 0), kv_len)
    return max(rows, -(-rows * (first + kv_len) // (2 * TILE_KEYS)) + rows // 2)


@cache
def server_lengths() -> dict[str, Runs]:
    """The lengths of FlashInfer-Bench's 38 workloads of this definition, named total_q/batch, as runs."""
    sets = json.loads(Path(__file__).with_name("server_lengths.json").read_text())
    return {name: as_runs(map(tuple, requests)) for name, requests in sets.items()}


def _live(runs: Runs) -> list[tuple[int, int]]:
    """Lengths of the requests that have both queries and keys."""
    return [(q_len, kv_len) for _, q_len, kv_len in runs if q_len and kv_len]


def _longer_than_short(runs: Runs) -> list[int]:
    """Contexts of requests that are not short in the interpreter, in order; of equal ones in a row two."""
    return sorted(kv_len for count, q_len, kv_len in runs if q_len and kv_len > SHORT[0] for _ in range(min(count, 2)))


def _takes_two_rounds(kv_len: int) -> bool:
    return any(low <= kv_len <= high for low, high in TWO_ROUNDS)


def _at_edge(length: int) -> bool:
    """k * 16 + {-1, 0, 1} for a k >= 1: the edges of every larger block are among them."""
    return length >= 15 and length % 16 in (0, 1, 15)


def _at_chunk(q_len: int, kv_len: int) -> bool:
    """From one key below a multiple of a chunk to as many above it as there are queries."""
    chunks = (CHUNKS[0] * q_len, LONG_CHUNKS[0])
    return any(kv_len >= chunk - 1 and (kv_len + 1) % chunk <= q_len + 1 for chunk in chunks)


LENGTHS = {
    "single": Lengths(
        doc="one request",
        source="definition",
        holds=lambda runs: batch(runs) == 1,
    ),
    "ragged": Lengths(
        doc="requests of unequal lengths: KV offsets taken from query offsets, or from a neighbour, read other keys",
        source="F12; FlashInfer PR #4018",
        holds=lambda runs: len(set(_live(runs))) >= 2,
    ),
    "tiny": Lengths(
        doc="1 to 4 queries and keys: fewer keys than a tile, a warp or a split has lanes",
        source="F07, F08, F23; aiter PR #2128",
        holds=lambda runs: bool(_live(runs)) and all(q <= 4 and kv <= 4 for q, kv in _live(runs)),
    ),
    "two-rounds": Lengths(
        doc="9 to 16 keys, or 65 to 128: of a short request, what is missing may be noticed in one round alone",
        source="F04, F07, F30; vLLM #48043",
        holds=lambda runs: bool(_live(runs)) and all(_takes_two_rounds(kv) for _, kv in _live(runs)),
    ),
    "decode": Lengths(
        doc="one query in each request: the shape of decode, for which kernels have short cuts",
        source="F07; flash-attention #1537",
        holds=lambda runs: bool(_live(runs)) and all(q == 1 for q, _ in _live(runs)),
    ),
    "no-prefix": Lengths(
        doc="as many keys as queries: top-left and bottom-right alignment of the mask agree, first rows see one key",
        source="F05",
        holds=lambda runs: any(q == kv for q, kv in _live(runs)),
    ),
    "key-edge": Lengths(
        doc="kv_len one below, at or one above a multiple of a block: tail lanes, loop bounds, short pipelines",
        source="F07, F08; FlashInfer #3716, Triton #1765, PR #4567",
        holds=lambda runs: any(_at_edge(kv) for _, kv in _live(runs)),
    ),
    "prefix-edge": Lengths(
        doc="prefix mod block in {0, 1, block - 1}: the diagonal crosses two key tiles within one query tile",
        source="F05, F07; flash-attention PR #436, #1778",
        holds=lambda runs: any(q >= 2 and _at_edge(kv - q) for q, kv in _live(runs)),
    ),
    "query-edge": Lengths(
        doc="q_len one below, at or one above a multiple of a block: the last query tile is nearly empty",
        source="F07, F11; onnxruntime PR #28200",
        holds=lambda runs: any(_at_edge(q) for q, _ in _live(runs)),
    ),
    "masked-rows": Lengths(
        doc="fewer keys than queries: leading rows see no key, must be written, +0 and -inf",
        source="F10; FlashInfer #4452, #1395, #4401, PyTorch PR #134650",
        holds=lambda runs: any(kv < q for q, kv in _live(runs)),
    ),
    "empty-kv": Lengths(
        doc="queries without keys: 0/0, a sentinel as LSE, +inf for -inf, or rows never written",
        source="F09; FlashInfer #4484, #3047, vLLM PR #15492, FlashMLA #11",
        holds=lambda runs: any(q and not kv for _, q, kv in runs),
    ),
    "empty-q": Lengths(
        doc="keys without queries: the search for a row's request meets equal offsets",
        source="F11; vLLM #51486, flash-attention #1537",
        holds=lambda runs: any(kv and not q for _, q, kv in runs),
    ),
    "zero-run": Lengths(
        doc="two or more requests in a row without queries: a grid sized as if each had one misses the last tiles",
        source="F11; onnxruntime PR #28200",
        holds=lambda runs: any(
            not q and (count > 1 or (i + 1 < len(runs) and not runs[i + 1][1])) for i, (count, q, _) in enumerate(runs)
        ),
    ),
    "no-queries": Lengths(
        doc="total_q = 0, batch 0 among them: an empty grid, results of the right shape",
        source="F11, F28; Triton PR #10427",
        holds=lambda runs: total_q(runs) == 0,
    ),
    "uneven": Lengths(
        doc="three or more contexts, one 64 times as long as another: splits that hold nothing are merged all the same",
        source="F23; aiter PR #3641, vLLM PR #47188",
        holds=lambda runs: batch(runs) >= 3 and max(kv for *_, kv in runs) >= 64 * min(kv for *_, kv in runs) > 0,
    ),
    "splits": Lengths(
        doc="1 to 4 queries over 1, 2, 3 or 17 chunks and about a key: of 128 or 256 keys each, or 512 or 1,024 in all",
        source="F07, F16, F23; FlashInfer #4485, flash-attention #1897, aiter PR #3641",
        holds=lambda runs: any(q <= MOST_SPLIT and _at_chunk(q, kv) for q, kv in _live(runs)),
    ),
    "crowd": Lengths(
        doc="more than 31 or 128 requests, on GPUs 1,024, of one query or none: a search that looks at so many takes a "
        "second step",
        source="F11, F28; FlashInfer #3125",
        holds=lambda runs: batch(runs) > CROWDS[0],
    ),
    "alike": Lengths(
        doc="two contexts within a quarter of each other: a list in order of length gives each a place of its own",
        source="F11; onnxruntime PR #28200",
        holds=lambda runs: any(4 * longer <= 5 * shorter for shorter, longer in pairwise(_longer_than_short(runs))),
    ),
    "server": Lengths(
        doc="the lengths of one of FlashInfer-Bench's 38 workloads: what servers send",
        source="definition",
        holds=lambda runs: runs in server_lengths().values(),
    ),
    "many-requests": Lengths(
        doc="more than 65,535 requests: a batch on the y or z axis of a grid is too large",
        source="F28; FlashInfer #3125, Triton #3299",
        holds=lambda runs: batch(runs) > GRID_LIMIT,
    ),
    "long-context": Lengths(
        doc="8,192 keys or more, up to 131,073: accumulators and weights of too few bits drift, splits appear",
        source="F22, F23; aiter PR #705, TorchTitan #3235",
        holds=lambda runs: any(kv >= LONG for _, kv in _live(runs)),
    ),
    "huge-q": Lengths(
        doc="more than 262,144 query rows, as one request and as two: row * 16 * 512 passes 2^31",
        source="F02; SGLang #20389, flash-linear-attention #1080",
        holds=lambda runs: total_q(runs) > INT32_ROWS,
    ),
}


def labels(runs: Runs) -> tuple[str, ...]:
    """Names of the strata that hold, in the order of the registry."""
    return tuple(name for name, stratum in LENGTHS.items() if stratum.holds(runs))
