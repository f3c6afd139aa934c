"""Gluon on Triton's CPU interpreter, as far as kernels of warpgroups for Hopper need it.

`interpreted` makes of a `gluon.jit` function one that is launched as Triton's interpreted kernels are, from the source
that the GPU's compiler gets. Layouts mean nothing here. How warpgroups share memory is checked: warpgroups.py.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from .warpgroups import MARK, Barrier, Copy, Product, Region, SharedMemoryError, Team, assigned, position

_WARPGROUP = 128  # threads, each of which arrives after its copies


def interpreted(kernel: JITFunction[Any]) -> interpreter.InterpretedFunction[Any]:
    """The kernel as an interpreted one: `interpreted(kernel)[(programs,)](*arguments, **constants)`, on CPU tensors.

    Raises NotImplementedError, at the latest when it runs, where it uses Gluon that is not known here.
    """
    # By identity: its hash is of its source and of all that this names.
    if id(kernel) not in _interpreted:
        _interpreted[id(kernel)] = kernel, _translated(kernel)
    return _interpreted[id(kernel)][1]


_interpreted: dict[int, tuple[JITFunction[Any], interpreter.InterpretedFunction[Any]]] = {}


def _translated(kernel: JITFunction[Any]) -> interpreter.InterpretedFunction[Any]:
    """From the names of the kernel's module, with what is Gluon's replaced by what is defined here."""
    names = kernel.fn.__globals__
    translated: dict[str, Any] = {name: _replacement(value) for name, value in names.items()}
    translated[MARK] = True
    translated["tl"] = tl  # the interpreter patches what it finds of the language
    for name, value in names.items():
        if isinstance(value, JITFunction):
            translated[name] = _rewritten(value, translated)
    launched = interpreter.InterpretedFunction(translated[kernel.fn.__name__])
    launched.rewritten_fn[launched.fn] = launched.fn
    return launched


def _replacement(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else _REPLACED.get(id(value), value)


def _rewritten(function: JITFunction[Any], names: dict[str, Any]) -> Callable[..., Any]:
    """A function as the interpreter takes it, with other globals."""
    body = types.FunctionType(function.fn.__code__, names, function.fn.__name__, function.fn.__defaults__)
    rewritten: Callable[..., Any] = interpreter.FunctionRewriter(body).rewrite_ast()
    rewritten.__annotations__ = function.fn.__annotations__
    return rewritten


@dataclass(eq=False)
class Shared:
    """Shared memory, or a part or another order of it: a region for each first index."""

    array: np.ndarray
    dtype: tl.dtype
    regions: list[Region]
    barrier: Barrier | None = None

    def index(self, nth: Any) -> Shared:
        nth = int(nth)
        return Shared(self.array[nth], self.dtype, self.regions[nth : nth + 1])

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.array.transpose(order), self.dtype, self.regions)

    def load(self, _layout: Any = None) -> tl.tensor:
        for region in self.regions:
            region.read(_team().current)
        return _tensor(self.array.copy(), self.dtype)

    def store(self, value: tl.tensor) -> None:
        for region in self.regions:
            _team().write(region, landed=True)
        self.array[...] = value.handle.data


@dataclass(eq=False)
class Pending:
    """What products that may be in flight will give."""

    value: tl.tensor
    products: list[Product]


class Result(tl.tensor):  # type: ignore[misc]  # Triton has no types
    """What products have given."""

    def __init__(self, pending: Pending) -> None:
        super().__init__(pending.value.handle, pending.value.type)
        self._products = pending.products

    @property
    def handle(self) -> Any:
        for product in self._products:
            product.use()
        return self._handle

    @handle.setter
    def handle(self, handle: Any) -> None:
        self._handle = handle


def _tensor(data: np.ndarray, dtype: tl.dtype) -> tl.tensor:
    return tl.core.tensor(interpreter.TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))


_running: list[Team] = []


def _team() -> Team:
    return _running[-1] if _running else _ALONE


_ALONE = Team(["the kernel"], 0)


def _allocate(dtype: tl.dtype, shape: Sequence[int], _layout: Any) -> Shared:
    lengths = [int(length) for length in shape]
    array = np.empty(lengths, interpreter._get_np_dtype(dtype))
    _spoil(array, dtype)
    name = assigned()
    return Shared(array, dtype, [Region(name) for _ in range(lengths[0])])


def _spoil(array: np.ndarray, dtype: tl.dtype) -> None:
    """NaN, or a number that shows."""
    if dtype.is_bf16():
        array[...] = 0x7FFF
    else:
        array[...] = np.nan if dtype.is_floating() else 0x55555555


def _specialize(tasks: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], _warps: Any, _registers: Any) -> None:
    program, _, _ = interpreter.interpreter_builder.grid_idx
    team = Team([function.__name__.strip("_") for function, _ in tasks], program)
    _running.append(team)
    try:
        team.run([functools.partial(function, *arguments) for function, arguments in tasks])
    finally:
        _running.pop()


def _copy(place: Shared, pointers: tl.tensor) -> None:
    me = _team().current
    values = tl.load(pointers).handle.data
    for region in place.regions:
        _team().write(region, landed=False)
        me.copies.append(Copy(region, place.array, values))
    _spoil(place.array, place.dtype)


def _copies_arrive(barrier: Shared, increment_count: bool = True) -> None:
    if increment_count:
        raise NotImplementedError("async_copy.mbarrier_arrive: only with increment_count=False")
    _team().arrive_after_copies(_barrier(barrier), _WARPGROUP)


def _init(barrier: Shared, count: int) -> None:
    barrier.barrier = Barrier(int(count))


def _barrier(barrier: Shared) -> Barrier:
    if barrier.barrier is None:
        raise SharedMemoryError(f"a barrier that was not initialised: {position()}")
    return barrier.barrier


def _arrive(barrier: Shared, *, count: int = 1, pred: Any = True) -> None:
    if pred:
        _team().arrive(_barrier(barrier), int(count))


def _wait(barrier: Shared, phase: Any, pred: Any = True) -> None:
    if pred:
        _team().wait(_barrier(barrier), int(phase))


def _multiply(
    a: Shared | tl.tensor, b: Shared, acc: Pending | tl.tensor, *, use_acc: bool = True, is_async: bool = False
) -> Pending | tl.tensor:
    me = _team().current
    product = Product(me)
    for one in (a, b):
        for region in one.regions if isinstance(one, Shared) else ():
            region.multiply(product)
    me.flying.append(product)
    factors = [_tensor(one.array, one.dtype) if isinstance(one, Shared) else one for one in (a, b)]
    earlier = acc if isinstance(acc, Pending) else Pending(acc, [])
    if use_acc:
        pending = Pending(tl.dot(*factors, acc=earlier.value), [product, *earlier.products])
    else:
        pending = Pending(tl.dot(*factors), [product])
    return pending if is_async else _wait_products(0, [pending])


def _wait_products(num_outstanding: int = 0, deps: Sequence[Pending] = ()) -> tl.tensor:
    me = _team().current
    over = me.flying[: max(len(me.flying) - int(num_outstanding), 0)]
    me.flying = me.flying[len(over) :]
    for product in over:
        product.ended = me.clock[me.index]
    (pending,) = deps
    if any(product.ended is None for product in pending.products):
        raise SharedMemoryError(f"{me.name} takes a product that is still in flight: {position()}")
    return Result(pending)


class _Language:
    """`triton.experimental.gluon.language`: layouts are dropped, and the rest is Triton's."""

    allocate_shared_memory = staticmethod(_allocate)
    warp_specialize = staticmethod(_specialize)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Layout"):
            return getattr(gl, name)
        if name in _SAME:
            return getattr(tl, name)
        raise NotImplementedError(f"gluon.language.{name} is not known to the interpreter of Gluon")

    @staticmethod
    def arange(start: int, end: int, layout: Any = None) -> tl.tensor:
        return tl.arange(start, end)

    @staticmethod
    def full(shape: Sequence[int], value: Any, dtype: tl.dtype, layout: Any = None) -> tl.tensor:
        return tl.full(shape, value, dtype)

    @staticmethod
    def zeros(shape: Sequence[int], dtype: tl.dtype, layout: Any = None) -> tl.tensor:
        return tl.zeros(shape, dtype)

    @staticmethod
    def convert_layout(value: tl.tensor, layout: Any) -> tl.tensor:
        return value

    @staticmethod
    def multiple_of(value: tl.tensor, values: Sequence[int]) -> tl.tensor:
        """Checked: of a pointer, in bytes."""
        if np.any(value.handle.data % values[0]):
            raise ValueError(f"what is said to be a multiple of {values[0]} is not: {position()}")
        return value

    @staticmethod
    def inline_asm_elementwise(asm: str, *_: Any, **__: Any) -> tl.tensor:
        if not asm.split(";")[-2].strip().startswith("mov.b32 $0, 0"):
            raise NotImplementedError(f"assembly that is not known to the interpreter of Gluon: {asm}")
        return _tensor(np.zeros(1, np.int32), tl.int32)


_SAME = frozenset(
    (
        "int32", "int64", "uint32", "float32", "constexpr", "pointer_type", "static_range", "program_id",
        "num_programs", "load", "store", "where", "maximum", "minimum", "max", "min", "sum", "abs", "exp2", "log2",
        "cdiv",
    )
)  # fmt: skip
_REPLACED: dict[int, Any] = {
    id(gl): _Language(),
    id(async_copy): types.SimpleNamespace(mbarrier_arrive=_copies_arrive),
    id(hopper.mbarrier): types.SimpleNamespace(
        init=_init, arrive=_arrive, wait=_wait, MBarrierLayout=hopper.mbarrier.MBarrierLayout
    ),
    id(hopper.fence_async_shared): lambda: _team().fence(),
    id(hopper.warpgroup_mma): _multiply,
    id(hopper.warpgroup_mma_wait): _wait_products,
    # As Triton 3.6 and later versions call them.
    **{id(getattr(gl, name)): lambda: None for name in ("barrier", "thread_barrier") if hasattr(gl, name)},
    **{
        id(getattr(async_copy, name)): _copy
        for name in ("async_copy_global_to_shared", "async_load")
        if hasattr(async_copy, name)
    },
}
