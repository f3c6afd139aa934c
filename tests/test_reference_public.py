"""The golden reference against the semantics of the two public references of this operator, where they agree with the
contract: every request has keys, no row is masked, no future key holds NaN. Written anew from their definitions.

    FlashInfer-Bench   definitions/mla_paged/mla_paged_prefill_causal_h16_ckv512_kpe64_ps1.json (commit 869b6d95):
                       scores of all keys, future ones -inf, softmax, product with all keys
    FlashInfer         flashinfer/trace/templates/attention.py (commit 009a0e3f): keys cut to the visible ones first
"""

import math

import pytest
import torch

from reference import float64
from tests.reference_inputs import make_inputs


def all_keys_masked(query, key, value, visible):
    """Softmax over all keys of a request, the future ones at -inf; one query [16, 576]."""
    logits = (query @ key.T).masked_fill(torch.arange(len(key)) >= visible, -math.inf)
    return torch.softmax(logits, -1) @ value, torch.logsumexp(logits, -1) / math.log(2)


def visible_keys_only(query, key, value, visible):
    logits = query @ key[:visible].T
    return torch.softmax(logits, -1) @ value[:visible], torch.logsumexp(logits, -1) / math.log(2)


@pytest.mark.parametrize("attend", [all_keys_masked, visible_keys_only])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_agrees_with_public_references_within_the_contract(attend, dtype):
    inputs = make_inputs([(1, 1), (3, 40), (7, 7), (2, 130)], dtype=dtype, sm_scale=0.1352, query_spread=2.0)
    output, lse = float64.attention(inputs)
    scale = torch.tensor(inputs.sm_scale).float().double()
    row = 0
    for b in range(inputs.batch):
        pages = inputs.kv_indices[inputs.kv_indptr[b] : inputs.kv_indptr[b + 1]].long()
        value = inputs.ckv_cache[pages, 0].double()
        key = torch.cat([value, inputs.kpe_cache[pages, 0].double()], -1)
        q_len = int(inputs.qo_indptr[b + 1] - inputs.qo_indptr[b])
        for i in range(q_len):
            query = scale * torch.cat([inputs.q_nope[row], inputs.q_pe[row]], -1).double()
            expected, expected_lse = attend(query, key, value, len(key) - q_len + i + 1)
            # both are float64: a few hundred roundings of 2^-53 of numbers up to about 100
            assert (output[row] - expected).abs().max() <= 1e-11
            assert (lse[row] - expected_lse).abs().max() <= 1e-11
            row += 1
