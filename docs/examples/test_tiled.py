"""The test that came with tiled.py: some lengths, random numbers, a tolerance. It passes."""

import math

import pytest
import torch
from tiled import run


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 64), (64, 64), (128, 128), (64, 256), (32, 512), (256, 1024)])
def test_against_a_plain_softmax(q_len, kv_len):
    torch.manual_seed(0)
    q_nope, q_pe = (torch.randn(q_len, 16, size).bfloat16() for size in (512, 64))
    ckv, kpe = (torch.randn(kv_len, 1, size).bfloat16() for size in (512, 64))
    indptr = [torch.tensor([0, length], dtype=torch.int32) for length in (q_len, kv_len)]
    output, lse = run(q_nope, q_pe, ckv, kpe, *indptr, torch.arange(kv_len, dtype=torch.int32), 192**-0.5)

    scores = (torch.cat([q_nope, q_pe], -1).float() @ torch.cat([ckv, kpe], -1)[:, 0].float().T) * 192**-0.5
    hidden = torch.ones(q_len, kv_len).triu(kv_len - q_len + 1).bool()
    scores = scores.masked_fill(hidden[:, None], -math.inf)
    torch.testing.assert_close(output.float(), scores.softmax(-1) @ ckv[:, 0].float(), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, scores.logsumexp(-1) / math.log(2), atol=1e-3, rtol=1e-3)
