"""Generated mutants that are not run, by name, each with the reason."""

# Nothing can tell these from the original.
EQUIVALENT: dict[str, str] = {
    "_attend_once: -1 -> -2": "the page of a key past the last: 2^32 - 2 is outside any cache too",
    "find_row: tl.minimum(step, count - step * nth) -> step": "past the end comes the last entry again: what is found "
    "there is the padding, as before",
    "lone: q_start + nth + head * 0 -> q_start + nth - head * 0": "0 is added or taken away",
    "page_id: -1 -> -2": "2^32 - 2 is outside any cache too",
    "page_id: 2 ** 31 -> 2 ** 32": "2^31 to 2^32 - 1 are outside the cache as they are: none holds 2^31 pages",
    "page_id: page < 2 ** 31 -> page <= 2 ** 31": "2^31 is outside the cache as it is: none holds as many pages",
    "split_length: 8 * CHUNK -> 9 * CHUNK": "another length from which on chunks are longer; all launches go by it",
    "_tile: (total != total).to(tl.int32) -> total != total": "`tl.max` widens what is narrower than 32 bits itself",
    "attend: (tl.arange(0, ROWS) % HEADS).to(tl.int64) -> tl.arange(0, ROWS) % HEADS": "a head is below 16, and the "
    "strides that it is multiplied by are 64-bit",
    "attend: p.to(kp.dtype) -> p": "weights that are not rounded are closer than the bound allows for; a GPU's "
    "compiler refuses the product of two dtypes",
    "attend: tl.minimum(sees, end) -> sees": "both callers pass rows that see no more than `end` keys",
    "attend: tl.where(m_new == -float('inf'), 0.0, m_new) -> tl.where(m_new == -float('inf'), 1.0, m_new)": "a row "
    "that has seen nothing: -inf less any number is -inf, of weight 0",
    "extent: tl.load(kv[0] + after * kv[1]).to(tl.int64) -> tl.load(kv[0] + after * kv[1])": "kv_start, which is taken "
    "from it, has 64 bits",
    "_merged_lse: 0.0 -> 1.0 (2)": "the denominator of a chunk past the last: its weight is 0, as its maximum is -inf",
    "prefill: spoilt & (least < end) -> spoilt | (least < end)": "where no row of the tile is spoilt no key of it is, "
    "where all rows see the same keys none is looked at: none is found, and nothing is done again",
    "prefill: tl.minimum(tl.maximum(prefix + (q_stop - q_start), 0), kv_len) -> tl.maximum(prefix + (q_stop - "
    "q_start), 0)": "q_stop is q_end at most, so that this is kv_len at most",
    "store_rows: tl.where(total == 0, -float('inf'), m + tl.log2(total)) -> m + tl.log2(total)": "log2(0) is -inf, and "
    "m is 0 or -inf where total is 0",
    "store_rows: tl.where(total == 0, 0.0, 1 / total) -> tl.where(total == 0, 1.0, 1 / total)": "where total is 0, the "
    "weighted sum is 0 too",
}

# A GPU alone can show these.
ON_A_GPU: dict[str, str] = {
    "plan_of: inputs.kv_indices.stride(0) == 1 -> inputs.kv_indices.stride(0) != 1": "decides between two kernels of a "
    "GPU",
    "find_request: stop - low + WIDTH - 1 -> stop - low + WIDTH - 2": "misses the last of 513 candidates, as there are "
    "with 65,536 requests; the last of 129 is the padding",
    "first_unsound_key: pages[2] - 1 -> pages[2] + 1": "reads two rows past the cache and does not use them: for "
    "compute-sanitizer",
    "lone: program.to(tl.int64) -> program": "262,144 slots, which take 67 million keys",
}
