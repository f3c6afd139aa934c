"""The mistakes that kernels of this family make: the classes that strata name as their source.

Collected from public reports about FlashInfer, FlashAttention, FlashMLA, vLLM, SGLang, aiter, Triton and others; each
stratum cites those that show its mistake. Numbers that are missing concern other operators.
"""

FAULTS = {
    "F01": "page id times stride in 32 bits",
    "F02": "query or output row times stride in 32 bits",
    "F03": "dead slots leak: 0 * NaN from a masked score whose value was loaded",
    "F04": "kv_indices read past the live slice",
    "F05": "causal mask off by one",
    "F06": "causal mask aligned to the top left, without the prefix",
    "F07": "loop over key tiles ends one early or late",
    "F08": "padded lanes of the last tile count in the denominator",
    "F09": "no keys: 0/0, or rows not written",
    "F10": "rows that see no key: exp2(-inf - -inf), or rows not written",
    "F11": "requests without queries confuse the search for a row's request, or the grid",
    "F12": "KV offset taken from the query offsets, or from a neighbour",
    "F13": "logical position used for the page, for one cache or both",
    "F14": "finite mask value, or finite initial maximum",
    "F15": "no maximum subtracted before exp",
    "F16": "accumulator or sum not rescaled when the maximum rises",
    "F17": "LSE in base e, without the scale, or with another maximum",
    "F18": "LSE or output stored transposed, or with a wrong stride",
    "F19": "scale hard-coded, applied after the mask, or folded into 16-bit queries",
    "F20": "rotary part dropped, of another row, or mixed into the output",
    "F22": "accumulator, sum or weights in too few bits",
    "F23": "splits of the keys merged wrongly when one holds nothing",
    "F25": "race between writing and reading scratch or shared memory",
    "F26": "strides ignored, or alignment assumed",
    "F27": "autotuning or caching: results depend on earlier calls",
    "F28": "grid beyond its limits, or empty",
    "F29": "wrong device or stream",
    "F30": "stray writes, scribbled operands, cached results",
}
# What no operands can reveal: several calls on the same ones must agree, on other streams and devices too.
FOUND_BY_REPETITION = ("F25", "F29")
