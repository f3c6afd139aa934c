"""Named faults in our own kernel: the mistakes that kernels of this family have had, planted one at a time.

`bug` is a public report that shows the mistake, in the words of docs/strata.md where it has none of its own.
"""

from __future__ import annotations

from fuzz.mutants.edit import Edit
from fuzz.mutants.mutant import ANYWHERE, GPU, Mutant


def _one(
    name: str, fault: str, bug: str, function: str, before: str, after: str, *, count: int = 1, where: str = ANYWHERE,
    equivalent: str = "",
) -> Mutant:  # fmt: skip
    return Mutant(name, (Edit(function, before, after, count),), fault, bug, where, equivalent)


_MASK = "tl.where((first + nth)[None, :] < tl.minimum(sees, end)[:, None], x, -float('inf'))"
_SEES = "tl.minimum(tl.maximum(prefix + (query - q_start) + 1, 0), kv_len)"
_SCALE = "check_scale(inputs.sm_scale) * _LOG2_E"
_NOPE, _ROTARY = "tl.dot(qn[i], tl.trans(k[i])) * scale", "tl.dot(qp, tl.trans(kp)) * scale"
_WEIGHTED = "tl.dot(p, k[i], acc[i] * alpha[:, None])"
_LSE = "tl.where(total == 0, -float('inf'), m + tl.log2(total))"
_OUTPUT = "tl.store(row, (acc[i] * share[:, None]).to(output[0].dtype.element_ty), mask=live[:, None])"
_TRUNCATED = "({}.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)"
_ROWS = "tl.minimum(tl.minimum(q_first + QUERIES, q_end), total_q)"
_NO_KEYS = "store_rows(results[0], results[1], nothing, nothing, weighted, query, live, HEADS, CKV, VECTORS)"
_NO_KEYS_LONE = """
store_rows(
    (output, output_row, output_head, output_dim), (lse, lse_row, lse_head),
    nothing, nothing, (no_keys(HEADS, CKV),), query, head >= 0, HEADS, CKV, VECTORS,
)
"""
_MISALIGNED = "tensor.data_ptr() % 16 or any((stride % 8 or stride >= 2**31 for stride in rows))"
_HERE = "_launch_here(kernel, programs, (id(kernel), device.index, *variant), arguments, constants, options)"
_LAUNCH = "if inputs.total_q:\n    _launch(inputs, output, lse)"

_OFFSETS = (
    _one("page offset in 32 bits", "F01", "FlashInfer #3130, vLLM PR #47671",
         "key_rows", "page.to(tl.int32).to(tl.int64) * cache[1].to(tl.int32).to(tl.int64)",
         "page.to(tl.int32) * cache[1].to(tl.int32)"),
    _one("page offset in 32 bits at any stride", "F01", "SageAttention #386",
         "key_rows", "page.to(tl.int64) * cache[1]", "page.to(tl.int32) * cache[1].to(tl.int32)"),
    _one("page id through float32", "F01", "ids of more than 24 bits",
         "load_page", "page.to(tl.uint32)", "page.to(tl.float32).to(tl.uint32)"),
    _one("query offset in 32 bits", "F02", "SGLang #20389, FLA #1080",
         "attend", "query * q_nope[1]", "query.to(tl.int32) * q_nope[1].to(tl.int32)", where=GPU),
    _one("output offset in 32 bits", "F02", "FLA #1080",
         "store_rows", "query * output[1]", "query.to(tl.int32) * output[1].to(tl.int32)", where=GPU),
)  # fmt: skip

_KEYS = (
    _one("kv_indices read past the slice", "F04", "vLLM PR #56862, #48043",
         "attend", "tl.minimum(first + BLOCK_N + nth, end - 1)", "first + BLOCK_N + nth"),
    _one("kv_indices read past the slice at once", "F04", "vLLM PR #56862, #48043",
         "attend", "tl.minimum(start + nth, end - 1)", "start + nth"),
    _one("page 0 in place of no page", "F03", "aiter PR #4245, SGLang PR #39288",
         "attend", "page = ahead", "page = tl.where(first + nth < end, ahead, 0).to(tl.uint32)"),
    _one("page ids a round late", "F13", "a prefetch that is not shifted",
         "attend", "tl.minimum(first + BLOCK_N + nth, end - 1)", "tl.minimum(first + nth, end - 1)"),
    _one("causal edge one late", "F05", "FlashInfer PR #348",
         "prefill", _SEES, _SEES.replace("+ 1", "+ 2")),
    _one("causal edge one early", "F05", "FlashInfer PR #348",
         "prefill", _SEES, _SEES.replace(" + 1", "")),
    _one("causal edge one late for lone queries", "F05", "another path, another edge",
         "lone", "kv_len - q_len + i + 1", "kv_len - q_len + i + 2"),
    _one("diagonal counted twice", "F05", "`<=` in place of `<`",
         "attend", _MASK, _MASK.replace("<", "<=")),
    _one("mask from the top left", "F06", "sparkinfer #3",
         "prefill", "prefix = kv_len - (q_end - q_start)", "prefix = kv_len * 0"),
    _one("mask from the top left for lone queries", "F06", "another path, another edge",
         "lone", "kv_len - q_len + i + 1", "i + 1"),
    _one("last rows' keys left out", "F07", "flash-attention PR #436, #1778",
         "prefill", "tl.minimum(tl.maximum(prefix + (q_stop - q_start), 0), kv_len)",
         "tl.minimum(tl.maximum(prefix + (q_first - q_start) + 1, 0), kv_len)"),
    _one("partial tile left out", "F07", "FlashInfer #3716",
         "attend", "tl.maximum(end, start + 1)", "tl.maximum(end - BLOCK_N + 1, start + 1)"),
    _one("one tile and no more", "F07", "a loop of one round",
         "attend", "tl.maximum(end, start + 1)", "start + 1"),
    _one("mask left to the last tile", "F08", "vLLM PRs #44840, #44850",
         "attend", "first + BLOCK_N > whole", "first + BLOCK_N > end"),
    _one("mask left out", "F08", "FlashInfer #3716",
         "attend", f"x = {_MASK}", "x = x"),
    _one("end of the chunk not masked", "F08, F23", "padding lanes of a split's last tile",
         "attend", "tl.minimum(sees, end)", "sees",
         equivalent="both callers pass rows that see no more than `end` keys"),
    _one("keys from the query offsets", "F12", "FlashInfer PR #4018",
         "extent", "kv_start = tl.load(kv[0] + request * kv[1]).to(tl.int64)",
         "kv_start = tl.load(qo[0] + request * qo[1]).to(tl.int64)"),
    _one("keys of the neighbour", "F12", "FlashInfer PR #4018",
         "extent", "kv_start = tl.load(kv[0] + request * kv[1]).to(tl.int64)",
         "kv_start = tl.load(kv[0] + tl.maximum(request - 1, 0) * kv[1]).to(tl.int64)"),
    _one("page table ignored", "F13", "FlashInfer #3219, ssd #23",
         "attend", "page = ahead", "page = tl.minimum(first + nth, end - 1).to(tl.uint32)"),
    _one("page table ignored for kpe", "F13, F20", "vLLM PR #7018",
         "attend", "key_rows(kpe, page, 0, KPE, VECTORS)",
         "key_rows(kpe, tl.minimum(first + nth, pages[2] - 1).to(tl.uint32), 0, KPE, VECTORS)"),
    _one("rotary key of the next position", "F20", "a misplaced row of kpe",
         "attend", "key_rows(kpe, page, 0, KPE, VECTORS)",
         "key_rows(kpe, tl.minimum(load_page(pages, tl.minimum(first + nth + 1, end - 1)),"
         " (pages[2] - 1).to(tl.uint32)), 0, KPE, VECTORS)"),
    _one("half of the columns twice", "F18", "a piece's offset left out",
         "attend", "key_rows(ckv, page, i * WIDTH, WIDTH, VECTORS)", "key_rows(ckv, page, 0, WIDTH, VECTORS)"),
)  # fmt: skip

_SCORES = (
    _one("rotary part left out", "F20", "Triton #10821",
         "attend", _ROTARY, f"{_ROTARY} * 0"),
    _one("second product overwrites the first", "F20", "Triton #10821, Liger-Kernel PR #1435",
         "attend", f"x += {_NOPE}", f"x = {_NOPE}"),
    _one("rotary query of head 0", "F20, F26", "a head stride left out",
         "attend", "query * q_pe[1] + head * q_pe[2]", "query * q_pe[1]"),
    _one("scale of 192 dimensions hard-coded", "F19", "TensorRT-LLM PR #19112",
         "_launch", _SCALE, "0.07216878364870322 * _LOG2_E"),
    _one("scale of 576 dimensions", "F19", "the width of a stored key",
         "_launch", _SCALE, "1 / 24 * _LOG2_E"),
    _one("scale 1 % off", "F19", "a rounded constant",
         "_launch", _SCALE, f"{_SCALE} * 1.01"),
    _one("scale in base e", "F17, F19", "log2(e) forgotten",
         "_launch", _SCALE, "check_scale(inputs.sm_scale)"),
    _one("query scaled in 16 bits", "F19", "aotriton PR #43",
         "attend", _NOPE, "tl.dot((qn[i].to(tl.float32) * scale).to(kp.dtype), tl.trans(k[i]))"),
    _one("mask before the scale", "F19", "aotriton #47, flash-attention #1461",
         "attend", _MASK, _MASK.replace("-float('inf')", "-float('inf') * scale")),
    _one("scores in 16 bits", "F22", "PyTorch PR #188998",
         "attend", f"x += {_NOPE}", f"x = (x + {_NOPE}).to(kp.dtype).to(tl.float32)"),
    _one("mask value -1e4", "F14", "FlashInfer #4452",
         "attend", _MASK, _MASK.replace("-float('inf')", "-1e4")),
    _one("mask value -1e30", "F14", "lattice #361",
         "attend", _MASK, _MASK.replace("-float('inf')", "-1e30")),
    _one("maximum starts at -5e4", "F14", "FlashInfer #4267, #4450, #4451",
         "attend", "m = tl.full([ROWS], -float('inf'), tl.float32)", "m = tl.full([ROWS], -5e4, tl.float32)"),
)  # fmt: skip

_SOFTMAX = (
    _one("maximum not subtracted", "F15", "vLLM #56578",
         "attend", "tl.maximum(m, tl.max(x, 1))", "tl.maximum(m, 0.0)"),
    _one("maximum of the tile alone", "F15, F16", "a maximum that may fall",
         "attend", "tl.maximum(m, tl.max(x, 1))", "tl.max(x, 1)"),
    _one("-inf minus -inf", "F10", "FlashInfer PR #4401",
         "attend", "tl.where(m_new == -float('inf'), 0.0, m_new)", "m_new"),
    _one("output not rescaled", "F16", "the standard mutant",
         "attend", "acc[i] * alpha[:, None]", "acc[i]"),
    _one("denominator not rescaled", "F16", "the standard mutant",
         "attend", "total * alpha + tl.sum(p, 1)", "total + tl.sum(p, 1)"),
    _one("rescaled the wrong way", "F16", "a swapped difference",
         "attend", "tl.exp2(m - shift)", "tl.exp2(shift - m)"),
    _one("maximum not kept", "F16", "a lost assignment",
         "attend", "m = m_new", "m = tl.maximum(m_new, 0.0)"),
    _one("exp in place of exp2", "F17", "sglang #40903",
         "attend", "p = tl.exp2(x - shift[:, None])", "p = tl.exp(x - shift[:, None])"),
    _one("accumulator in 16 bits", "F22", "PyTorch PR #188998",
         "attend", _WEIGHTED, f"{_WEIGHTED}.to(kp.dtype).to(tl.float32)"),
    _one("denominator in 16 bits", "F22", "aiter PR #705",
         "attend", "total * alpha + tl.sum(p, 1)", "(total * alpha + tl.sum(p, 1)).to(kp.dtype).to(tl.float32)"),
    _one("denominator from rounded P", "F22", "another numerics profile",
         "attend", "tl.sum(p, 1)", "tl.sum(p.to(kp.dtype).to(tl.float32), 1)"),
    _one("P in 5 bits", "F22", "P as float8 keeps it",
         "attend", "p.to(kp.dtype)", "((p * 32 + 0.5).to(tl.int32).to(tl.float32) / 32).to(kp.dtype)"),
    _one("P truncated", "F22", "a cast without rounding",
         "attend", "p.to(kp.dtype)", f"{_TRUNCATED.format('p')}.to(kp.dtype)"),
    _one("values through float16", "F22", "a dtype taken for granted",
         "attend", _WEIGHTED,
         "tl.dot(p.to(tl.float32).to(tl.float16), k[i].to(tl.float32).to(tl.float16), acc[i] * alpha[:, None])"),
)  # fmt: skip

_RESULTS = (
    _one("0/0 where nothing is seen", "F09, F10", "vLLM PR #38359",
         "store_rows", "tl.where(total == 0, 0.0, 1 / total)", "1 / total"),
    _one("lse 0 where nothing is seen", "F10", "PyTorch PR #134650",
         "store_rows", _LSE, "tl.where(total == 0, 0.0, m + tl.log2(total))"),
    _one("lse -5e4 where nothing is seen", "F10, F14", "FlashInfer #4452",
         "store_rows", _LSE, "tl.where(total == 0, -5e4, m + tl.log2(total))"),
    _one("lse +inf where nothing is seen", "F09", "vLLM PR #15492, flash-attention PR #978",
         "store_rows", _LSE, "tl.where(total == 0, float('inf'), m + tl.log2(total))"),
    _one("rows without keys not written", "F09, F10", "FlashInfer #1395, PR #1533",
         "_tile", _NO_KEYS, "pass"),
    _one("lone rows without keys not written", "F09, F30", "padding rows, on another path",
         "lone", _NO_KEYS_LONE, "pass"),
    _one("padded rows not written", "F30", "vLLM PR #38359, FlashInfer #2883",
         "extent", "tl.where(request < batch, q_end, total_q)", "q_end"),
    _one("natural lse", "F17", "sglang #40903, PR #35045",
         "store_rows", "m + tl.log2(total)", "(m + tl.log2(total)) * 0.6931471805599453"),
    _one("log in place of log2", "F17", "PyTorch #181645",
         "store_rows", "m + tl.log2(total)", "m + tl.log(total)"),
    _one("lse without the maximum", "F17", "TensorRT-LLM PR #19112",
         "store_rows", "m + tl.log2(total)", "tl.log2(total)"),
    _one("lse transposed", "F18", "vllm-xpu-kernels PR #479, attention-gym PR #433",
         "run", _LAUNCH, f"{_LAUNCH}\nlse.copy_(lse.T.reshape(lse.shape).clone())"),
    _one("heads in reverse", "F18", "a wrong order of heads",
         "store_rows", "head * output[2]", "(HEADS - 1 - head) * output[2]"),
    _one("output truncated", "F22", "a store without rounding",
         "store_rows", "(acc[i] * share[:, None]).to(output[0].dtype.element_ty)",
         f"{_TRUNCATED.format('(acc[i] * share[:, None])')}.to(output[0].dtype.element_ty)"),
    _one("output not divided", "F16", "a lost division",
         "store_rows", "acc[i] * share[:, None]", "acc[i]"),
    _one("output added to what was there", "F27", "Triton #6547",
         "store_rows", _OUTPUT, _OUTPUT.replace(
             "(acc[i] * share[:, None])",
             "(acc[i] * share[:, None] + tl.load(row, mask=live[:, None]).to(tl.float32))")),
    _one("output stored without a mask", "F30", "FlashInfer #2236, SGLang PR #15601",
         "store_rows", _OUTPUT, _OUTPUT.replace(", mask=live[:, None]", "")),
    _one("lse stored without a mask", "F30", "FlashInfer #2236",
         "store_rows", "tl.store(lse[0] + query * lse[1] + head * lse[2], value_lse, mask=live)",
         "tl.store(lse[0] + query * lse[1] + head * lse[2], value_lse)"),
    _one("rows of the next request written", "F30", "a tile that runs on",
         "prefill", _ROWS, "tl.minimum(q_first + QUERIES, total_q)"),
)  # fmt: skip

_REQUESTS = (
    _one("the first of equal offsets", "F11", "onnxruntime PR #28200, vLLM #51486",
         "find_request", "inside & (first <= position)", "inside & (first < position)"),
    _one("grid without requests", "F11", "onnxruntime PR #28200",
         "Plan.tiles", "total_q // self.tile.queries + batch + 1", "total_q // self.tile.queries + 1"),
    _one("grid without the padding", "F11, F30", "vLLM PR #38359",
         "Plan.tiles", "total_q // self.tile.queries + batch + 1", "(total_q - 1) // self.tile.queries + batch",
         equivalent="the padding has no keys, so `lone` computes it; the tiles of requests are no more than that"),
    _one("requests of equal length assumed", "F12", "a batch stride",
         "extent", "q_end = tl.load(qo[0] + after * qo[1]).to(tl.int64)",
         "q_end = q_start + tl.load(qo[0] + tl.minimum(1, batch) * qo[1]).to(tl.int64)"),
    _one("128 requests at most", "F28", "FlashInfer #3125",
         "find_request", "step * (tl.maximum(reached, 1) - 1)", "tl.minimum(step, 1) * (tl.maximum(reached, 1) - 1)"),
)  # fmt: skip

_LONE = (
    _one("every other query of a team left out", "F11, F28", "a stride of programs",
         "lone", "step = team.to(tl.int64)", "step = 2 * team.to(tl.int64)"),
    _one("padding without a team", "F11, F30", "vLLM PR #38359",
         "_launch", "slots + (batch + 1) * team", "slots + batch * team"),
    _one("short requests left to nobody", "F11", "two launches that disagree on who computes a row",
         "_launch", "num_kv_indices > plan.short", "num_kv_indices > plan.short + 64"),
)  # fmt: skip

_SPLIT = (
    _one("chunk's denominator not weighted", "F23", "a merge that forgets a weight",
         "merge", "chunk_l * weight", "chunk_l"),
    _one("chunk's output not weighted", "F23", "a merge that forgets a weight",
         "merge", "part * weight[:, None]", "part"),
    _one("merged denominator not rescaled", "F16, F23", "the standard mutant, once more: beyond 16 chunks",
         "merge", "total * alpha + tl.sum(chunk_l * weight, 0)", "total + tl.sum(chunk_l * weight, 0)",
         where=GPU),
    _one("last chunk left out", "F07, F23", "a rounded-down count",
         "merge", "tl.cdiv(kv_len - q_len + query + 1, length).to(tl.int32)",
         "tl.maximum((kv_len - q_len + query + 1) // length, 1).to(tl.int32)"),
    _one("chunks that a row does not see merged", "F23, F26", "aiter PR #3641, vLLM PR #47188",
         "merge", "tl.cdiv(kv_len - q_len + query + 1, length).to(tl.int32)",
         "tl.cdiv(kv_len, length).to(tl.int32)"),
    _one("unwritten chunks merged", "F23", "aiter PR #3641",
         "merge", "tl.load(scratch_lse + 2 * row, mask=chunk < seen, other=float('-inf'))",
         "tl.load(scratch_lse + 2 * row, mask=chunk <= seen, other=float('-inf'))"),
    _one("merge in base e", "F17, F23", "sglang #40903",
         "merge", "tl.exp2(chunk_m - shift)", "tl.exp(chunk_m - shift)"),
    _one("merged lse in base e", "F17, F18", "FlashInfer #4485: another path, another unit",
         "merge", "m + tl.log2(total)", "(m + tl.log2(total)) * 0.6931471805599453"),
    _one("merged lse without the maximum", "F17, F23", "FlashInfer #4485",
         "merge", "m + tl.log2(total)", "tl.log2(total)"),
    _one("chunks overlap by a key", "F07, F23", "an inclusive end",
         "lone", "tl.minimum(start + CHUNK * q_len, kv_len)", "tl.minimum(start + CHUNK * q_len + 1, kv_len)"),
    _one("chunks leave a key out", "F07, F23", "an exclusive end",
         "lone", "tl.minimum(start + CHUNK * q_len, kv_len)", "tl.minimum(start + CHUNK * q_len - 1, kv_len)"),
    _one("chunk longer than its keys", "F08, F23", "the end of a row's keys",
         "lone", "end = tl.minimum(sees, stop)", "end = stop"),
    _one("another chunk length in the merge", "F23", "two launches that disagree",
         "merge", "length = CHUNK * q_len", "length = CHUNK * q_len + q_len"),
    _one("empty chunks not written", "F09, F23", "a split that a row does not see",
         "lone", "store_slot(scratch, scratch_lse, program.to(tl.int64), nothing, nothing, weighted, HEADS, CKV)",
         "pass"),
    _one("split requests computed twice", "F23, F27", "a missing return: both write",
         "prefill", "slots > 0", "slots < 0",
         equivalent="`merge` comes later on the same stream and writes the same rows"),
    _one("split decided by the total of keys", "F23", "a launch left out",
         "Plan.slots", "2 * num_kv_indices // self.chunk if num_kv_indices > self.chunk else 0",
         "2 * num_kv_indices // self.chunk if num_kv_indices > 2 * self.chunk else 0"),
    _one("scratch half as large", "F23, F30", "a workspace too small",
         "Plan.slots", "2 * num_kv_indices // self.chunk", "num_kv_indices // self.chunk"),
    _one("split decided by the batch", "F23", "flash-attention #1897, vLLM #27433",
         "is_split", "kv_len > CHUNK * q_len", "num_kv_indices > CHUNK * q_len"),
    _one("partial rows of another query", "F18, F23", "a swapped stride of scratch",
         "merge", "(slot + chunk * q_len + query) * HEADS + head", "(slot + query * q_len + chunk) * HEADS + head"),
)  # fmt: skip

_STRIDES = (
    _one("queries taken for contiguous", "F26", "FlashInfer #1341, FlagGems #5896",
         "attend", "query * q_nope[1] + head * q_nope[2]", "(query * HEADS + head) * CKV"),
    _one("cache taken for contiguous", "F26", "FlashInfer #1341",
         "_launch", "ckv.stride(0)", "512"),
    _one("rotary cache taken for contiguous", "F26", "FlashInfer #1341",
         "_launch", "kpe.stride(0)", "64"),
    _one("columns taken for contiguous", "F26", "FlashInfer PR #1865",
         "_in_vectors", f"unit != 1 or {_MISALIGNED}", _MISALIGNED),
    _one("16-byte alignment taken for granted", "F26", "Triton #1330, #2229",
         "_in_vectors", f"unit != 1 or {_MISALIGNED}", "unit != 1 or any((stride >= 2**31 for stride in rows))",
         where=GPU),
    _one("steps of kv_indices ignored", "F26", "strided index tensors",
         "load_page", "key * pages[1]", "key"),
    _one("steps of qo_indptr ignored", "F26", "strided index tensors",
         "_launch", "qo_indptr.stride(0)", "1", count=2),
    _one("steps of kv_indptr ignored", "F26", "strided index tensors",
         "_launch", "kv_indptr.stride(0)", "1", count=2),
    _one("kv_indices from the first request on", "F12", "a base left out",
         "prefill", "kv_indices + kv_start * index_step", "kv_indices"),
)  # fmt: skip

_HARDENED = (
    _one("pages not compared with the cache", "F30", "FlashInfer: block ids of 2147480000",
         "attend", "tl.minimum(page, (pages[2] - 1).to(tl.uint32))", "page"),
    _one("missing pages answered by the last one", "F30", "a clamp in place of an answer",
         "_tile", "exist & (sees <= sound)", "sees <= sound"),
    _one("missing pages answered for lone queries", "F30", "a clamp in place of an answer",
         "lone", "exist & (split | (sees <= stop))", "split | (sees <= stop)"),
    _one("keys that lone queries cannot see forgiven", "F04, F30", "vLLM #48043",
         "lone", "exist & (split | (sees <= stop))", "exist"),
    _one("no page at all answered by nothing", "F30", "an empty cache that is not empty of keys",
         "lone", "tl.where(sees > stop, float('nan'), tl.zeros([HEADS], tl.float32))", "tl.zeros([HEADS], tl.float32)"),
    _one("missing pages spoil the tile", "F30", "rows that do not name them",
         "first_unsound_key", "((content + rotary) > 0) | outside", "(content + rotary) > 0"),
    _one("page ids cut to 32 bits", "F01, F30", "int64 tables",
         "load_page", "page = tl.where((page >= 0) & (page < 2**31), page, -1)", "page = page"),
    _one("negative page ids wrap", "F30", "-2^63 is page 0 in 32 bits",
         "load_page", "(page >= 0) & (page < 2**31)", "page < 2**31"),
    _one("negative kv_start taken at its word", "F04, F30", "reads before kv_indices",
         "lone", "tl.where(kv_start < 0, 0, tl.minimum(tl.maximum(num_kv_indices - kv_start, 0), kv_len))",
         "tl.minimum(tl.maximum(num_kv_indices - kv_start, 0), kv_len)"),
    _one("kv_indptr taken at its word", "F04, F30", "vLLM #48043",
         "lone", "tl.minimum(tl.maximum(num_kv_indices - kv_start, 0), kv_len)", "kv_len"),
    _one("kv_indptr taken at its word by tiles", "F04, F30", "vLLM #48043",
         "prefill", "tl.minimum(tl.maximum(num_kv_indices - kv_start, 0), kv_len)", "kv_len",
         equivalent="a request that reaches outside kv_indices goes to `lone`: see is_lone"),
    _one("requests outside kv_indices left to tiles", "F04, F30", "two launches that disagree",
         "is_lone", "kv_start + kv_len > num_kv_indices", "kv_len < 0"),
    _one("falling kv_indptr gives negative lengths", "F09, F30", "SGLang #5678",
         "extent", "tl.maximum(kv_end - kv_start, 0)", "kv_end - kv_start",
         equivalent="no row sees a key then either: sees, stop and end are negative alike"),
    _one("qo_indptr taken at its word", "F30", "FlashInfer #2236",
         "prefill", _ROWS, "tl.minimum(q_first + QUERIES, q_end)"),
    _one("tiles past the last row", "F30", "FlashInfer #2236, SGLang PR #15601",
         "prefill", "q_first >= total_q", "False",
         equivalent="no row of such a tile is live: nothing is read for it but keys, and nothing is written"),
    _one("tiles before the first row", "F30", "FlashInfer #2236",
         "prefill", "q_first < 0", "False"),
    _one("pages of an empty cache", "F30", "Triton PR #10427",
         "prefill", "tl.where(num_pages > 0, sound, 0)", "sound"),
    _one("0 * NaN behind the causal edge", "F03", "flash-attention #2374",
         "prefill", "spoilt & (least < end)", "spoilt & (end < 0)"),
    _one("-Inf behind the causal edge hidden", "F03", "0 * Inf",
         "attend", "x = tl.where(tl.abs(x) < float('inf'), x, float('nan'))", "x = x"),
    _one("NaN looked for in ckv alone", "F03, F20", "half of a key",
         "first_unsound_key", "content + rotary", "content",
         equivalent="a key that is not finite in its rotary part alone has finite values, and 0 times those is 0"),
    _one("NaN told from Inf", "F03", "half of what is not finite",
         "count_unsound", "tl.abs(values.to(tl.float32)) < float('inf')",
         "values.to(tl.float32) == values.to(tl.float32)"),
    _one("a spoilt key hidden from those who see it", "F03", "flash-attention #1745",
         "_tile", "exist & (sees <= sound)", "exist"),
    _one("a spoilt first key hidden", "F03", "nothing left to attend to",
         "_tile", "tl.where(sees <= sound, 0.0, float('nan'))", "tl.where(sees <= sound, 0.0, 0.0)"),
    _one("nobody looks for what spoilt a tile", "F03", "a flag that is always down",
         "_tile", "(not exist) | (tl.max((total != total).to(tl.int32), 0) == 1)", "not exist"),
    _one("spoilt keys looked for in one lane less", "F03, F07", "an exclusive end",
         "first_unsound_key", "key < end", "key < end - 1"),
)  # fmt: skip

_HOST = (
    _one("result cached by pointer", "F30", "flashinfer-bench-starter-kit #21",
         "run", _LAUNCH,
         """
known = run.__dict__.setdefault("known", {})
key = (q_nope.data_ptr(), ckv_cache.data_ptr(), kv_indices.data_ptr(), inputs.total_q)
if key not in known:
    if inputs.total_q:
        _launch(inputs, output, lse)
    known[key] = (output.clone(), lse.clone())
output.copy_(known[key][0])
lse.copy_(known[key][1])
"""),
    _one("page table cleaned in place", "F30", "a clamp with an underscore",
         "run", _LAUNCH, f"kv_indices.clamp_(0, max(inputs.num_pages - 1, 0))\n{_LAUNCH}"),
    _one("queries scaled in place", "F30, F19", "a product with an underscore",
         "run", _LAUNCH, f"q_pe.mul_(-1)\n{_LAUNCH}\nq_pe.mul_(-2)"),
    _one("nothing launched", "F27", "torch.empty returned: stale memory looks right",
         "run", _LAUNCH, "pass"),
    _one("scratch cleared first", "F27", "a workspace that is not trusted",
         "_launch", "torch.empty((slots, NUM_HEADS, CKV_DIM), dtype=torch.float32, device=device)",
         "torch.zeros((slots, NUM_HEADS, CKV_DIM), dtype=torch.float32, device=device)",
         equivalent="zeros in place of uninitialised memory: nothing unwritten is read"),
    _one("default stream", "F29", "SageAttention PR #371, tilelang #89",
         "_launch_here", "compiled[(programs, 1, 1)](*arguments, *constants.values())",
         "with torch.cuda.stream(torch.cuda.default_stream()):\n"
         "    compiled[(programs, 1, 1)](*arguments, *constants.values())", where=GPU),
    _one("no device guard", "F29", "Liger-Kernel #1303, Triton #2441",
         "launch", f"with torch.cuda.device(device):\n    {_HERE}", _HERE, where=GPU),
    _one("variants not told apart by dtype", "F27", "Triton #1242, vLLM #41871",
         "_launch", "(q_nope.dtype, qo_indptr.dtype, kv_indptr.dtype, kv_indices.dtype, vectors)",
         "(qo_indptr.dtype, kv_indptr.dtype, kv_indices.dtype, vectors)", where=GPU),
    _one("variants not told apart by index dtype", "F27", "Triton #1242",
         "_launch", "(q_nope.dtype, qo_indptr.dtype, kv_indptr.dtype, kv_indices.dtype, vectors)",
         "(q_nope.dtype, qo_indptr.dtype, kv_indptr.dtype, vectors)", where=GPU),
)  # fmt: skip

CATALOGUE = (
    *_OFFSETS, *_KEYS, *_SCORES, *_SOFTMAX, *_RESULTS, *_REQUESTS, *_LONE, *_SPLIT, *_STRIDES, *_HARDENED, *_HOST,
)  # fmt: skip
