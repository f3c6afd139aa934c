"""Named faults in the kernel for Hopper, which `kernel.emulated` runs on a CPU: in how its warpgroups hand each other
what they made, and in what it does in a way of its own."""

from __future__ import annotations

from fuzz.mutants.edit import Edit
from fuzz.mutants.mutant import Mutant

_OVERWRITTEN = "Triton #6124, PR #3106: overwritten before the wait"
_UNORDERED = "Triton #9871, #10590: a barrier left out"


def _one(
    name: str, fault: str, bug: str, function: str, before: str, after: str, *, count: int = 1, equivalent: str = ""
) -> Mutant:
    edit = Edit(function if ":" in function else f"prefill_hopper.py:{function}", before, after, count)
    return Mutant(f"Hopper: {name}", (edit,), fault, bug, equivalent=equivalent)


def _swapped(name: str, function: str, first: str, second: str) -> Mutant:
    return _one(name, "F25", _OVERWRITTEN, function, f"{first}\n{second}", f"{second}\n{first}")


def _dropped(name: str, function: str, statement: str, *, after: str = "") -> Mutant:
    return _one(name, "F25", _UNORDERED, function, f"{statement}\n{after}", after)


_FENCE = "fence_async_shared()"
_PRODUCT = "acc = warpgroup_mma_wait(0, deps=[product])"

_HANDING_OVER = (
    _dropped("weights not fenced", "_hand_over", _FENCE),
    _dropped("even keys not fenced", "_even_scores_half", _FENCE),
    _dropped("even keys not waited for", "_even_scores_half", "mbarrier.wait(filled[0], phase, pred=wanted)"),
    _dropped("odd rotary keys not waited for", "_odd_scores", "mbarrier.wait(filled[2], phase)"),
    _dropped("even weights not waited for", "_await_even", "mbarrier.wait(weights_ready[0], phase)"),
    _dropped("odd weights not waited for", "_left", "mbarrier.wait(weights_ready[1], odd_phase)"),
    _dropped("an item not waited for", "_await_count", "mbarrier.wait(item_told, phase)"),
    _dropped("denominator not waited for", "_whole_total", "mbarrier.wait(totals_ready[1 - SIDE], phase)"),
    _dropped("even keys copied over", "_gather", "mbarrier.wait(emptied[1], even_phase)"),
    _dropped("queries copied over", "_gather", "mbarrier.wait(query_emptied, query_phase)",
             after="_tell(told, item_told, count, row, least, start, end, whole_end, slot)"),
    _swapped("even keys given back early", "_left", _PRODUCT, "mbarrier.arrive(emptied[0], count=1)"),
    _swapped("odd keys given back early", "_left", "acc = warpgroup_mma_wait(1, deps=[product])",
             "mbarrier.arrive(emptied[2], count=1)"),
    _swapped("even right half given back early", "_right", _PRODUCT, "mbarrier.arrive(emptied[1], count=1)"),
    _one("queries given back after the first pair", "F25", _OVERWRITTEN, "_right", "i + 1 == pairs", "i == 0"),
    _one("queries given back twice", "F25", "a phase too many",
         "_right", "(i + 1 == pairs) & (not one_more)", "i + 1 == pairs"),
    _swapped("keys of a last even block given back early", "_left",
             "acc = warpgroup_mma(mine, even[0].index(zero), acc)", "mbarrier.arrive(emptied[0], count=1)"),
    _one("a product in flight taken", "F25", _OVERWRITTEN, "_right", _PRODUCT, _PRODUCT.replace("0", "1")),
    _one("gather waits for what nobody emptied", "F25", "all wait for each other",
         "_gather", "even_phase = 1", "even_phase = 0"),
    _one("given back twice", "F25", "a phase too many",
         "_left", "mbarrier.arrive(emptied[2], count=1)", "mbarrier.arrive(emptied[2], count=2)"),
)  # fmt: skip

_NUMBERS = (
    _one("causal edge one late", "F05", "FlashInfer PR #348",
         "_mask", "key[None, :] < gl.minimum(sees, end)[:, None]", "key[None, :] <= gl.minimum(sees, end)[:, None]"),
    _one("mask of the edge left out", "F05", "flash-attention #2374",
         "_mask", "first + BLOCK > gl.minimum(least, end)", "first + BLOCK > end"),
    _one("mask of the end left out", "F08", "vLLM PRs #44840, #44850",
         "_mask", "gl.minimum(sees, end)[:, None]", "sees[:, None]",
         equivalent="a run ends with a whole pair, with what its last query sees, or where rows that see more are NaN"),
    _one("-inf minus -inf", "F10", "FlashInfer PR #4401",
         "_shift", "gl.where(m == -float('inf'), 0.0, m)", "m"),
    _one("negative scale compared unscaled", "F19", "FlashInfer, scale `negative`",
         "_weigh", "m = gl.maximum(m, gl.max(x, 1))", "m = gl.maximum(m, -gl.max(-x, 1))"),
    _one("odd maximum not applied", "F16", "the standard mutant",
         "_left", "total, acc = _rescale(total, acc, m_even, m)", ""),
    _one("a last even block left out", "F07", "a rounded-down count", "_pairs", "blocks > 2 * pairs", "False"),
    _one("maximum of a last even block not applied", "F16", "the standard mutant",
         "_await_even", "total, acc = _rescale(total, acc, m, m_even)", ""),
    _one("denominator of one half", "F23", "a merge that forgets a part",
         "_whole_total", "total += totals.index(1 - SIDE).load(ROWS)", ""),
    _one("a key of an empty tile shown", "F03", "found here on an H200",
         "_store_rows", "acc = gl.where(share == 0, 0.0, acc * share)", "acc = acc * share"),
    _one("keys at the edge not looked at", "F03", "flash-attention #2374",
         "_gather", "_first_unsound(k_from, kv_start, edge, end)", "end"),
    _one("a tile cut short not done again", "F03", "a retry that goes on with the next",
         "_gather", "nth -= again.to(gl.int32)", ""),
    _one("tiles cut short after one that was", "F03, F07", "state of the tile before",
         "_gather", "gl.where(again, sound_end, 2**30)", "gl.minimum(limit, sound_end)"),
    _one("a page outside taken", "F04", "vLLM #48043",
         "_key", "gl.where(inside, rotary, nowhere)", "rotary"),
    _one("page ids a pair late", "F13", "a prefetch that is not shifted",
         "_gather", "_pages(k_from, kv_start, start, end, i + 1)", "_pages(k_from, kv_start, start, end, i)"),
    _one("last item left out", "F11", "a rounded-down count",
         "_gather", "place < total", "place + 1 < total"),
    _one("a program's second item left out", "F11", "a rounded-down count",
         "_turn", "programs - 1 - place", "programs + place"),
    _one("items of a class counted from the one before", "F11", "a rank that is not one of its own",
         "found.py:choose", "nth += pick(longer, lane == chosen) - tl.sum(tl.where(lane < chosen, own, 0), 0)",
         "nth += pick(longer, lane == chosen) - tl.sum(tl.where(lane <= chosen, own, 0), 0)"),
    _one("items of the longest class counted twice", "F11", "a class that begins in another",
         "found.py:_longer", "tl.where(nth_class < 0, tiles * chunks, tl.where(chunks > 1, split, whole))",
         "tl.where(chunks > 1, split, whole)"),
    _one("a last round's items for those who had the first", "F11", "a round that is no permutation",
         "_turn", "gl.where(backwards, programs - 1 - place, place)", "gl.where(backwards, programs - place, place)"),
    _one("short rows of another request", "F11", "onnxruntime PR #28200",
         "rest.py:_short_row", "(nth >= 0) & (nth < rows)", "(nth >= 0) & (nth <= rows)"),
    _one("first tile of a found request again", "F11", "onnxruntime PR #28200",
         "_found_item", "tiles - 1 - nth", "gl.maximum(tiles - 2 - nth, 0)"),
    _one("slot of the chunk before", "F23", "a merge of other parts",
         "_found_item", "chunk * q_len", "gl.maximum(chunk - 1, 0) * q_len"),
    _one("rows of other requests written", "F30", "an unmasked store",
         "_store_rows", "gl.store(at, value, mask=(nth < count * HEADS)[:, None])", "gl.store(at, value)"),
    _one("slot of the next query", "F23", "a merge of other parts",
         "_store_slots", "slot.to(gl.int64) * HEADS", "(slot.to(gl.int64) + 1) * HEADS"),
)  # fmt: skip

MUTANTS = (*_HANDING_OVER, *_NUMBERS)
