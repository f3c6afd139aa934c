"""Triton's CPU interpreter after `repair`: bfloat16 is right or refused, and NaN behaves as on a GPU."""

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import kernel  # noqa: F401  (switches the interpreter on before Triton is imported)
from kernel import interpreter

import triton  # isort: skip
import triton.language as tl  # isort: skip

interpreted = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="Triton compiles for the GPU here; there is no interpreter to test"
)
BF16, FP32 = torch.bfloat16, torch.float32


def bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)


def from_bits(patterns: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(patterns.astype(np.uint16).view(np.int16)).view(BF16)


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(torch.nan_to_num(got, nan=-1.25), torch.nan_to_num(expected, nan=-1.25))


# Casts

ALL = np.arange(1 << 16, dtype=np.uint32) << 16


@triton.jit
def copy(source, target, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(target + at, tl.load(source + at).to(target.dtype.element_ty))


def cast(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    target = torch.empty(source.shape, dtype=dtype)
    copy[(1,)](source, target, N=source.numel())
    return target


# Every bfloat16, every midpoint to the next one, and the float32 neighbours of both: all ties, carries and overflows.
@interpreted
@pytest.mark.parametrize("offset", [-1, 0, 1, 0x7FFF, 0x8000, 0x8001])
def test_float32_rounds_to_bfloat16_as_in_torch(offset):
    values = torch.from_numpy((ALL + np.uint32(offset & 0xFFFFFFFF)).view(np.float32))
    got, expected = cast(values, BF16), values.to(BF16)
    nan = values.isnan()
    assert torch.equal(got.isnan(), nan)
    np.testing.assert_array_equal(bits(got)[~nan], bits(expected)[~nan])
    np.testing.assert_array_equal(bits(got)[nan], 0x7FFF)


@interpreted
def test_every_bfloat16_becomes_its_float32():
    np.testing.assert_array_equal(cast(from_bits(ALL >> 16), FP32).numpy().view(np.uint32), ALL)


def test_rounding_keeps_shapes_and_follows_strides():
    square = np.arange(64, dtype=np.float32).reshape(8, 8) / 7
    expected = bits(torch.from_numpy(square).to(BF16))
    np.testing.assert_array_equal(interpreter.bfloat16_from_float32(square.T), expected.T)
    assert interpreter.bfloat16_from_float32(np.array(1.0, np.float32)).shape == ()
    brain = np.array([[0x3F80], [0xC000]], np.uint16)
    np.testing.assert_array_equal(interpreter.float32_from_bfloat16(np.broadcast_to(brain, (2, 3)).T), [[1, -2]] * 3)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.uint8])
def test_bfloat16_casts_to_other_types_go_through_float32(dtype):
    values = torch.tensor([0.0, 1.5, 3.140625, 200.0], dtype=BF16)
    assert torch.equal(cast(values, dtype), values.to(dtype))


@interpreted
def test_float16_casts_to_bfloat16():
    values = torch.tensor(
        [1 + 2**-8, 1 + 3 * 2**-8, 65504, 2**-24, -0.0, -math.inf, math.nan, 0.1], dtype=torch.float16
    )
    assert same(cast(values, BF16), values.to(BF16))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64])
def test_casts_to_bfloat16_that_would_round_twice_are_refused(dtype):
    with pytest.raises(Exception, match=r"no bfloat16 cast from (fp64|int32|int64) to bf16"):
        cast(torch.ones(4, dtype=dtype), BF16)


@triton.jit
def round_towards_zero(source, target):
    at = tl.arange(0, 4)
    tl.store(target + at, tl.load(source + at).to(tl.bfloat16, fp_downcast_rounding="rtz"))


@interpreted
def test_other_rounding_modes_are_refused():
    with pytest.raises(Exception, match="no bfloat16 cast from fp32 to bf16 with rounding mode"):
        round_towards_zero[(1,)](torch.ones(4), torch.ones(4, dtype=BF16))


# tl.dot


@triton.jit
def multiply(a, b, c, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TRANSPOSED: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    if TRANSPOSED:
        right = tl.trans(tl.load(b + n[:, None] * K + k[None, :]))
    else:
        right = tl.load(b + k[:, None] * N + n[None, :])
    at = m[:, None] * N + n[None, :]
    tl.store(out + at, tl.dot(left, right, tl.load(c + at)))


def dot(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(c)
    transposed = b.stride(0) == 1
    multiply[(1,)](a, b, c, out, M=a.shape[0], N=b.shape[1], K=a.shape[1], TRANSPOSED=transposed)
    return out


@interpreted
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 512), (64, 512, 64), (16, 16, 16)])
def test_dot_sums_exact_products_in_float32(m, n, k, dtype, transposed):
    random = torch.Generator().manual_seed(k)
    a = torch.randn(m, k, generator=random).to(dtype)
    b = torch.randn(n, k, generator=random).to(dtype).T if transposed else torch.randn(k, n, generator=random).to(dtype)
    c = torch.randn(m, n, generator=random)
    exact = a.double() @ b.double() + c.double()
    # k products and the accumulator: k additions, each within 2^-24 of the sum of magnitudes.
    allowed = (k + 1) * 2.0**-24 * (a.double().abs() @ b.double().abs() + c.double().abs())
    assert ((dot(a, b, c).double() - exact).abs() <= allowed).all()


@interpreted
def test_dot_keeps_non_finite_values_in_their_rows_and_columns():
    a, b, c = torch.ones(64, 64, dtype=BF16), torch.ones(64, 64, dtype=BF16), torch.zeros(64, 64)
    a[3, 60], b[:, 40] = math.nan, 0
    b[1, 7] = math.inf
    a[5, 1] = 0
    expected = torch.full((64, 64), 64.0)
    expected[5] = 63
    expected[:, 40] = 0
    expected[:, 7] = math.inf
    expected[5, 7] = math.nan
    expected[3] = math.nan
    assert same(dot(a, b, c), expected)


# Other operations on bfloat16


@triton.jit
def first(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def compute(source, target, OPERATION: tl.constexpr):
    at = tl.arange(0, 4)
    x = tl.load(source + at)
    y = tl.load(source + 3 - at)
    if OPERATION == "fadd":
        y = x + y
    elif OPERATION == "fsub":
        y = x - y
    elif OPERATION == "fmul":
        y = x * 2.0
    elif OPERATION == "fsub|fneg":
        y = -x
    elif OPERATION == "fabs":
        y = tl.abs(x)
    elif OPERATION == "fma":
        y = tl.fma(x, y, y)
    elif OPERATION == "fcmpOLT":
        y = tl.where(x < y, x, y)
    elif OPERATION == "fcmpOEQ":
        y = tl.where(x == y, x, y)
    elif OPERATION == "ReduceOps with _sum_combine":
        y = tl.sum(x, 0)
    elif OPERATION == "ReduceOps with first":
        y = tl.reduce(x, 0, first)
    elif OPERATION == "ScanOps with first":
        y = tl.associative_scan(x, 0, first)
    elif OPERATION == "atomic_rmw":
        tl.atomic_add(target + at, x)
    tl.store(target + at, y)


@interpreted
@pytest.mark.parametrize(
    "operation",
    ["fadd", "fsub", "fmul", "fsub|fneg", "fabs", "fma", "fcmpOLT", "fcmpOEQ", "atomic_rmw",
     "ReduceOps with _sum_combine", "ReduceOps with first", "ScanOps with first"],
)  # fmt: skip
def test_bfloat16_arithmetic_is_refused_by_name(operation):
    source, target = torch.tensor([1, -2, 3, 0.5], dtype=BF16), torch.zeros(4, dtype=BF16)
    with pytest.raises(Exception, match=f"no bfloat16 ({operation}): cast to float32 first"):
        compute[(1,)](source, target, OPERATION=operation)
    assert torch.equal(target, torch.zeros_like(target))


@triton.jit
def promoted(source, target, OPERATION: tl.constexpr):
    at = tl.arange(0, 4)
    x = tl.load(source + at)
    y = tl.load(source + 3 - at)
    if OPERATION == "maximum":
        y = tl.maximum(x, y)
    elif OPERATION == "minimum":
        y = tl.minimum(x, y)
    elif OPERATION == "max":
        y = tl.max(x, 0)
    elif OPERATION == "min":
        y = tl.min(x, 0)
    elif OPERATION == "divide":
        y = x / y
    elif OPERATION == "bool":
        y = tl.where(x.to(tl.int1), x, 7.0)
    tl.store(target + at, y)


# Triton takes these to float32 by itself, though not each of them in every version.
@interpreted
@pytest.mark.parametrize(
    ("operation", "expected"),
    [("maximum", [1, 3, 3, 1]), ("minimum", [-0.0, -2, -2, -0.0]), ("max", [3] * 4), ("min", [-2] * 4),
     ("divide", [-math.inf, -0.66796875, -1.5, -0.0]), ("bool", [1, -2, 3, 7])],
)  # fmt: skip
def test_operations_that_triton_promotes_are_right_or_refused(operation, expected):
    source, target = torch.tensor([1, -2, 3, -0.0], dtype=BF16), torch.empty(4, dtype=BF16)
    try:
        promoted[(1,)](source, target, OPERATION=operation)
    except Exception as error:
        assert "no bfloat16" in str(error)
    else:
        assert target.tolist() == expected


@triton.jit
def move(source, target, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    at = i * N + j
    tile = target + at
    x = tl.load(source + at)
    tl.store(tile, tl.load(source + at, mask=i < 2, other=0.0))
    tl.store(tile + N * N, tl.load(source + at, mask=i < 2, other=1.5))
    tl.store(tile + 2 * N * N, tl.trans(x))
    tl.store(tile + 3 * N * N, tl.where(i < j, x, 0.0))
    tl.store(tile + 4 * N * N, tl.reshape(tl.reshape(x, [N * N]), [N, N]))
    low, high = tl.split(tl.join(x, tl.trans(x)))
    tl.store(tile + 5 * N * N, low, mask=i < 2)
    tl.store(tile + 5 * N * N, high, mask=i >= 2)
    tl.store(tile + 6 * N * N, tl.broadcast_to(tl.load(source + j), [N, N]))
    tl.store(tile + 7 * N * N, (x.to(tl.uint16, bitcast=True) ^ 0x8000).to(tl.bfloat16, bitcast=True))
    tl.store(tile + 8 * N * N, tl.full([N, N], -2.5, tl.bfloat16))
    tl.store(tile + 9 * N * N, tl.zeros([N, N], tl.bfloat16))


@interpreted
def test_operations_that_only_move_bits_work():
    x = from_bits(np.array([0x7F81, 0xFFC1, 0x0001, 0x8000, 0x7F80, *range(0x3F80, 0x3F8B)]).reshape(4, 4))
    target = torch.empty(10, 4, 4, dtype=BF16)
    move[(1,)](x, target, N=4)
    row = torch.arange(4)[:, None]
    expected = [
        torch.where(row < 2, x, 0.0), torch.where(row < 2, x, 1.5), x.T, torch.where(row < row.T, x, 0.0), x,
        torch.where(row < 2, x, x.T), x[:1].expand(4, 4), from_bits(bits(x) ^ 0x8000),
        torch.full_like(x, -2.5), torch.zeros_like(x),
    ]  # fmt: skip
    np.testing.assert_array_equal(bits(target), bits(torch.stack(expected)))


# NaN, infinities, and functions


@triton.jit
def with_nan(x, y, elementwise, reduced, N: tl.constexpr, ALL: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    b = tl.load(y + at)
    tl.store(elementwise + at, tl.maximum(a, b))
    tl.store(elementwise + N + at, tl.minimum(a, b))
    tl.store(elementwise + 2 * N + at, tl.maximum(a, b, propagate_nan=ALL))
    tl.store(elementwise + 3 * N + at, tl.clamp(a, 0.0, 2.0))
    tl.store(reduced, tl.max(a, 0))
    tl.store(reduced + 1, tl.min(a, 0))
    tl.store(reduced + 2, tl.sum(a, 0))
    tl.store(reduced + 3, tl.max(tl.where(at < N, float("nan"), a), 0))


@interpreted
@pytest.mark.filterwarnings("error")
def test_min_and_max_skip_nan_unless_asked_to_propagate_it():
    nan, inf = math.nan, math.inf
    x, y = torch.tensor([nan, 1.0, nan, -inf]), torch.tensor([1.0, nan, nan, inf])
    elementwise, reduced = torch.empty(4, 4), torch.empty(4)
    with_nan[(1,)](x, y, elementwise, reduced, N=4, ALL=tl.PropagateNan.ALL)
    skipped = [[1.0, 1.0, nan, inf], [1.0, 1.0, nan, -inf], [nan, nan, nan, inf], [0.0, 1.0, 0.0, 0.0]]
    assert same(elementwise, torch.tensor(skipped))
    assert same(reduced, torch.tensor([1.0, -inf, nan, nan]))


@triton.jit
def invalid(source, target):
    at = tl.arange(0, 4)
    x = tl.load(source + at)
    tl.store(target + at, tl.exp2(x - x) + tl.log2(x) + (0.0 * x) / (x - x))


@interpreted
@pytest.mark.filterwarnings("error")
def test_invalid_operations_give_nan_and_no_warning():
    target = torch.empty(4)
    invalid[(1,)](torch.tensor([math.inf, -1.0, 0.0, math.nan]), target)
    assert target.isnan().all()
    with pytest.warns(RuntimeWarning):
        np.log2(np.zeros(1))


@triton.jit
def functions(source, powers, logarithms, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(source + at)
    power = tl.exp2(x)
    tl.store(powers + at, power)
    tl.store(logarithms + at, tl.log2(power))


@interpreted
def test_exp2_and_log2_round_once():
    exponents = torch.cat([torch.arange(-126.0, 128), torch.linspace(-126, 127, (1 << 16) - 254)])
    powers, logarithms = torch.empty_like(exponents), torch.empty_like(exponents)
    functions[(1,)](exponents, powers, logarithms, N=1 << 16)
    assert torch.equal(powers, exponents.double().exp2().float())
    assert torch.equal(logarithms, powers.double().log2().float())
    assert torch.equal(logarithms[:254], exponents[:254])


# Launches


@triton.jit
def double(x):
    return tl.sum(tl.zeros([2], tl.int32) + x, 0)


@triton.jit
def count(limits, target, FAILS: tl.constexpr):
    total = 0
    for i in range(tl.load(limits), tl.load(limits + 1)):
        total += double(i)
    tl.static_assert(not FAILS, "asked to fail")
    tl.store(target, total)


@interpreted
@pytest.mark.filterwarnings("error")
def test_loops_take_bounds_from_memory():
    target = torch.empty(1, dtype=torch.int32)
    count[(1,)](torch.tensor([2, 5]), target, FAILS=False)
    assert target.item() == 2 * (2 + 3 + 4)


@interpreted
def test_language_is_restored_after_every_launch():
    target = torch.zeros(1, dtype=torch.int32)
    for _ in range(2):
        with pytest.raises(Exception, match="asked to fail"):
            count[(1,)](torch.tensor([0, 2]), target, FAILS=True)
        with pytest.raises(ValueError, match="_semantic"):
            tl.arange(0, 4)
        count[(1,)](torch.tensor([0, 3]), target, FAILS=False)
        assert target.item() == 2 * (0 + 1 + 2)


@triton.jit
def wrap(source, target):
    tl.store(target, tl.load(source) + 1)


@interpreted
def test_integers_wrap_as_on_a_gpu():
    target = torch.zeros(1, dtype=torch.int32)
    wrap[(1,)](torch.tensor([2**31 - 1], dtype=torch.int32), target)
    assert target.item() == -(2**31)


@triton.jit
def where_wanted(target, wanted, N: tl.constexpr):
    nth = tl.arange(0, N)
    mask = (nth < 3) & (wanted == 1)
    assert mask.handle.data.dtype == bool
    tl.store(target + nth, nth, mask=mask)


@interpreted
@pytest.mark.parametrize(("wanted", "expected"), [(1, [0, 1, 2, -1]), (0, [-1] * 4)])
def test_a_condition_on_a_scalar_is_a_mask(wanted, expected):
    target = torch.full((4,), -1, dtype=torch.int32)
    where_wanted[(1,)](target, wanted, N=4)
    assert target.tolist() == expected


@triton.jit
def last_offset(target, wide: tl.int64, plain, N: tl.constexpr):
    tl.store(target, tl.max((tl.arange(0, N) * wide).to(tl.int64), 0))
    tl.store(target + 1, tl.max((tl.arange(0, N) * plain).to(tl.int64), 0))


@interpreted
def test_integer_arguments_have_their_annotated_type():
    """A stride of 2^24 is a small number; its product with a column is not."""
    target = torch.zeros(2, dtype=torch.int64)
    last_offset[(1,)](target, 2**24, 2**24, N=512)
    assert target.tolist() == [511 * 2**24, max((i * 2**24 + 2**31) % 2**32 - 2**31 for i in range(512))]


@triton.jit
def many_types(target, N: tl.constexpr, M: tl.constexpr):
    for _ in range(2):  # made anew, and remembered
        few = tl.arange(0, N)
        assert (few.dtype, few.shape, few.numel) == (tl.int32, [N], N)
        assert (few.to(tl.int64).dtype, tl.arange(0, M).shape, few[:, None].shape) == (tl.int64, [M], [N, 1])
        places = target + few
        assert places.dtype == tl.pointer_type(tl.int32)
        assert (few.to(tl.float32) + 0.5).handle.data.dtype == np.float32
        tl.store(places, few)


@interpreted
def test_remembered_types_are_told_apart():
    target = torch.zeros(4, dtype=torch.int32)
    many_types[(2,)](target, N=4, M=8)
    assert target.tolist() == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(ValueError, match="power of 2"):
            tl.block_type(tl.int32, [3])


# Probing


@interpreted
def test_repaired_interpreter_is_left_alone():
    from triton.runtime.interpreter import InterpreterBuilder

    before = dict(vars(InterpreterBuilder))
    assert interpreter.repair() == ()
    assert dict(vars(InterpreterBuilder)) == before


@interpreted
def test_another_copy_of_the_module_finds_nothing_to_repair():
    """A FlashInfer-Bench solution carries one. What a repair did was known by the name of the module that did it."""
    spec = importlib.util.spec_from_file_location("another", interpreter.__file__)
    another = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(another)
    assert another.repair() == () == interpreter.repair()


@interpreted
def test_only_what_is_wrong_is_repaired(monkeypatch):
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def dot_of_patterns(self, a, b, d, input_precision, max_num_imprecise_acc):
        return TensorHandle(np.matmul(a.data, b.data, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    casts = InterpreterBuilder.cast_impl
    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot_of_patterns)
    assert interpreter.repair() == ("bfloat16 dot",)
    assert InterpreterBuilder.create_dot is not dot_of_patterns
    assert InterpreterBuilder.cast_impl is casts


@interpreted
def test_repair_that_does_not_help_is_an_error(monkeypatch):
    monkeypatch.setitem(interpreter._REPAIRS, "weather", (lambda module: False, lambda module: None))
    with pytest.raises(RuntimeError, match="repairing weather in Triton's interpreter did not help"):
        interpreter.repair()


def test_fresh_interpreter_is_repaired_once():
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('interpreter', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(len(module.repair()), len(module.repair()))\n"
    )
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", code, str(Path(interpreter.__file__))]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    first_time, second_time = map(int, result.stdout.split())
    assert first_time > 0
    assert second_time == 0


# Switching the interpreter on


@pytest.mark.parametrize(
    ("devices", "imported", "preset", "expected"),
    [(0, False, None, "1"), (1, False, None, None), (0, True, None, None), (0, False, "0", "0")],
    ids=["no GPU", "GPU", "Triton already imported", "set by the user"],
)
def test_interpreter_is_switched_on_only_without_a_gpu(monkeypatch, devices, imported, preset, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    if not imported:
        monkeypatch.delitem(sys.modules, "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if preset is not None:
        monkeypatch.setenv("TRITON_INTERPRET", preset)
    interpreter.switch_on_without_gpu()
    assert os.environ.get("TRITON_INTERPRET") == expected
