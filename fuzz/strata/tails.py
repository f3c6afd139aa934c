"""What operands hold beyond what any request owns."""

from fuzz.strata.stratum import Stratum

# each named as the field of Case that counts it
TAILS = {
    "padded_rows": Stratum(
        doc="poisoned query rows at or past qo_indptr[-1], as in padded CUDA graphs: they come out +0 and -inf",
        source="F30; vLLM PR #57094, FlashInfer #2883, #2236",
    ),
    "spare_indices": Stratum(
        doc="-1, INT_MIN, num_pages, INT_MAX in kv_indices at or past kv_indptr[-1]: loaded unmasked, they fault",
        source="F04; vLLM PR #56862, #48043",
    ),
    "spare_pages": Stratum(
        doc="poisoned pages besides page 0, between live ones where the table is permuted",
        source="F03; FlashInfer #941",
    ),
}
