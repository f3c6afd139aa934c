"""Bad operands get one clear error that names the operand, what it is and what it must be."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import kernel
from kernel import host
from tests.reference_inputs import make_inputs

GOOD = make_inputs([(2, 5), (1, 3)])


def call(**changes):
    return kernel.run(**(GOOD.operands() | changes))


@pytest.mark.parametrize("name", [name for name in GOOD.operands() if name != "sm_scale"])
@pytest.mark.parametrize("value", [None, [1.0, 2.0], 3, np.zeros(3), "q"], ids=["None", "list", "int", "numpy", "str"])
def test_what_is_no_tensor_is_a_type_error(name, value):
    with pytest.raises(TypeError, match=rf"^{name} is .*, must be a torch.Tensor of shape \["):
        call(**{name: value})


WRONG_SHAPES = {
    "q_nope": [(3, 16), (3, 8, 512), (3, 16, 576), (3, 16, 512, 1)],
    "q_pe": [(2, 16, 64), (3, 16, 32), (3, 8, 64), ()],
    "ckv_cache": [(11, 512), (11, 2, 512), (11, 1, 256)],
    "kpe_cache": [(10, 1, 64), (11, 1, 512), (11, 64)],
    "qo_indptr": [(), (3, 1), (0,)],
    "kv_indptr": [(2,), (4,), (3, 1)],
    "kv_indices": [(), (8, 1)],
}


@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name, shapes in WRONG_SHAPES.items() for shape in shapes]
)
def test_a_wrong_shape_is_a_value_error(name, shape):
    wrong = torch.zeros(shape, dtype=GOOD.operands()[name].dtype)
    with pytest.raises(ValueError, match=rf"^{name} has .*must"):
        call(**{name: wrong})


@pytest.mark.parametrize("name", ["q_nope", "q_pe", "ckv_cache", "kpe_cache"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int16, torch.complex64])
def test_values_must_be_16_bit_floats(name, dtype):
    with pytest.raises(TypeError, match=rf"^{name} is {re.escape(str(dtype))}, must be torch.bfloat16"):
        call(**{name: GOOD.operands()[name].to(dtype)})


def test_all_values_must_have_the_dtype_of_q_nope():
    with pytest.raises(TypeError, match=r"^ckv_cache is torch.float16, must be torch.bfloat16"):
        call(ckv_cache=GOOD.ckv_cache.half())


@pytest.mark.parametrize("name", ["qo_indptr", "kv_indptr", "kv_indices"])
@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.float32, torch.bool])
def test_indices_must_be_32_or_64_bit(name, dtype):
    with pytest.raises(TypeError, match=rf"^{name} is {re.escape(str(dtype))}, must be torch.int32 or torch.int64"):
        call(**{name: GOOD.operands()[name].to(dtype)})


@pytest.mark.parametrize("name", [name for name in GOOD.operands() if name not in ("sm_scale", "q_nope")])
def test_all_operands_must_be_on_the_device_of_q_nope(name):
    with pytest.raises(ValueError, match=rf"^{name} is on meta, must be on cpu like q_nope"):
        call(**{name: GOOD.operands()[name].to("meta")})


def test_only_cpu_and_cuda_are_devices():
    with pytest.raises(ValueError, match=r"^q_nope is on meta, must be on cpu or cuda"):
        call(q_nope=GOOD.q_nope.to("meta"))


def test_sparse_operands_are_refused():
    with pytest.raises(TypeError, match=r"^kpe_cache has layout torch.sparse_coo, must be torch.strided"):
        call(kpe_cache=GOOD.kpe_cache.to_sparse())


@pytest.mark.parametrize(
    "scale", [None, "0.1", True, 1j, [0.1], torch.ones(1), torch.ones((), device="meta")], ids=repr
)
def test_the_scale_must_be_a_real_number(scale):
    with pytest.raises(TypeError, match=r"^sm_scale is .*must be a real number"):
        call(sm_scale=scale)


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, 1e39], ids=repr)
def test_the_scale_must_be_finite_in_float32(scale):
    with pytest.raises(ValueError, match=r"^sm_scale is .*must be finite in float32"):
        call(sm_scale=scale)


@pytest.mark.parametrize("scale", [1, np.float32(0.1), torch.tensor(0.1), np.int64(2)], ids=repr)
def test_every_real_number_is_a_scale(scale):
    assert torch.equal(call(sm_scale=scale)[0], call(sm_scale=float(scale))[0])


BAD_BUFFERS = [
    ({"output": torch.empty(3, 16, 512)}, TypeError, "output is torch.float32, must be torch.bfloat16"),
    ({"output": torch.empty(2, 16, 512)}, ValueError, "output has shape [2, 16, 512], must be [3, 16, 512]"),
    ({"output": [0.0]}, TypeError, "output is a list, must be a torch.Tensor of shape [3, 16, 512]"),
    ({"lse": torch.empty(16, 3)}, ValueError, "lse has shape [16, 3], must be [3, 16]"),
    ({"lse": torch.empty(3, 16).bfloat16()}, TypeError, "lse is torch.bfloat16, must be torch.float32"),
    ({"lse": torch.empty(3, 16, device="meta")}, ValueError, "lse is on meta, must be on cpu like q_nope"),
    ({"lse": torch.empty(1, 16).expand(3, 16)}, ValueError, "lse has strides (0, 1), must not overlap itself"),
    ({"output": GOOD.q_nope}, ValueError, "output shares its memory with q_nope, must have its own"),
]


@pytest.mark.parametrize(("buffers", "error", "message"), BAD_BUFFERS, ids=[message for *_, message in BAD_BUFFERS])
def test_bad_result_buffers_are_named(buffers, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        call(**buffers)


def test_missing_and_unknown_operands_are_type_errors():
    with pytest.raises(TypeError, match="sm_scale"):
        kernel.run(*list(GOOD.operands().values())[:-1])
    with pytest.raises(TypeError, match="page_table"):
        call(page_table=GOOD.kv_indices)


BAD_INDICES = [
    ("qo_indptr", [1, 2, 3], "qo_indptr[0] is 1, must be 0"),
    ("qo_indptr", [0, 2, 1], "qo_indptr[2] is 1, must be at least qo_indptr[1] = 2"),
    ("qo_indptr", [0, 2, 4], "qo_indptr[2] is 4, must be at most total_q = 3"),
    ("kv_indptr", [-1, 2, 3], "kv_indptr[0] is -1, must be 0"),
    ("kv_indptr", [0, -7, 3], "kv_indptr[1] is -7, must be at least kv_indptr[0] = 0"),
    ("kv_indptr", [0, 5, 2**31 - 1], "kv_indptr[2] is 2147483647, must be at most num_kv_indices = 8"),
    ("kv_indices", [0, 1, 2, -1, 4, 5, 6, 99], "kv_indices[3] is -1, must be a page of the cache: 0 <= page < 11"),
    ("kv_indices", [0, 1, 2, 3, 4, 5, 6, 11], "kv_indices[7] is 11, must be a page of the cache: 0 <= page < 11"),
]


@pytest.mark.parametrize(("name", "values", "message"), BAD_INDICES, ids=[message for *_, message in BAD_INDICES])
def test_check_inputs_reports_the_first_bad_entry_by_position(name, values, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        kernel.check_inputs(**(GOOD.operands() | {name: torch.tensor(values, dtype=torch.int32)}))


def test_check_inputs_accepts_every_valid_batch():
    kernel.check_inputs(**GOOD.operands())
    kernel.check_inputs(**make_inputs([]).operands())
    kernel.check_inputs(**make_inputs([(5, 2), (0, 3), (2, 0)], padded_rows=3).operands())
    past_the_live_slice = torch.cat([GOOD.kv_indices, torch.tensor([-1, 2**31 - 1], dtype=torch.int32)])
    kernel.check_inputs(**replace(GOOD, kv_indices=past_the_live_slice).operands())


def test_operands_on_a_gpu_that_the_interpreter_cannot_take_are_an_error_that_says_so(monkeypatch):
    """It was an AttributeError of None, of tests whose process had inherited TRITON_INTERPRET from another one."""
    monkeypatch.setattr(host, "INTERPRETED", True)
    monkeypatch.setattr(host, "check_operands", lambda inputs: 1.0)
    monkeypatch.setattr(host, "check_results", lambda inputs, output, lse: None)
    on_gpu = SimpleNamespace(device=torch.device("cuda", 1))
    with pytest.raises(RuntimeError, match="operands on cuda:1, and Triton was imported with TRITON_INTERPRET=1"):
        host.call(on_gpu, None, None, None)
