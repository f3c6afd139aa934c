"""Kernels of other projects behind our calling convention."""

import sys
from types import ModuleType

import pytest
import torch

import fuzz
from fuzz.claims import CLAIMS
from fuzz.options import Options, UsageError
from fuzz.target import load
from fuzz.terms import promises
from kernel.contract import Inputs
from reference import float64
from reference.profile import PROFILES
from tests.reference_inputs import make_inputs

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


def test_an_adapter_whose_package_is_absent_says_so():
    if "flashinfer" in sys.modules:
        pytest.skip("the package flashinfer-python is installed")
    with pytest.raises(UsageError, match=r"flashinfer_mla cannot be imported: No module named 'flashinfer'"):
        load("fuzz.adapters.flashinfer_mla:run")


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


def test_flashinfer_is_planned_and_run_as_its_documentation_says(monkeypatch):
    package, module = ModuleType("flashinfer"), ModuleType("flashinfer.mla")
    module.BatchMLAPagedAttentionWrapper = StandIn
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.mla", module)
    monkeypatch.delitem(sys.modules, "fuzz.adapters.flashinfer_mla", raising=False)
    target = load("fuzz.adapters.flashinfer_mla:run", "flashinfer")
    assert target.profile.denominator_from_rounded_p and target.profile.raw_maximum
    inputs = make_inputs([(2, 5), (3, 9)])
    output, lse = target(inputs)
    golden, golden_lse = float64.attention(inputs)
    assert torch.equal(output, golden.bfloat16()) and torch.equal(lse, golden_lse.float())
    monkeypatch.delitem(sys.modules, "fuzz.adapters.flashinfer_mla")


def test_flashinfer_itself_gives_what_the_definition_says():
    pytest.importorskip("flashinfer", reason="the package flashinfer-python is not installed")
    if not torch.cuda.is_available():
        pytest.skip("FlashInfer needs a GPU")
    claim = CLAIMS["fuzz.adapters.flashinfer_mla:run"]
    fuzz.verify("fuzz.adapters.flashinfer_mla:run", claim.contract, profile=claim.profile, strata=["bell"])
