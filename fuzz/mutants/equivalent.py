"""Generated mutants that are not run: names by the reason."""

# Nothing can tell these from the original.
_SAME: dict[str, tuple[str, ...]] = {
    "the page of a key past the last: 2^32 - 2 is outside any cache too": ("_attend_once: -1 -> -2",),
    "past the end comes the last entry again: what is found there is the padding, as before": (
        "find_row: tl.minimum(step, count - step * nth) -> step",
        "find_row: count - step * nth -> count + step * nth",
        "find_row: batch + 1 -> batch + 2",
        "find_row: probe < low + count -> probe <= low + count",
    ),
    "0 is added or taken away": (
        "lone: q_start + nth + head * 0 -> q_start + nth - head * 0",
        "lone: end + head * 0 -> end - head * 0",
        "attend_row: row + head * 0 -> row - head * 0",
        "attend_row: row + head * 0 -> row - head * 0 (2)",
        "attend_row: end + head.to(tl.int32) * 0 -> end - head.to(tl.int32) * 0",
    ),
    "2^32 - 2 is outside any cache too": ("page_id: -1 -> -2",),
    "2^31 to 2^32 - 1 are outside the cache as they are: none holds 2^31 pages": ("page_id: 2 ** 31 -> 2 ** 32",),
    "2^31 is outside the cache as it is: none holds as many pages": (
        "page_id: page < 2 ** 31 -> page <= 2 ** 31",
        "_page: page < 2 ** 31 -> page <= 2 ** 31",
    ),
    "a row without keys reads none, wherever they are said to begin": (
        "store_row: tl.where(end > 0, kv_start, 0) -> kv_start",
    ),
    "one share more than there are: nobody has it": ("rest: 0 -> 1",),
    "VECTORS says that columns are neighbours, and no step is looked at": (
        "rest: (q_pe, q_pe_row, q_pe_head, 1) -> (q_pe, q_pe_row, q_pe_head, 2)",
    ),
    "past the end comes the last key again, and if it is bad its own lane says so": (
        "_first_unsound: gl.minimum(key, end) -> key",
    ),
    "without queries it has no share of the merging": ("is_split_in_list: q_len > 0 -> q_len >= 0",),
    "when the next launch may begin: speed": (
        "prefill_hopper: (batch > 1) & (num_kv_indices <= SHORT * batch) -> (batch > 1) | (num_kv_indices <= SHORT * "
        "batch)",
        "prefill_hopper: SHORT * batch -> SHORT + batch",
        "prefill_hopper: batch > 1 -> batch > 2",
        "prefill_hopper: batch > 1 -> batch >= 1",
        "prefill_hopper: num_kv_indices <= SHORT * batch -> num_kv_indices < SHORT * batch",
        "_work: short_rows(work) + padding -> short_rows(work) - padding",
        "look_at_one: tl.where(wrong, 0, total_q - q_end) -> 0",
        "look_at_one: tl.where(wrong, 0, total_q - q_end) -> tl.where(wrong, 1, total_q - q_end)",
        "look_at_one: tl.where(wrong, 0, total_q - q_end) -> total_q - q_end",
        "look_at_one: total_q - q_end -> total_q + q_end",
        "look_at_one: q_end < q_start -> q_end <= q_start",
        "_launch: False -> True",
        "_launch_hopper: True -> False",
    ),
    "whether `short` goes first or `rest` comes last: speed": (
        "_launch_hopper: batch > 1 -> batch > 2",
        "_launch_hopper: batch > 1 -> batch >= 1",
        "_launch_hopper: batch > 1 and num_kv_indices <= plan.short * batch -> batch > 1 or num_kv_indices <= "
        "plan.short * batch",
        "_launch_hopper: num_kv_indices <= plan.short * batch -> num_kv_indices < plan.short * batch",
        "_launch_hopper: plan.short * batch -> plan.short + batch",
    ),
    "how many programs share the work: speed": (
        "_launch_hopper: some_short and (not listed) -> some_short or not listed",
        "_launch_hopper: not listed -> listed",
        "_launch_hopper: min(total_q, plan.shorts) if some_short and (not listed) else 0 -> min(total_q, plan.shorts) "
        "if some_short and (not listed) else 1",
        "_launch_hopper: processors * 3 -> processors * 4",
        "_launch_hopper: processors * 3 -> processors + 3",
        "_launch_hopper: processors * 3 // 4 -> processors * 3 * 4",
        "_launch_hopper: processors * 3 // 4 -> processors * 3 // 5",
    ),
    "columns that lie side by side are found by their steps: slower": (
        "_launch_hopper: _launch_short(tensors, numbers, plan, True, variant, ahead=True) -> _launch_short(tensors, "
        "numbers, plan, False, variant, ahead=True)",
    ),
    "q_pe has the rows and the device of q_nope": (
        "_launch_short: tensors[0] -> tensors[1]",
        "_launch_short: tensors[0] -> tensors[1] (2)",
    ),
    "found or listed, items are the same": ("Plan.way_to_items: batch <= self.found -> batch < self.found",),
    "items in another order, each of them once: classes still grow, and a request's count of longer items still falls "
    "from all to none": (
        "choose: total > programs -> total >= programs",
        "_longer: 16 * (limit & 3) -> 16 + (limit & 3)",
        "_longer: 16 * (limit & 3) -> 17 * (limit & 3)",
        "_longer: 64 + 16 * (limit & 3) -> 65 + 16 * (limit & 3)",
        "_longer: limit & 3 -> limit & 4",
        "_longer: nth_class < 0 -> nth_class < 1",
        "_longer: nth_class < 0 -> nth_class <= 0",
        "_longer: tl.maximum(nth_class, 0) -> tl.maximum(nth_class, 1)",
        "_longer: length > limit -> length >= limit",
        "_longer: limit >= sound -> limit > sound",
        "_longer: kv_len - q_len -> kv_len + q_len",
        "_longer: (limit - prefix) // QUERIES -> (limit - prefix) * QUERIES",
        "_longer: tiles - 1 -> tiles - 2",
        "_longer: tl.maximum(tiles - 1, 0) -> 0",
    ),
    "another order of the programs in a round, each of them once": (
        "_turn: (nth % 2 == 1) | (nth > 0) & ((nth + 1) * programs > total) -> (nth % 2 == 1) & ((nth > 0) & ((nth + "
        "1) * programs > total))",
        "_turn: (nth + 1) * programs -> nth + 1 + programs",
        "_turn: (nth + 1) * programs > total -> (nth + 1) * programs >= total",
        "_turn: (nth > 0) & ((nth + 1) * programs > total) -> (nth > 0) | ((nth + 1) * programs > total)",
        "_turn: gl.where(backwards, programs - 1 - place, place) -> place",
        "_turn: gl.where(backwards, programs - 1 - place, place) -> programs - 1 - place",
        "_turn: nth % 2 == 1 -> nth % 2 != 1",
        "_turn: nth % 2 == 1 -> nth % 2 == 2",
        "_turn: nth + 1 -> nth + 2",
        "_turn: nth + 1 -> nth - 1",
        "_turn: nth > 0 -> nth > 1",
        "_turn: nth > 0 -> nth >= 0",
    ),
    "no row sees more keys than its request has: there are no more rows than queries": (
        "_short_row: tl.minimum(tl.maximum(kv_len - pick(q_len, ch ... nth + 1, 0), kv_len) -> tl.maximum(kv_len - "
        "pick(q_len, chosen) + nth + 1, 0)",
    ),
    "no key more at the edge makes no item more": ("_longer: limit < prefix -> limit <= prefix",),
    "all items are longer than class -1, wherever it ends": ("_longer: tl.maximum(nth_class, 0) -> nth_class",),
    "enough steps for every class": (
        "choose: num_kv_indices <= 896 -> num_kv_indices < 896",
        "choose: num_kv_indices <= 14336 -> num_kv_indices < 14336",
        "choose: tl.where(num_kv_indices <= 14336, 16, 64) -> 64",
        "choose: tl.where(num_kv_indices <= 896, 8, tl.where(n ... s <= 14336, 16, 64)) -> tl.where(num_kv_indices <= "
        "14336, 16, 64)",
    ),
    "only requests of the same length are about as long: another order": (
        "_about: ones | ones >> 16 -> ones & ones >> 16",
    ),
    "true counts as 1 without the cast": (
        "_gather: again.to(gl.int32) -> again",
        "_gather: one_more.to(gl.int32) -> one_more",
    ),
    "scores scaled before they are compared are right for any scale, and a little slower": (
        "_launch_hopper: scale > 0 -> scale > 1",
    ),
    "NaN either way": (
        "prefill_hopper: rotary_dim.to(gl.float32) * float('nan') -> rotary_dim.to(gl.float32) + float('nan')",
        "prefill_hopper: rotary_dim.to(gl.float32) -> rotary_dim",
        "prefill_hopper: (rotary_dim.to(gl.float32) * float('nan')).to(DTYPE) -> rotary_dim.to(gl.float32) * "
        "float('nan')",
    ),
    "past a run comes its last key again, which no row sees there: speed": (
        "_pairs: blocks // 2 -> blocks * 2",
        "_pairs: blocks > 2 * pairs -> blocks >= 2 * pairs",
        "_pairs: end - start -> end + start",
        "_pairs: gl.maximum(blocks // 2, 1) -> gl.maximum(blocks // 2, 2)",
    ),
    "-inf as log2(0) is, and m is 0 or -inf where total is 0": (
        "_store_rows: gl.where(total == 0, -float('inf'), m + gl.log2(total)) -> m + gl.log2(total)",
    ),
    "a run ends with a whole pair, with what its last query sees, or where rows that see more are NaN": (
        "_mask: gl.minimum(sees, end) -> sees",
    ),
    "added to zeros": ("_odd_scores: False -> True",),
    "programs that find no tile": (
        "_launch_schedule: -plan.tiles(total_q, batch) // TILES_PER_PROGRAM -> -plan.tiles(total_q, batch) * "
        "TILES_PER_PROGRAM",
    ),
    "a tile has rows for so many queries and no more": (
        "_list_chunks: tl.minimum(q_len - QUERIES * nth, QUERIES) -> q_len - QUERIES * nth",
    ),
    "a limit that no number of keys comes near": ("_count_earlier: 2 ** 30 -> 2 ** 31",),
    "what is computed of requests that are not ours is not looked at": (
        "requested_work: tl.where(ours, q_len, 1) -> q_len",
    ),
    "another length from which on chunks are longer; all launches go by it": ("split_length: 8 * CHUNK -> 9 * CHUNK",),
    "`tl.max` widens what is narrower than 32 bits itself": ("_tile: (total != total).to(tl.int32) -> total != total",),
    "a row that needs a second look does not see the spoilt key: its total is no NaN either way": (
        "_tile: total != total -> total == total",
    ),
    "a head is below 16, and the strides that it is multiplied by are 64-bit": (
        "attend: (tl.arange(0, ROWS) % HEADS).to(tl.int64) -> tl.arange(0, ROWS) % HEADS",
    ),
    "both callers pass rows that see no more than `end` keys": ("attend: tl.minimum(sees, end) -> sees",),
    "`attend` hides what lies past `end` from rows that see more": (
        "lone: head * 0 -> head + 0 (2)",
        "lone: head * 0 -> head * 1 (2)",
    ),
    "no row sees more than kv_len keys": ("lone: tl.minimum(start + length, kv_len) -> start + length",),
    "a mask over a tile that all rows see whole": ("attend: first + BLOCK_N > whole -> first + BLOCK_N >= whole",),
    "a request that ends at the row is not the last one that begins there, unless row pointers fall": (
        "find_and_attend: row < q_end -> row <= q_end",
    ),
    "what `short` computes of longer requests, the launches after it write again": (
        "find_and_attend: is_short(q_end - q_start, sound, SHORT, MANY) & (q_start <= row) -> "
        "is_short(q_end - q_start, sound, SHORT, MANY) | (q_start <= row)",
    ),
    "a row that has seen nothing: -inf less any number is -inf, of weight 0": (
        "attend: tl.where(m_new == -float('inf'), 0.0, m_new) -> tl.where(m_new == -float('inf'), 1.0, m_new)",
    ),
    "kv_start, which is taken from it, has 64 bits": (
        "extent: tl.load(kv[0] + after * kv[1]).to(tl.int64) -> tl.load(kv[0] + after * kv[1])",
    ),
    "the denominator of a chunk past the last: its weight is 0, as its maximum is -inf": ("_merge: 0.0 -> 1.0 (3)",),
    "where no row of the tile is spoilt no key of it is, where all rows see the same keys none is looked at: none "
    "is found, and nothing is done again": ("prefill: spoilt & (least < end) -> spoilt | (least < end)",),
    "q_stop is q_end at most, so that this is kv_len at most": (
        "prefill: tl.minimum(tl.maximum(prefix + (q_stop - q_start), 0), kv_len) -> tl.maximum(prefix + (q_stop - "
        "q_start), 0)",
    ),
    "log2(0) is -inf, and m is 0 or -inf where total is 0": (
        "store_rows: tl.where(total == 0, -float('inf'), m + tl.log2(total)) -> m + tl.log2(total)",
    ),
    "where total is 0, the weighted sum is 0 too": (
        "store_rows: tl.where(total == 0, 0.0, 1 / total) -> tl.where(total == 0, 1.0, 1 / total)",
        "_attend_once: tl.where(total == 0, 0.0, 1 / total) -> tl.where(total == 0, 1.0, 1 / total)",
    ),
    "the same number in more bits or fewer, which hold it; what it is added to or multiplied by has 64": (
        "attend: (pages[2] - 1).to(tl.uint32) -> pages[2] - 1",
        "first_unsound_key: (pages[2] - 1).to(tl.uint32) -> pages[2] - 1",
        "attend: highest.to(tl.int64) -> highest",
        "key_places: page.to(tl.int32).to(tl.int64) -> page.to(tl.int32)",
        "key_places: page.to(tl.int32) -> page",
        "key_places: cache[1].to(tl.int32).to(tl.int64) -> cache[1].to(tl.int32)",
        "key_places: cache[1].to(tl.int32) -> cache[1]",
        "key_places: page.to(tl.int64) -> page",
        "lone: (program - slots).to(tl.int64) -> program - slots",
        "lone: tl.arange(0, HEADS).to(tl.int64) -> tl.arange(0, HEADS)",
        "lone: (end + head * 0).to(tl.int32) -> end + head * 0",
        "lone: start.to(tl.int32) -> start",
        "lone: end.to(tl.int32) -> end",
        "_tile: tl.minimum(sees, end).to(tl.int32) -> tl.minimum(sees, end)",
        "_tile: end.to(tl.int32) -> end",
        "store_rows: (tl.arange(0, total.shape[0]) % HEADS).to(tl.int64) -> tl.arange(0, total.shape[0]) % HEADS",
        "find_row: tl.minimum(probe, batch).to(tl.int64) -> tl.minimum(probe, batch)",
        "find_and_attend: tl.minimum(sees, sound).to(tl.int32) -> tl.minimum(sees, sound)",
        "find_and_attend: row.to(tl.int64) -> row",
        "_merge_all: pick(lane, chosen).to(tl.int64) -> pick(lane, chosen)",
        "_copy_queries: (row + gl.where(nth_row < count * HEADS, nth_ ... DS, 0)).to(gl.int64) -> row + "
        "gl.where(nth_row < count * HEADS, nth_row // HEADS, 0)",
        "load_row: tl.load(at + 3).to(tl.int64) -> tl.load(at + 3)",
        "_list_chunks: length.to(tl.int32) -> length",
        "_count_earlier: length.to(tl.int32) -> length",
        "store_item: start.to(tl.int32) -> start",
        "look_at_one: kv_end.to(tl.int64) -> kv_end",
        "look_at_one: kv_start.to(tl.int64) -> kv_start",
        "_extents: kv_end.to(tl.int64) -> kv_end",
        "_extents: kv_start.to(tl.int64) -> kv_start",
        "look_at_one: tl.where(wrong, 0, total_q - q_end).to(tl.int32) -> tl.where(wrong, 0, total_q - q_end)",
        "work_of: q_len.to(tl.int32) -> q_len",
        "work_of: tiles.to(tl.int32) -> tiles",
        "work_of: chunks.to(tl.int32) -> chunks",
        "work_of: length.to(tl.int32) -> length",
        "_short_row: (pick(first_row, chosen) + nth).to(tl.int64) -> pick(first_row, chosen) + nth",
        "attend_row: tl.arange(0, HEADS).to(tl.int64) -> tl.arange(0, HEADS)",
        "attend_row: head.to(tl.int32) -> head",
        "_attend_once: tl.arange(0, HEADS).to(tl.int64) -> tl.arange(0, HEADS)",
        "_attend_once: indices[2].to(tl.uint32) -> indices[2]",
        "merge: (tl.program_id(0) // team).to(tl.int64) -> tl.program_id(0) // team",
        "merge: count_shares(q_len, tl.cdiv(kv_len, length),  ...  HEADS).to(tl.int32) -> count_shares(q_len, "
        "tl.cdiv(kv_len, length), AT_ONCE, SLICES, HEADS)",
        "merge_share: q_len.to(tl.int32) -> q_len",
        "_merge: tl.cdiv(prefix + query + 1, length).to(tl.int32) -> tl.cdiv(prefix + query + 1, length)",
        "prefill: (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) -> tl.num_programs(0) - 1 - "
        "tl.program_id(0)",
        "extent: tl.load(qo[0] + request * qo[1]).to(tl.int64) -> tl.load(qo[0] + request * qo[1])",
        "extent: tl.load(qo[0] + after * qo[1]).to(tl.int64) -> tl.load(qo[0] + after * qo[1])",
        "find_request: tl.load(qo[0] + probe * qo[1], mask=inside, other=0).to(tl.int64) -> tl.load(qo[0] + probe * "
        "qo[1], mask=inside, other=0)",
    ),
    "`tl.sum` widens what is narrower than 32 bits itself": (
        "find_request: (inside & (first <= position)).to(tl.int32) -> inside & (first <= position)",
        "find_row: ((probe < low + count) & (q <= row)).to(tl.int32) -> (probe < low + count) & (q <= row)",
        "_attend_once: exists.to(tl.int32) -> exists",
        "count_unsound: (tl.abs(values.to(tl.float32)) < float('inf')).to(tl.int32) -> tl.abs(values.to(tl.float32)) "
        "< float('inf')",
    ),
    "`tl.store` casts to what it stores to, rounding alike": (
        "_merge: (acc / total).to(output[0].dtype.element_ty) -> acc / total",
        "store_rows: (acc[i] * share[:, None]).to(output[0].dtype.element_ty) -> acc[i] * share[:, None]",
        "_attend_once: (acc[i] * share[:, None]).to(output[0].dtype.element_ty) -> acc[i] * share[:, None]",
    ),
    "how many programs, warps or stages do the work: speed": (
        "Plan.merge_team: max(1, min(128, self.mergers // batch)) -> max(2, min(128, self.mergers // batch))",
        "Plan.merge_team: min(128, self.mergers // batch) -> min(129, self.mergers // batch)",
        "Plan.merge_team: self.mergers // batch -> self.mergers * batch",
        "Plan.short_programs: total_q <= self.shorts -> total_q < self.shorts",
        "attend_row: attend(queries[0], queries[1], ckv, kpe, indi ... , CKV, KPE, VECTORS) -> attend(queries[0], "
        "queries[1], ckv, kpe, indi ... , CKV, KPE, VECTORS) (2)",
    ),
    "the launches that follow find no request that is theirs": (
        "Plan.is_short: min(q_len, sound) <= self.many -> min(q_len, sound) < self.many",
        "Plan.is_short: sound <= self.short -> sound < self.short",
    ),
    "callers pass `end` above `start`, and a round takes more than two keys": (
        "attend: tl.maximum(end, start + 1) -> end",
        "attend: start + 1 -> start - 1",
        "attend: start + 1 -> start + 2",
    ),
    "without slots no request is long enough to be split, and with any there are two or more": (
        "lone: slots > 0 -> slots >= 0",
        "lone: slots > 0 -> slots > 1",
        "prefill: slots > 0 -> slots >= 0",
        "prefill: slots > 0 -> slots > 1",
    ),
    "a chunk of which the query sees no key has a slot that is not merged": ("lone: end > start -> end >= start",),
    "where all rows see the same keys none is looked at, and none is found": ("prefill: least < end -> least <= end",),
    "where none is found the tile is done again just as before": ("prefill: sound < end -> sound <= end",),
    "q_first is below q_end, so that this is kv_len at most": (
        "prefill: tl.minimum(tl.maximum(prefix + (q_first - q_start) + 1, 0), kv_len) -> tl.maximum(prefix + (q_first "
        "- q_start) + 1, 0)",
    ),
    "only rows past q_end would see more, and they are not written": (
        "prefill: tl.minimum(tl.maximum(prefix + (query - q_start) + 1, 0), kv_len) -> tl.maximum(prefix + (query - "
        "q_start) + 1, 0)",
    ),
    "fewer keys than none are none": (
        "prefill: tl.maximum(prefix + (q_stop - q_start), 0) -> prefix + (q_stop - q_start)",
        "find_and_attend: tl.maximum(kv_len - (q_end - row) + 1, 0) -> kv_len - (q_end - row) + 1",
        "find_and_attend: tl.maximum(kv_end - kv_start, 0) -> kv_end - kv_start",
        "extent: tl.maximum(kv_end - kv_start, 0) -> kv_end - kv_start",
        "_count_earlier: tl.maximum(kv_end - kv_start, 0) -> kv_end - kv_start",
        "existing_keys: tl.maximum(num_kv_indices - kv_start, 0) -> num_kv_indices - kv_start",
    ),
    "the row is below q_end, so that this is kv_len at most": (
        "find_and_attend: tl.minimum(tl.maximum(kv_len - (q_end - row) + 1, 0), kv_len) -> tl.maximum(kv_len - "
        "(q_end - row) + 1, 0)",
    ),
    "a tile without keys has none to look for": ("_tile: False -> True",),
    "another length of chunks; all launches go by it, and slots suffice": (
        "split_length: tl.where(kv_len <= 8 * CHUNK, CHUNK * q_len,  ... div(q_len, QUERIES)) -> CHUNK * q_len",
        "split_length: tl.where(kv_len <= 8 * CHUNK, CHUNK * q_len,  ... div(q_len, QUERIES)) -> 4 * CHUNK * "
        "tl.cdiv(q_len, QUERIES)",
        "split_length: kv_len <= 8 * CHUNK -> kv_len < 8 * CHUNK",
        "split_length: 8 * CHUNK -> 8 + CHUNK",
        "split_length: 4 * CHUNK -> 5 * CHUNK",
    ),
    "requests of one query are not split: speed": ("is_split: q_len > 0 -> q_len > 1",),
    "what has no queries has slots of its own, which nobody merges": ("is_split: q_len > 0 -> q_len >= 0",),
    "the padding has no keys": ("is_split: request < batch -> request <= batch",),
    "page ids come into the cache before they are loaded, which nothing is taken from: speed": (
        "short: num_kv_indices > 0 -> num_kv_indices >= 0",
        "short: num_kv_indices > 0 -> num_kv_indices > 1",
        "short: kv_indices + tl.minimum(tl.arange(0, SHORT),  ... es - 1) * index_step -> kv_indices - "
        "tl.minimum(tl.arange(0, SHORT),  ... es - 1) * index_step",
        "short: tl.minimum(tl.arange(0, SHORT), num_kv_indices - 1) * index_step -> tl.minimum(tl.arange(0, SHORT), "
        "num_kv_indices - 1) + index_step",
        "short: tl.minimum(tl.arange(0, SHORT), num_kv_indices - 1) -> tl.arange(0, SHORT)",
        "short: tl.minimum(tl.arange(0, SHORT), num_kv_indices - 1) -> num_kv_indices - 1",
        "short: num_kv_indices - 1 -> num_kv_indices + 1",
        "short: num_kv_indices - 1 -> num_kv_indices - 2",
    ),
    "nothing is split any more: speed": (
        "own_slots: 2 * kv_len -> 3 * kv_len",
        "own_slots: 2 * kv_len // CHUNK -> 2 * kv_len * CHUNK",
        "is_split: slot + own_slots(kv_len, CHUNK) - 1 -> slot + own_slots(kv_len, CHUNK) + 1",
    ),
    "programs of no tile and slots of no request: they have nothing to do": (
        "Plan.tiles: total_q // self.tile.queries + batch + 1 -> total_q // self.tile.queries + batch + 2",
        "Plan.tiles: total_q // self.tile.queries -> total_q * self.tile.queries",
        "Plan.slots: num_kv_indices > self.chunk -> num_kv_indices >= self.chunk",
        "Plan.slots: 2 * num_kv_indices -> 3 * num_kv_indices",
        "Plan.slots: 2 * num_kv_indices // self.chunk if num_kv_indices > self.chunk else 0 -> 2 * num_kv_indices // "
        "self.chunk if num_kv_indices > self.chunk else 1",
    ),
    "the last tile is the padding's, which `short` computes, and tile -1 no request's": (
        "prefill: tl.num_programs(0) - 1 -> tl.num_programs(0) - 2",
    ),
    "no row of such a tile is live: nothing is written": (
        "prefill: q_first >= q_end -> q_first > q_end",
        "prefill: q_first >= total_q -> q_first > total_q",
    ),
    "the padding has no keys, so that `short` computes it, by its own count": (
        "extent: tl.where(request < batch, q_end, total_q) -> q_end",
        "extent: request < batch -> request <= batch",
    ),
    "requests of so few keys are `short`'s, by its own count": (
        "extent: tl.maximum(kv_end - kv_start, 0) -> tl.maximum(kv_end - kv_start, 1)",
    ),
    "with VECTORS, columns are taken in one piece whatever the step": (
        "short: 1 -> 2 (2)",
        "short: 1 -> 2 (4)",
        "store_slot: elements(scratch + i * WIDTH, row * CKV, 1, WIDTH, True) -> elements(scratch + i * WIDTH, row * "
        "CKV, 2, WIDTH, True)",
        "_merge: elements(scratch + column, row * CKV, 1, WIDTH, True) -> elements(scratch + column, row * CKV, 2, "
        "WIDTH, True)",
    ),
    "the same addresses, without a hint to the compiler": (
        "store_slot: elements(scratch + i * WIDTH, row * CKV, 1, WIDTH, True) -> elements(scratch + i * WIDTH, row * "
        "CKV, 1, WIDTH, False)",
        "_merge: elements(scratch + column, row * CKV, 1, WIDTH, True) -> elements(scratch + column, row * CKV, 1, "
        "WIDTH, False)",
    ),
    "steps a little longer: the search still comes to every candidate": (
        "find_request: stop - low + WIDTH - 1 -> stop - low + WIDTH + 1",
        "find_row: count + 30 -> count + 31",
    ),
    "what is not inside does not count": (
        "find_request: 0 -> 1",
        "find_request: 0 -> 1 (2)",
    ),
    "only without requests nothing is looked up, and then every row is padding": ("find_row: step > 0 -> step > 1",),
    "one round as before: there are no more keys than it takes": (
        "_attend_once: tl.maximum(end, 1) -> 1",
        "_attend_once: tl.maximum(end, 1) -> tl.maximum(end, 2)",
    ),
    "without a round, sums are 0 and the maximum -inf, as a round without keys leaves them": (
        "_attend_once: tl.maximum(end, 1) -> end",
    ),
    "`first` is 0, as there is one round, and all heads are here": (
        "_attend_once: head + first < HEADS -> head + first <= HEADS",
        "_attend_once: head + first -> head - first",
        "_attend_once: tl.load(elements(q_pe[0] + row * q_pe[1], hea ... ask=here, other=0.0) -> "
        "tl.load(elements(q_pe[0] + row * q_pe[1], hea ... e[3], KPE, VECTORS))",
        "_attend_once: tl.load(places, mask=here, other=0.0) -> tl.load(places)",
        "_attend_once: 0.0 -> 1.0",
        "_attend_once: 0.0 -> 1.0 (2)",
    ),
    "a key past the last has no page that exists": (
        "_attend_once: first + nth < end -> first + nth <= end",
        "_attend_once: first + nth -> first - nth",
    ),
    "a key past the last has weight 0, and a row that sees a missing one is NaN": (
        "_attend_once: 0.0 -> 1.0 (3)",
        "_attend_once: 0.0 -> 1.0 (4)",
    ),
    "a row without keys: -inf less any number is -inf, of weight 0": (
        "_attend_once: tl.where(m == -float('inf'), 0.0, m) -> tl.where(m == -float('inf'), 1.0, m)",
    ),
    "the next larger tile takes them, too": (
        "attend_row: end <= FEW -> end < FEW",
        "attend_row: end <= ONCE -> end < ONCE",
    ),
    "a chunk past the last has weight 0": ("_merge: 0.0 -> 1.0 (2)",),
    "before the first round the maximum is -inf, so that this has weight 0": ("_merge: 0.0 -> 1.0",),
    "where all maxima are -inf, all scores were, and the denominators are NaN: so is the row, whatever this is": (
        "_merge: tl.where(m_new == -float('inf'), 0.0, m_new) -> m_new",
        "_merge: tl.where(m_new == -float('inf'), 0.0, m_new) -> tl.where(m_new == -float('inf'), 1.0, m_new)",
        "_merge: -float('inf') -> float('inf') (2)",
    ),
    "the key past the last counts as `end`, which is what there is without it": (
        "first_unsound_key: key < end -> key <= end",
    ),
    "rows that are off are not written": ("load_rows: 0.0 -> 1.0",),
    "never in vectors: slower, not wrong": (
        "_in_vectors: tensor.data_ptr() % 16 -> tensor.data_ptr() // 16",
        "_in_vectors: row % 8 -> row // 8",
        "_in_vectors: other % 8 -> other // 8",
        "_in_vectors: True -> False",
    ),
}

# A GPU alone can show these.
_GPU: dict[str, tuple[str, ...]] = {
    "when launches begin, and what they wait for": (
        "prefill_hopper: not BESIDE -> BESIDE",
        "_gather: not BESIDE -> BESIDE",
    ),
    "requests for `short` of more keys than the first class of items, as 16 in the interpreter are not": (
        "_longer: tl.maximum(tiles - 1, 0) -> tiles - 1",
        "_longer: tl.maximum(tiles - 1, 0) -> tl.maximum(tiles - 1, 1)",
        "_longer: tiles - 1 -> tiles + 1",
        "_longer: tl.minimum((limit - prefix) // QUERIES, tl.maximum(tiles - 1, 0)) -> (limit - prefix) // QUERIES",
    ),
    "decides between two kernels of a GPU": (
        "plan_of: inputs.kv_indices.stride(0) == 1 -> inputs.kv_indices.stride(0) != 1",
        "plan_of: vectors and fits -> vectors or fits",
        "plan_of: inputs.kv_indices.stride(0) == 1 -> inputs.kv_indices.stride(0) == 2",
        "plan_of: 0 < num_pages < 2 ** 31 and positions < 2 **  ... ices.stride(0) == 1) -> 0 < num_pages < 2 ** 31 or "
        "positions < 2 ** 3 ... dices.stride(0) == 1",
        "plan_of: 0 < num_pages < 2 ** 31 -> 1 < num_pages < 2 ** 31",
    ),
    "misses the last of 513 candidates, as there are with 65,536 requests; the last of 129 is the padding": (
        "find_request: stop - low + WIDTH - 1 -> stop - low + WIDTH - 2",
    ),
    "reads two rows past the cache and does not use them: for compute-sanitizer": (
        "first_unsound_key: pages[2] - 1 -> pages[2] + 1",
    ),
    "reads before qo_indptr where its first entry is above a row, of which no result is defined: for "
    "compute-sanitizer": ("find_row: tl.maximum(reached, 1) -> reached",),
    "262,144 slots, which take 67 million keys": ("lone: program.to(tl.int64) -> program",),
    "decides between two kernels of a GPU, for more pages, keys or rows than a case has": (
        "plan_of: 2 ** 31 -> 3 ** 31",
        "plan_of: 2 ** 31 -> 2 ** 32",
        "plan_of: positions < 2 ** 30 -> positions <= 2 ** 30",
        "plan_of: 2 ** 30 -> 3 ** 30",
        "plan_of: 2 ** 30 -> 2 ** 31",
    ),
    "programs that merge a request: one in the interpreter": (
        "_launch: batch * team -> batch + team",
        "merge: tl.program_id(0) // team -> tl.program_id(0) * team",
    ),
    "addresses or strides that are not divisible by 16 bytes: a GPU faults": (
        "_in_vectors: tensor.data_ptr() % 16 -> tensor.data_ptr() % 17",
        "_in_vectors: row % 8 -> row % 9",
        "_in_vectors: other % 8 -> other % 9",
    ),
    "strides that only the kernel for Hopper takes in 32 bits": (
        "_in_vectors: row >= 2 ** 31 -> row > 2 ** 31",
        "_in_vectors: 2 ** 31 -> 3 ** 31",
        "_in_vectors: 2 ** 31 -> 2 ** 32",
        "_in_vectors: other >= 2 ** 31 -> other > 2 ** 31",
        "_in_vectors: 2 ** 31 -> 3 ** 31 (2)",
        "_in_vectors: 2 ** 31 -> 2 ** 32 (2)",
    ),
    "reads past an operand and does not use it: for compute-sanitizer": (
        "_first_unsound: gl.minimum(key, end - 1) -> key",
        "row_pointers: tl.minimum(lane, batch) -> lane",
        "_copy_queries: gl.where(nth_row < count * HEADS, nth_row // HEADS, 0) -> gl.where(nth_row < count * HEADS, "
        "nth_row // HEADS, 1)",
        "load_rows: tl.load(elements(base, offset, step, WIDTH, V ... :, None], other=0.0) -> tl.load(elements(base, "
        "offset, step, WIDTH, VECTORS))",
        "attend: pages[2] - 1 -> pages[2] + 1",
        "find_request: probe < stop -> probe <= stop",
        "find_request: tl.load(qo[0] + probe * qo[1], mask=inside, other=0) -> tl.load(qo[0] + probe * qo[1])",
        "find_request: tl.load(kv[0] + probe * kv[1], mask=inside, other=0) -> tl.load(kv[0] + probe * kv[1])",
        "first_unsound_key: tl.minimum(key, end - 1) -> key",
        "first_unsound_key: end - 1 -> end + 1",
    ),
}

EQUIVALENT = {name: reason for reason, names in _SAME.items() for name in names}
ON_A_GPU = {name: reason for reason, names in _GPU.items() for name in names}
