"""What the operator takes, gives and promises.

FlashInfer-Bench definition `mla_paged_prefill_causal_h16_ckv512_kpe64_ps1`: causal prefill attention of DeepSeek MLA
in its weight-absorbed form, over a KV cache paged one token to a page.
"""

import math
import numbers
from ctypes import c_float
from dataclasses import dataclass, fields

import torch

DEFINITION = "mla_paged_prefill_causal_h16_ckv512_kpe64_ps1"
NUM_HEADS = 16
CKV_DIM = 512
KPE_DIM = 64
PAGE_SIZE = 1

VALUE_DTYPES = (torch.bfloat16, torch.float16)
INDEX_DTYPES = (torch.int32, torch.int64)

PROMISES = (
    "base",
    "lse",
    "nan-contained",
    "masked-rows",
    "padding",
    "strided",
    "int64-indices",
    "float16",
    "repeatable",
    "page-invariant",
    "batch-invariant",
    "stream-ordered",
    "causal-contained",
    "hardened",
)
CONTRACTS = {
    "definition": frozenset({"base", "lse", "nan-contained"}),
    "serving": frozenset(PROMISES) - {"causal-contained", "hardened"},
    "hardened": frozenset(PROMISES),
}


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The eight operands of one call.

    q_nope      [total_q, 16, 512]     bfloat16 or float16
    q_pe        [total_q, 16, 64]      as q_nope
    ckv_cache   [num_pages, 1, 512]    as q_nope; key content and value at once
    kpe_cache   [num_pages, 1, 64]     as q_nope; rotary key
    qo_indptr   [batch + 1]            int32 or int64; request b owns query rows qo_indptr[b] .. qo_indptr[b + 1]
    kv_indptr   [batch + 1]            int32 or int64; and the key positions kv_indptr[b] .. kv_indptr[b + 1]
    kv_indices  [num_kv_indices]       int32 or int64; page of each key position
    sm_scale    real number, rounded to float32 before use
    """

    q_nope: torch.Tensor
    q_pe: torch.Tensor
    ckv_cache: torch.Tensor
    kpe_cache: torch.Tensor
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    sm_scale: float

    def operands(self) -> dict[str, torch.Tensor | float]:
        """The operands by name, in the definition's order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of them but the scale, in the same order."""
        return (
            self.q_nope, self.q_pe, self.ckv_cache, self.kpe_cache, self.qo_indptr, self.kv_indptr, self.kv_indices
        )  # fmt: skip

    @property
    def total_q(self) -> int:
        return self.q_nope.shape[0]

    @property
    def num_pages(self) -> int:
        return self.ckv_cache.shape[0]

    @property
    def num_kv_indices(self) -> int:
        return self.kv_indices.shape[0]

    @property
    def batch(self) -> int:
        return self.qo_indptr.shape[0] - 1

    @property
    def device(self) -> torch.device:
        return self.q_nope.device


def check_operands(inputs: Inputs) -> float:
    """Check everything that can be known without reading a tensor: types, shapes, dtypes, devices, the scale.

    Returns the scale, rounded to float32. Never synchronises with the device. Raises TypeError or ValueError naming the
    operand, what it is and must be.
    """
    if not _well_formed(inputs):
        _check_each(inputs)
    return check_scale(inputs.sm_scale)


def _well_formed(inputs: Inputs) -> bool:
    """Whether all tensors are as they must be, told faster than one by one.

    False where that takes a closer look: `_check_each` then says what is wrong, if anything is.
    """
    a, b, c, d, e, f, g = inputs.tensors
    if not type(a) is type(b) is type(c) is type(d) is type(e) is type(f) is type(g) is torch.Tensor:
        return False
    rows, pages, entries = a.shape[:1], c.shape[:1], e.shape
    return (
        a.device == b.device == c.device == d.device == e.device == f.device == g.device
        and (a.is_cuda or a.is_cpu)
        and a.layout is b.layout is c.layout is d.layout is e.layout is f.layout is g.layout is torch.strided
        and a.dtype is b.dtype is c.dtype is d.dtype
        and a.dtype in VALUE_DTYPES
        and e.dtype in INDEX_DTYPES
        and f.dtype in INDEX_DTYPES
        and g.dtype in INDEX_DTYPES
        and a.shape == (*rows, NUM_HEADS, CKV_DIM)
        and b.shape == (*rows, NUM_HEADS, KPE_DIM)
        and c.shape == (*pages, PAGE_SIZE, CKV_DIM)
        and d.shape == (*pages, PAGE_SIZE, KPE_DIM)
        and f.shape == entries
        and len(entries) == len(g.shape) == 1
        and entries[0] > 0
    )


def _check_each(inputs: Inputs) -> None:
    q_nope, ckv_cache, qo_indptr = inputs.q_nope, inputs.ckv_cache, inputs.qo_indptr
    _check_tensor("q_nope", q_nope, ("total_q", NUM_HEADS, CKV_DIM), VALUE_DTYPES)
    device, dtype = q_nope.device, (q_nope.dtype,)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"q_nope is on {device}, must be on cpu or cuda")
    total_q = q_nope.shape[0]
    _check_tensor("q_pe", inputs.q_pe, (total_q, NUM_HEADS, KPE_DIM), dtype, device)
    _check_tensor("ckv_cache", ckv_cache, ("num_pages", PAGE_SIZE, CKV_DIM), dtype, device)
    _check_tensor("kpe_cache", inputs.kpe_cache, (ckv_cache.shape[0], PAGE_SIZE, KPE_DIM), dtype, device)
    _check_tensor("qo_indptr", qo_indptr, ("batch + 1",), INDEX_DTYPES, device)
    if qo_indptr.shape[0] == 0:
        raise ValueError("qo_indptr has no entry, must have batch + 1 of them, so at least one")
    _check_tensor("kv_indptr", inputs.kv_indptr, (qo_indptr.shape[0],), INDEX_DTYPES, device)
    _check_tensor("kv_indices", inputs.kv_indices, ("num_kv_indices",), INDEX_DTYPES, device)


def check_results(inputs: Inputs, output: torch.Tensor | None, lse: torch.Tensor | None) -> None:
    """Check result buffers given by the caller: `output` as q_nope, `lse` [total_q, 16] float32, any strides.

    Raises TypeError or ValueError. A buffer may overlap neither itself nor start where an operand starts.
    """
    if output is not None:
        _check_result("output", output, (inputs.total_q, NUM_HEADS, CKV_DIM), inputs.q_nope.dtype, inputs)
    if lse is not None:
        _check_result("lse", lse, (inputs.total_q, NUM_HEADS), torch.float32, inputs)
    if output is not None and lse is not None and inputs.total_q and output.data_ptr() == lse.data_ptr():
        raise ValueError("lse shares its memory with output, must have its own")


def check_inputs(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
) -> None:
    """Check the operands and what the index tensors hold; waits for the device.

    Raises what `check_operands` raises, and ValueError with the position of the first bad index entry.
    """
    inputs = Inputs(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale)
    check_operands(inputs)
    _check_indptr("qo_indptr", qo_indptr, "total_q", inputs.total_q)
    live = _check_indptr("kv_indptr", kv_indptr, "num_kv_indices", inputs.num_kv_indices)
    pages = kv_indices[:live]
    bad = _first((pages < 0) | (pages >= inputs.num_pages))
    if bad is not None:
        raise ValueError(
            f"kv_indices[{bad}] is {int(pages[bad])}, must be a page of the cache: 0 <= page < {inputs.num_pages}"
        )


def check_scale(sm_scale: float) -> float:
    """The softmax scale as the nearest float32; TypeError or ValueError if it is not a finite real number."""
    if isinstance(sm_scale, torch.Tensor) and sm_scale.ndim == 0 and sm_scale.device.type == "cpu":
        sm_scale = sm_scale.item()
    if type(sm_scale) is not float and (isinstance(sm_scale, bool) or not isinstance(sm_scale, numbers.Real)):
        raise TypeError(f"sm_scale is {_kind(sm_scale)}, must be a real number")
    scale = c_float(sm_scale).value
    if not math.isfinite(scale):
        raise ValueError(f"sm_scale is {sm_scale}, must be finite in float32")
    return scale


def _check_tensor(
    name: str,
    value: object,
    shape: tuple[int | str, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device | None = None,
) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is {_kind(value)}, must be a torch.Tensor of shape {_spell(shape)}")
    if value.ndim != len(shape) or any(
        have != want for have, want in zip(value.shape, shape, strict=True) if type(want) is int
    ):
        raise ValueError(f"{name} has shape {_spell(tuple(value.shape))}, must be {_spell(shape)}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} is {value.dtype}, must be {' or '.join(map(str, dtypes))}")
    if device is not None and value.device != device:
        raise ValueError(f"{name} is on {value.device}, must be on {device} like q_nope")
    if value.layout is not torch.strided:
        raise TypeError(f"{name} has layout {value.layout}, must be torch.strided")


def _check_result(name: str, buffer: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, inputs: Inputs) -> None:
    like = type(buffer) is torch.Tensor and buffer.shape == shape and buffer.dtype is dtype
    if not (like and buffer.device == inputs.device and buffer.layout is torch.strided):
        _check_tensor(name, buffer, shape, (dtype,), inputs.device)
    if not buffer.is_contiguous() and any(
        stride == 0 and size > 1 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
    ):
        raise ValueError(f"{name} has strides {buffer.stride()}, must not overlap itself")
    if buffer.numel() == 0 or buffer.data_ptr() not in map(torch.Tensor.data_ptr, inputs.tensors):
        return
    for operand, value in inputs.operands().items():
        if isinstance(value, torch.Tensor) and value.numel() and value.data_ptr() == buffer.data_ptr():
            raise ValueError(f"{name} shares its memory with {operand}, must have its own")


def _check_indptr(name: str, indptr: torch.Tensor, limit_name: str, limit: int) -> int:
    """The last entry of a row pointer that starts at 0, never falls and stays within `limit`."""
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0:
        raise ValueError(f"{name}[0] is {first}, must be 0")
    fall = _first(indptr[1:] < indptr[:-1])
    if fall is not None:
        raise ValueError(
            f"{name}[{fall + 1}] is {int(indptr[fall + 1])}, must be at least {name}[{fall}] = {int(indptr[fall])}"
        )
    if last > limit:
        raise ValueError(f"{name}[{indptr.shape[0] - 1}] is {last}, must be at most {limit_name} = {limit}")
    return last


def _first(flags: torch.Tensor) -> int | None:
    """Position of the first set flag."""
    where = flags.nonzero()
    return int(where[0]) if where.numel() else None


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {_spell(tuple(value.shape))} on {value.device}"
    if value is None or isinstance(value, (str, bool)) or (isinstance(value, float) and math.isnan(value)):
        return repr(value)
    return f"a {type(value).__name__}"


def _spell(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
