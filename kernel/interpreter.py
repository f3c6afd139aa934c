"""Triton's CPU interpreter, made fit for kernels on bfloat16 that stay as they are.

The interpreter of Triton 3.6 to 3.9 keeps bfloat16 as uint16. Loads, stores, `tl.where` and changes of shape only move
those bits and are right; casts truncate, and `tl.dot` and all arithmetic compute on the bit patterns. `repair` probes
what the installed Triton does and replaces what is wrong: casts and `tl.dot` become right, other operations on bfloat16
raise. It also mends what else keeps a correct kernel from running as on a GPU: masks made of scalars, NaN in min and
max, the accuracy of exp2 and log2, warnings of NumPy, loop bounds, and the cost of a launch.
"""

import dataclasses
import functools
import operator
import os
import sys
import types
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

# Triton reads TRITON_INTERPRET when it is first imported, so nothing here imports it outside a function.


def switch_on_without_gpu() -> None:
    """Set TRITON_INTERPRET=1 where torch finds no GPU; to be called before Triton is first imported.

    Does nothing where Triton is imported or the variable set. Counts devices through NVML: CUDA stays uninitialised.
    """
    if "triton" not in sys.modules and torch.cuda.device_count() == 0:
        os.environ.setdefault("TRITON_INTERPRET", "1")


def repair() -> tuple[str, ...]:
    """Replace what is wrong in the interpreter of the installed Triton; returns the names of the repairs that it took.

    A second call finds nothing to repair. Raises RuntimeError where a repair does not help: that Triton is too new.
    """
    from triton.runtime import interpreter

    done = []
    for name, (is_right, mend) in _REPAIRS.items():
        if is_right(interpreter):
            continue
        mend(interpreter)
        if not is_right(interpreter):
            raise RuntimeError(f"repairing {name} in Triton's interpreter did not help: not a version from 3.6 to 3.9?")
        done.append(name)
    return tuple(done)


def bfloat16_from_float32(values: np.ndarray) -> np.ndarray:
    """uint16 bit patterns of float32 `values` rounded to nearest, ties to even; NaN gives 0x7FFF, as on NVIDIA GPUs."""
    bits = values.view(np.uint32)
    rounded = ((bits + ((bits >> 16) & 1) + 0x7FFF) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def float32_from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 values, exact, that uint16 bit patterns of bfloat16 stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


# Casts

# float32 patterns and their bfloat16: exact, around ties to even and odd, carries, overflow, subnormals, -0, infinity.
_ROUNDED = {
    0x3F800000: 0x3F80, 0x3F807FFF: 0x3F80, 0x3F808000: 0x3F80, 0x3F808001: 0x3F81, 0x3F818000: 0x3F82,
    0x3FFF8000: 0x4000, 0xBFFFFFFF: 0xC000, 0x7F7F7FFF: 0x7F7F, 0x7F7F8000: 0x7F80, 0xFF7FFFFF: 0xFF80,
    0x00000001: 0x0000, 0x00018000: 0x0002, 0x007FFFFF: 0x0080, 0x80000000: 0x8000, 0xFF800000: 0xFF80,
}  # fmt: skip


def _casts_are_right(interpreter: ModuleType) -> bool:
    tl, builder, handle = interpreter.tl, interpreter.interpreter_builder, interpreter.TensorHandle
    patterns, expected = np.array(list(_ROUNDED), np.uint32), np.array(list(_ROUNDED.values()), np.uint16)
    singles = handle(patterns.view(np.float32), tl.float32)
    nans = handle(np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32), tl.float32)
    brains = handle(np.array([0x0001, 0x3F80, 0xFF80], np.uint16), tl.bfloat16)
    ones = [handle(np.ones(1, name), getattr(tl, name)) for name in ("float16", "float64", "int32")]
    one = np.array([0x3F80], np.uint16)
    return (
        hasattr(builder, "get_bf16")
        and np.array_equal(builder.create_fp_trunc(singles, tl.bfloat16).data, expected)
        and bool(np.all(builder.create_fp_trunc(nans, tl.bfloat16).data & 0x7FFF > 0x7F80))
        and np.array_equal(builder.create_fp_ext(brains, tl.float32).data, _float32(2.0**-133, 1, -np.inf))
        and all(_equal_or_raises(one, builder.cast_impl, source, tl.bfloat16) for source in ones)
        and _equal_or_raises(expected, builder.create_fp_to_fp, singles, tl.bfloat16, None)
    )


def _mend_casts(interpreter: ModuleType) -> None:
    tl, builder, handle = interpreter.tl, interpreter.InterpreterBuilder, interpreter.TensorHandle
    cast, cast_rounding = builder.cast_impl, builder.create_fp_to_fp

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if tl.bfloat16 not in (source, target):
            return cast(self, src, dst_type)
        if source == tl.bfloat16:
            single = handle(float32_from_bfloat16(src.data), tl.float32)
            return single if target == tl.float32 else cast(self, single, dst_type)
        if source in (tl.float32, tl.float16):
            return handle(bfloat16_from_float32(src.data.astype(np.float32, copy=False)), tl.bfloat16)
        # float64 and integers would be rounded twice on the way.
        raise NotImplementedError(_refusal(f"cast from {source} to {target}"))

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if tl.bfloat16 not in (source, target):
            return cast_rounding(self, src, dst_type, rounding_mode)
        # Triton 3.9 casts between the two 16-bit types here.
        if tl.float16 in (source, target) and rounding_mode == interpreter._ir.ROUNDING_MODE.RTNE:
            return self.cast_impl(src, dst_type)
        raise NotImplementedError(_refusal(f"cast from {source} to {target} with rounding mode {rounding_mode}"))

    def get_bf16(self: Any, value: float) -> Any:
        return self.cast_impl(self.get_fp32(value), tl.bfloat16)

    builder.cast_impl, builder.create_fp_to_fp, builder.get_bf16 = cast_impl, create_fp_to_fp, get_bf16


# tl.dot


def _dot_is_right(interpreter: ModuleType) -> bool:
    tl, handle = interpreter.tl, interpreter.TensorHandle
    a = handle(bfloat16_from_float32(_float32([1, -2], [0.5, 3])), tl.bfloat16)
    b = handle(bfloat16_from_float32(_float32([4, 1], [-1, np.inf])), tl.bfloat16)
    c = handle(_float32([0.25, 0], [0, -1]), tl.float32)
    product = interpreter.interpreter_builder.create_dot(a, b, c, None, 0)
    return np.array_equal(product.data, _float32([6.25, -np.inf], [-1, np.inf]))


def _mend_dot(interpreter: ModuleType) -> None:
    tl, builder, handle = interpreter.tl, interpreter.InterpreterBuilder, interpreter.TensorHandle
    dot = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        # Products of two bfloat16 are exact in float32, and BLAS sums them there.
        if a.dtype.scalar == tl.bfloat16:
            a = handle(float32_from_bfloat16(a.data), tl.float32)
            b = handle(float32_from_bfloat16(b.data), tl.float32)
        return dot(self, a, b, d, input_precision, max_num_imprecise_acc)

    builder.create_dot = create_dot


# Other operations on bfloat16

# What only moves bits, and what the repairs above make right.
_MOVES = frozenset(
    f"create_{name}"
    for name in (
        "load", "store", "masked_load", "masked_store", "atomic_load", "atomic_store", "tensor_pointer_load",
        "tensor_pointer_store", "descriptor_load", "descriptor_store", "descriptor_gather", "descriptor_scatter",
        "bitcast", "int_to_ptr", "ptr_to_int", "addptr", "select", "gather", "splat", "unsplat", "broadcast",
        "expand_dims", "reshape", "trans", "cat", "join", "split", "dot", "fp_ext", "fp_trunc", "fp_to_fp", "si_to_fp",
        "ui_to_fp", "fp_to_si", "fp_to_ui",
    )
)  # fmt: skip


def _arithmetic_is_right(interpreter: ModuleType) -> bool:
    tl, builder, handle = interpreter.tl, interpreter.interpreter_builder, interpreter.TensorHandle
    two, minus_one, zero = (handle(bfloat16_from_float32(_float32(value)), tl.bfloat16) for value in (2.0, -1.0, 0.0))
    results = [
        (1.0, builder.create_fadd, two, minus_one),
        (3.0, builder.create_fsub, two, minus_one),
        (-2.0, builder.create_fmul, two, minus_one),
        (-2.0, builder.create_fdiv, two, minus_one),
        (2.0, builder.create_maxnumf, two, minus_one),
        (-1.0, builder.create_minnumf, two, minus_one),
        (-2.0, builder.create_fma, two, minus_one, zero),
        (4.0, builder.create_exp2, two),
        (1.0, builder.create_log2, two),
        (2.0**0.5, builder.create_sqrt, two),
        (2.0, builder.create_floor, two),
    ]
    return _equal_or_raises(np.array([True]), builder.create_fcmpOGT, two, minus_one) and all(
        _equal_or_raises(bfloat16_from_float32(_float32(expected)), *operation) for expected, *operation in results
    )


def _mend_arithmetic(interpreter: ModuleType) -> None:
    builder = interpreter.InterpreterBuilder
    for name in dir(builder):
        if name.startswith("create_") and name not in _MOVES:
            setattr(builder, name, _without_bfloat16(getattr(builder, name), name, interpreter))


def _without_bfloat16(method: Callable[..., Any], name: str, interpreter: ModuleType) -> Callable[..., Any]:
    bfloat16, handle = interpreter.tl.bfloat16, interpreter.TensorHandle

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if isinstance(arg, handle) and arg.dtype.scalar == bfloat16:
                raise NotImplementedError(_refusal(name.removeprefix("create_")))
        return method(self, *args, **kwargs)

    return guarded


def _reductions_are_right(interpreter: ModuleType) -> bool:
    tl = interpreter.tl
    ones = interpreter.TensorHandle(np.array([0x3F80, 0x3F80], np.uint16), tl.bfloat16)
    tensor, add = tl.core.tensor(ones, tl.block_type(tl.bfloat16, [2])), tl.standard._sum_combine
    two, sums = np.array([0x4000], np.uint16), np.array([0x3F80, 0x4000], np.uint16)
    return _equal_or_raises(
        two, lambda: interpreter.ReduceOps(0, add, False).apply(tensor).handle
    ) and _equal_or_raises(sums, lambda: interpreter.ScanOps(0, add, False).apply(tensor).handle)


def _mend_reductions(interpreter: ModuleType) -> None:
    base, bfloat16 = interpreter.ReduceScanOpInterface, interpreter.tl.bfloat16
    check = base.check_tensor

    def check_tensor(self: Any, input: Any) -> None:
        check(self, input)
        if any(arg.dtype == bfloat16 for arg in input):
            raise NotImplementedError(_refusal(f"{type(self).__name__} with {self.combine_fn.__name__}"))

    base.check_tensor = check_tensor


# Masks


def _splat_masks_are_boolean(interpreter: ModuleType) -> bool:
    tl, builder, handle = interpreter.tl, interpreter.interpreter_builder, interpreter.TensorHandle
    compared = builder.create_icmpEQ(handle(np.zeros(1, np.int32), tl.int32), handle(np.zeros(1, np.int32), tl.int32))
    return bool(builder.create_splat(tl.block_type(tl.int1, [2]), compared).data.dtype == np.bool_)


def _mend_splat_masks(interpreter: ModuleType) -> None:
    """A comparison of scalars is said to be of their type, and becomes a block of that: no mask for Triton 3.9."""
    tl, builder, handle = interpreter.tl, interpreter.InterpreterBuilder, interpreter.TensorHandle
    splat = builder.create_splat

    def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
        result = splat(self, ret_ty, arg)
        return handle(result.data.astype(np.bool_), tl.int1) if ret_ty.scalar == tl.int1 else result

    builder.create_splat = create_splat


# NaN in min and max


def _min_max_skip_nan(interpreter: ModuleType) -> bool:
    tl, builder, handle = interpreter.tl, interpreter.interpreter_builder, interpreter.TensorHandle
    nan, one, two = (handle(_float32(value), tl.float32) for value in (np.nan, 1.0, 2.0))
    return bool(
        builder.create_maxnumf(nan, one).data == 1
        and builder.create_minnumf(one, nan).data == 1
        and builder.create_clampf(nan, one, two, interpreter._ir.PROPAGATE_NAN.NONE).data == 1
    )


def _mend_min_max(interpreter: ModuleType) -> None:
    """The PTX instructions max and min return the operand that is a number, unless asked to propagate NaN."""
    builder, without = interpreter.InterpreterBuilder, interpreter._ir.PROPAGATE_NAN.NONE
    clamp = builder.create_clampf

    def create_clampf(self: Any, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        if propagate_nans == without:
            return self.create_minnumf(self.create_maxnumf(arg, lo), hi)
        return clamp(self, arg, lo, hi, propagate_nans)

    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
    builder.create_clampf = create_clampf


def _reduced_nan_is_quiet(interpreter: ModuleType) -> bool:
    tl = interpreter.tl
    nans = interpreter.TensorHandle(np.full(2, np.nan, np.float32), tl.float32)
    tensor = tl.core.tensor(nans, tl.block_type(tl.float32, [2]))
    return _is_silent(lambda: interpreter.ReduceOps(0, tl.standard._elementwise_max, False).apply(tensor))


def _quieten_reduced_nan(interpreter: ModuleType) -> None:
    """NumPy's nanmax is fmax.reduce and a warning where all is NaN, which no errstate turns off."""
    ops = interpreter.ReduceOps
    min_max, silent = ops.min_max, {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}

    def quiet_min_max(self: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        return min_max(self, input, silent.get(val_reduce_op, val_reduce_op), idx_reduce_op)

    ops.min_max = quiet_min_max


# exp2 and log2


def _exp2_and_log2_are_accurate(interpreter: ModuleType) -> bool:
    """Within the errors measured on an H200: tl.exp2 2.5 * 2^-24 relative, tl.log2 1.1 * 2^-24 absolute near one."""
    tl, builder, handle = interpreter.tl, interpreter.interpreter_builder, interpreter.TensorHandle
    whole = np.arange(-126, 128, dtype=np.float32)
    exponents = np.linspace(-20, 0, 20_001, dtype=np.float32)
    near_one = np.linspace(0.5, 2, 20_001, dtype=np.float32)
    powers, logarithms = np.exp2(exponents, dtype=np.float64), np.log2(near_one, dtype=np.float64)

    def on(method: Callable[..., Any], x: np.ndarray) -> np.ndarray:
        result: np.ndarray = method(handle(x, tl.float32)).data
        return result

    return (
        np.array_equal(on(builder.create_exp2, whole), np.exp2(whole, dtype=np.float64))
        and bool(np.all(np.abs(on(builder.create_exp2, exponents) - powers) <= 2.5 * 2.0**-24 * powers))
        and bool(np.all(np.abs(on(builder.create_log2, near_one) - logarithms) <= 1.1 * 2.0**-24))
    )


def _mend_exp2_and_log2(interpreter: ModuleType) -> None:
    """NumPy's float32 code for AVX-512 errs by up to 3.8 * 2^-24 and is not exact at 127."""
    builder = interpreter.InterpreterBuilder
    builder.create_exp2 = lambda self, arg: self.unary_op(arg, _through_float64(np.exp2))
    builder.create_log2 = lambda self, arg: self.unary_op(arg, _through_float64(np.log2))


def _through_float64(function: np.ufunc) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: function(x, dtype=np.float64).astype(x.dtype)


# Launches


def _launch_is_quiet(interpreter: ModuleType) -> bool:
    body = types.FunctionType((lambda: np.log2(np.zeros(1))).__code__, {"np": np, "tl": interpreter.tl})
    return _is_silent(interpreter.GridExecutor(body, [], (1,)))


def _quieten_launch(interpreter: ModuleType) -> None:
    """A GPU raises no floating-point exceptions, so that inf - inf in a kernel is no reason for a warning."""
    executor = interpreter.GridExecutor
    launch = executor.__call__

    @functools.wraps(launch)
    def quiet_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return launch(self, *args, **kwargs)

    executor.__call__ = quiet_launch


def _annotated_arguments_are_typed(interpreter: ModuleType) -> bool:
    tl = interpreter.tl
    seen: list[Any] = []
    body = types.FunctionType((lambda argument: see(argument.dtype)).__code__, {"tl": tl, "see": seen.append})  # type: ignore[name-defined]  # noqa: F821
    body.__annotations__ = {"argument": tl.int64}
    interpreter.GridExecutor(body, ["argument"], (1,))(1)
    return seen == [tl.int64]


def _type_annotated_arguments(interpreter: ModuleType) -> None:
    """Triton takes a small integer for int32 whatever its annotation says, and products that need 64 bits wrap."""
    from triton.runtime.jit import _normalize_ty

    executor, tl = interpreter.GridExecutor, interpreter.tl
    launch = executor.__call__
    integers = {"i32": tl.int32, "u32": tl.uint32, "i64": tl.int64, "u64": tl.uint64}

    def typed(annotations: dict[str, Any], name: str, value: Any) -> Any:
        if type(value) is not int or name not in annotations:
            return value
        dtype = integers.get(_normalize_ty(annotations[name]))
        if dtype is None:
            return value
        handle = interpreter.TensorHandle(np.array([value], interpreter._get_np_dtype(dtype)), dtype)
        return tl.core.tensor(handle, dtype)

    @functools.wraps(launch)
    def typed_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = self.fn.__annotations__
        args = (*(typed(known, *pair) for pair in zip(self.arg_names, args, strict=False)),)
        return launch(self, *args, **{name: typed(known, name, value) for name, value in kwargs.items()})

    executor.__call__ = typed_launch


def _loop_bounds_are_right(interpreter: ModuleType) -> bool:
    tl = interpreter.tl
    scope = interpreter._LangPatchScope()
    interpreter._patch_lang_tensor(tl.core.tensor, scope)
    try:
        five = tl.core.tensor(interpreter.TensorHandle(np.array([5], np.int32), tl.int32), tl.int32)
        return _is_silent(lambda: operator.index(five))
    finally:
        scope.restore()


def _mend_loop_bounds(interpreter: Any) -> None:
    """Triton 3.6 takes int() of an array of one element, which NumPy 2.4 refuses."""
    patch = interpreter._patch_lang_tensor

    def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_lang_tensor


def _patching_is_done_once(interpreter: ModuleType) -> bool:
    body = types.FunctionType((lambda: None).__code__, {"tl": interpreter.tl})
    scopes = [interpreter._patch_lang(body) for _ in range(2)]
    once = not scopes[1]._changes
    for scope in reversed(scopes):
        scope.restore()
    return once


def _patch_once(interpreter: Any) -> None:
    """Triton searches the whole language for built-ins at every call of a device function: 40 % of a launch's time."""
    patch, tl = interpreter._patch_lang, interpreter.tl
    patched: set[tuple[bool, bool]] = set()

    @functools.cache
    def languages(fn: Callable[..., Any]) -> tuple[bool, bool]:
        names = fn.__globals__.values()
        return any(value is tl for value in names), any(value is tl.core for value in names)

    def _patch_lang(fn: Callable[..., Any]) -> Any:
        if languages(fn) in patched:
            return interpreter._LangPatchScope()
        patched.add(languages(fn))
        scope = patch(fn)
        restore = scope.restore

        def restore_and_forget() -> None:
            restore()
            patched.clear()

        # Only a launch restores; the scopes of its device functions are dropped.
        scope.restore = restore_and_forget
        return scope

    interpreter._patch_lang = _patch_lang


def _types_are_remembered(interpreter: ModuleType) -> bool:
    tl = interpreter.tl
    one, other = (tl.block_type(tl.int32, [2]) for _ in range(2))
    return one.shape is other.shape


def _remember_types(interpreter: Any) -> None:
    """Each operation makes its types, their shapes and a table of NumPy's dtypes anew: a third of all time.

    What is made of a type, whose name says all of it, is taken over from the first time; nothing changes it afterwards.
    """
    core = interpreter.tl.core
    make_type, make_tensor, np_dtype_of = core.block_type.__init__, core.tensor.__init__, interpreter._get_np_dtype
    types: dict[tuple[Any, ...], dict[str, Any]] = {}
    tensors: dict[str, dict[str, Any]] = {}
    np_dtypes: dict[str, Any] = {}

    def make_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *[size.value if isinstance(size, core.constexpr) else size for size in shape])
        known = types.get(key)
        if known is None:
            make_type(self, element_ty, shape)
            types[key] = vars(self).copy()
        else:
            vars(self).update(known)

    def make_tensor_of_type(self: Any, handle: Any, type: Any) -> None:
        if self.__class__ is not core.tensor:
            make_tensor(self, handle, type)
        elif type.name in tensors:
            vars(self).update(tensors[type.name], handle=handle)
        else:
            make_tensor(self, handle, type)
            tensors[type.name] = {name: value for name, value in vars(self).items() if name != "handle"}

    def get_np_dtype(tt_dtype: Any) -> Any:
        known = np_dtypes.get(tt_dtype.name)
        if known is None:
            known = np_dtypes[tt_dtype.name] = np_dtype_of(tt_dtype)
        return known

    interpreter._get_np_dtype = get_np_dtype
    core.block_type.__init__, core.tensor.__init__ = make_block_type, make_tensor_of_type


def _overflow_is_ignored(interpreter: ModuleType) -> bool:
    options = interpreter.interpreter_builder.options
    return options.debug or not options.sanitize_overflow


def _ignore_overflow(interpreter: ModuleType) -> None:
    """Without `debug`, Triton repeats narrower integer operations in 64 bits for an assertion that it then drops."""
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


# What the probes share


def _float32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def _equal_or_raises(expected: np.ndarray, operation: Callable[..., Any], *operands: Any) -> bool:
    try:
        return np.array_equal(operation(*operands).data, expected)
    except Exception:
        return True


def _is_silent(operation: Callable[[], Any]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            operation()
        except Exception:
            return False
    return True


def _refusal(operation: str) -> str:
    return f"Triton's interpreter has no bfloat16 {operation}: cast to float32 first, as the bits are kept in a uint16"


# In order: refusing bfloat16 wraps whatever the repairs before it left in place.
_REPAIRS: dict[str, tuple[Callable[[ModuleType], bool], Callable[[ModuleType], None]]] = {
    "bfloat16 casts": (_casts_are_right, _mend_casts),
    "bfloat16 dot": (_dot_is_right, _mend_dot),
    "masks from scalars": (_splat_masks_are_boolean, _mend_splat_masks),
    "NaN in min and max": (_min_max_skip_nan, _mend_min_max),
    "accuracy of exp2 and log2": (_exp2_and_log2_are_accurate, _mend_exp2_and_log2),
    "bfloat16 arithmetic": (_arithmetic_is_right, _mend_arithmetic),
    "bfloat16 reductions": (_reductions_are_right, _mend_reductions),
    "reductions of NaN": (_reduced_nan_is_quiet, _quieten_reduced_nan),
    "launches": (_launch_is_quiet, _quieten_launch),
    "types of arguments": (_annotated_arguments_are_typed, _type_annotated_arguments),
    "loop bounds": (_loop_bounds_are_right, _mend_loop_bounds),
    "cost of device functions": (_patching_is_done_once, _patch_once),
    "cost of types": (_types_are_remembered, _remember_types),
    "cost of integer operations": (_overflow_is_ignored, _ignore_overflow),
}
