"""Kernels of other projects behind our calling convention."""

import importlib.util
import math
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

import fuzz
import fuzz.adapters
from fuzz.adapters.fused import fused_cache
from fuzz.build import build
from fuzz.case import Case
from fuzz.claims import CLAIMS
from fuzz.loading import load
from fuzz.options import Options, UsageError
from fuzz.target import Target
from fuzz.terms import promises
from kernel.contract import Inputs
from reference import float64
from reference.profile import PROFILES
from tests.reference_inputs import indptr, make_inputs

# torch's softmax gives a row whose every score is -inf the weight 0 instead of IEEE's NaN
FINITE = ["bell", "one-hot", "needle-edge", "power-of-two", "logits-1e5", "huge", "subnormal", "signed-zeros"]


@pytest.mark.parametrize("spec", CLAIMS)
def test_every_claim_can_be_held_against_a_kernel(spec):
    claim = Options(kernel=spec).claim
    assert promises(claim.contract, claim.without) and claim.profile in PROFILES


def test_plain_torch_keeps_what_it_claims_on_finite_values(tmp_path):
    claim = CLAIMS["fuzz.adapters.torch_sdpa:run"]
    worst = fuzz.verify(
        "fuzz.adapters.torch_sdpa:run",
        claim.contract,
        without=claim.without,
        strata=FINITE,
        max_cases=60,
        device="cpu",
        out=tmp_path,
    )
    assert worst["output"] is not None and "lse" not in worst


@pytest.mark.parametrize(
    ("adapter", "package"),
    [
        ("flashinfer_mla", "flashinfer"),
        ("sglang_extend", "sglang"),
        ("vllm_flash_mla", "vllm"),
        ("vllm_triton_mla", "vllm"),
    ],
)
def test_an_adapter_whose_package_is_absent_says_so(adapter, package):
    if importlib.util.find_spec(package):
        pytest.skip(f"the package {package} is installed")
    with pytest.raises(UsageError, match=rf"{adapter} cannot be imported: No module named '{package}"):
        load(f"fuzz.adapters.{adapter}:run")


class StandIn:
    """FlashInfer's wrapper as its documentation has it, computing with the golden reference."""

    def __init__(self, float_workspace_buffer, use_cuda_graph=False, backend="auto"):
        assert float_workspace_buffer.nbytes == 128 << 20

    def plan(
        self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, page_size, causal,
        sm_scale, q_data_type, kv_data_type, use_profiler=False,
    ):  # fmt: skip
        assert (num_heads, head_dim_ckv, head_dim_kpe, page_size, causal) == (16, 512, 64, 1, True)
        assert kv_len_arr.tolist() == kv_indptr.diff().tolist() and kv_len_arr.dtype == torch.int32
        assert q_data_type == kv_data_type == torch.bfloat16
        self.planned = qo_indptr, kv_indptr, kv_indices, sm_scale

    def run(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False):
        output, lse = float64.attention(Inputs(q_nope, q_pe, ckv_cache, kpe_cache, *self.planned))
        return (output.to(q_nope.dtype), lse.float()) if return_lse else output


@pytest.fixture
def installed(monkeypatch):
    """Make a module of a package that is not here importable, with one attribute; its adapter is imported anew."""

    def install(adapter: str, module: str, **attributes: object) -> Target:
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, name := ".".join(parts[:count]), ModuleType(name))
        for name, value in attributes.items():
            setattr(sys.modules[module], name, value)
        monkeypatch.delitem(sys.modules, f"fuzz.adapters.{adapter}", raising=False)
        monkeypatch.delattr(fuzz.adapters, adapter, raising=False)
        target = load(f"fuzz.adapters.{adapter}:run", CLAIMS[f"fuzz.adapters.{adapter}:run"].profile)
        monkeypatch.delitem(sys.modules, f"fuzz.adapters.{adapter}")
        return target

    return install


def test_flashinfer_is_planned_and_run_as_its_documentation_says(installed):
    target = installed("flashinfer_mla", "flashinfer.mla", BatchMLAPagedAttentionWrapper=StandIn)
    assert target.profile.denominator_from_rounded_p and target.profile.raw_maximum
    inputs = make_inputs([(2, 5), (3, 9)])
    output, lse = target(inputs)
    golden, golden_lse = float64.attention(inputs)
    assert torch.equal(output, golden.bfloat16()) and torch.equal(lse, golden_lse.float())


def extend_attention_fwd_unified(
    q, o, k_buffer, v_buffer, k_scale, v_scale, qo_indptr, kv_indptr, kv_indices, prefix_lens, max_len_extend,
    custom_mask=None, mask_indptr=None, sm_scale=None, logit_cap=0.0, is_causal=True, sliding_window_size=-1,
    sinks=None, window_start_pos=None, xai_temperature_len=-1, page_size=1, score_mod=None, aux_tensors=None,
):  # fmt: skip
    """SGLang's function as its source has it, computing with the golden reference. It reads index tensors as flat."""
    assert (q.stride(2), o.stride(2), k_buffer.stride(2)) == (1, 1, 1) and k_buffer.ndim == v_buffer.ndim == 3
    assert k_buffer.data_ptr() == v_buffer.data_ptr() and k_scale == v_scale == 1.0
    assert qo_indptr.is_contiguous() and kv_indptr.is_contiguous() and kv_indices.is_contiguous()
    assert prefix_lens.tolist() == (kv_indptr.diff() - qo_indptr.diff()).tolist() and prefix_lens.is_contiguous()
    assert max_len_extend == max(qo_indptr.diff().tolist(), default=0) and kv_indices.dtype == torch.int64
    operands = *q.split([512, 64], -1), *k_buffer.split([512, 64], -1), qo_indptr, kv_indptr, kv_indices, sm_scale
    o.copy_(float64.attention(Inputs(*operands))[0])


@pytest.mark.parametrize("lengths", [[(2, 5), (0, 3), (3, 9)], []])
def test_sglang_gets_its_operands_as_its_own_backend_gives_them(installed, lengths):
    function = {"extend_attention_fwd_unified": extend_attention_fwd_unified}
    target = installed("sglang_extend", "sglang.kernels.ops.attention.extend_attention", **function)
    inputs = make_inputs(lengths)
    output, lse = target(replace(inputs, qo_indptr=inputs.qo_indptr.repeat_interleave(2)[::2]))
    assert torch.equal(output, float64.attention(inputs)[0].bfloat16()) and lse is None


def decode_attention_fwd(
    q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits, num_kv_splits, sm_scale, page_size=1,
    logit_cap=0.0, k_scale=None, v_scale=None, is_mla=False,
):  # fmt: skip
    """vLLM's function as its source has it, computing with the golden reference."""
    assert attn_logits.shape == (len(q), 16, num_kv_splits, 513) and attn_logits.dtype == torch.float32
    assert (q.stride(2), o.stride(2), lse.stride(1)) == (1, 1, 1) and is_mla and page_size == k_buffer.shape[1] == 1
    assert k_buffer.shape[1:] == (1, 1, 576) and v_buffer.shape[1:] == (1, 1, 512)
    assert req_to_token.dtype == b_seq_len.dtype == torch.int32 and req_to_token.shape[1] == b_seq_len.max()
    pages = torch.cat([row[:count] for row, count in zip(req_to_token, b_seq_len.tolist(), strict=True)])
    rows = indptr([1] * len(q)), indptr(b_seq_len.tolist())
    caches = k_buffer[:, 0].split([512, 64], -1)
    output, in_base_2 = float64.attention(Inputs(*q.split([512, 64], -1), *caches, *rows, pages, sm_scale))
    o.copy_(output)
    lse.copy_(in_base_2 * math.log(2))
    splits.append(num_kv_splits)


splits: list[int] = []


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([(2, 5), (0, 3), (3, 9), (2, 0), (2, 1)], [1]), ([(1, 1600), (520, 520)], [4, 1]), ([], [])],
)
def test_vllm_gets_a_sequence_for_each_query_row(installed, lengths, expected):
    splits.clear()
    module = "vllm.v1.attention.ops.triton_decode_attention"
    target = installed("vllm_triton_mla", module, decode_attention_fwd=decode_attention_fwd)
    inputs = make_inputs(lengths)
    output, lse = target(inputs)
    golden, golden_lse = float64.attention(inputs)
    assert torch.equal(output, golden.bfloat16()) and splits == expected
    torch.testing.assert_close(lse, golden_lse.float(), atol=1e-5, rtol=1e-6)


def flash_attn_varlen_func(
    q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None, scheduler_metadata=None,
    q_descale=None, k_descale=None, v_descale=None, num_splits=0, fa_version=2,
):  # fmt: skip
    """vLLM's function as its source has it, computing with the golden reference."""
    assert causal and return_softmax_lse and fa_version == 3 and cu_seqlens_k is None
    assert k.shape[1:] == (1, 1, 64) and v.shape[1:] == (1, 1, 512)
    for operand in (q, k, v, q_v):
        assert operand.data_ptr() % 16 == 0 and not any(2 * stride % 16 for stride in operand.stride()[:-1])
        assert operand.stride(-1) == 1
    assert block_table.shape == (len(seqused_k), max_seqlen_k)
    assert cu_seqlens_q.dtype == seqused_k.dtype == block_table.dtype == torch.int32 and cu_seqlens_q.is_contiguous()
    assert max_seqlen_q == max(1, *cu_seqlens_q.diff().tolist()) and max_seqlen_k == max(seqused_k.tolist())
    kv_indptr = indptr(seqused_k.tolist())
    pages = torch.cat([row[:count] for row, count in zip(block_table, seqused_k.tolist(), strict=True)])
    operands = q_v, q, v[:, :, 0], k[:, :, 0], cu_seqlens_q, kv_indptr, pages, softmax_scale
    output, lse = float64.attention(Inputs(*operands))
    return output.to(q.dtype), (lse * math.log(2)).float().T.contiguous()


def test_vllm_gets_a_block_table_and_gives_an_lse_of_other_form(installed):
    target = installed("vllm_flash_mla", "vllm.vllm_flash_attn", flash_attn_varlen_func=flash_attn_varlen_func)
    assert target.profile.raw_maximum and not target.profile.denominator_from_rounded_p
    inputs = make_inputs([(2, 5), (0, 3), (3, 9), (2, 0), (2, 1)])
    output, lse = target(replace(inputs, qo_indptr=inputs.qo_indptr.long().repeat_interleave(2)[::2]))
    golden, golden_lse = float64.attention(inputs)
    assert torch.equal(output, golden.bfloat16()) and lse.shape == (9, 16)
    torch.testing.assert_close(lse, golden_lse.float(), atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("layout", ["fused", "offset", "padded", "odd-strides", "transposed", "columns", "stepped"])
def test_flash_attention_gets_no_operand_off_its_16_bytes(installed, layout):
    target = installed("vllm_flash_mla", "vllm.vllm_flash_attn", flash_attn_varlen_func=flash_attn_varlen_func)
    inputs = build(Case(lengths=((1, 3, 5),), layout=layout))
    assert torch.equal(target(inputs)[0], float64.attention(inputs)[0].bfloat16())


def test_a_fused_cache_holds_the_pages_that_are_named_and_nan():
    inputs = make_inputs([(1, 3)])
    cache, slots = fused_cache(inputs.ckv_cache, inputs.kpe_cache, inputs.kv_indices)
    assert slots.tolist() == inputs.kv_indices.tolist() and cache.shape == (6, 1, 576)
    assert torch.equal(cache[slots], torch.cat([inputs.ckv_cache, inputs.kpe_cache], -1)[slots])
    assert int(cache.isnan().all(-1).sum()) == 3


def test_a_pool_of_millions_of_pages_is_cut_down_on_the_cpu():
    ckv, kpe = (torch.zeros(1, 1, width, dtype=torch.bfloat16).expand(1 << 24, 1, width) for width in (512, 64))
    cache, slots = fused_cache(ckv, kpe, torch.tensor([7, (1 << 24) - 1, 7]))
    assert slots.tolist() == [1, 2, 1] and cache.shape == (3, 1, 576)
    assert cache[0].isnan().all() and not cache[1:].any()


@pytest.mark.parametrize("adapter", ["flashinfer_mla", "sglang_extend", "vllm_flash_mla", "vllm_triton_mla"])
def test_the_package_itself_gives_what_the_definition_says(adapter):
    package = adapter.partition("_")[0]
    pytest.importorskip(package, reason=f"the package {package} is not installed")
    if not torch.cuda.is_available():
        pytest.skip(f"{package} needs a GPU")
    claim = CLAIMS[f"fuzz.adapters.{adapter}:run"]
    fuzz.verify(
        f"fuzz.adapters.{adapter}:run",
        claim.contract,
        without=claim.without,
        profile=claim.profile,
        strata=["bell", "ragged", "trained"],
        max_cases=20,
    )
