"""Measure a GPU's arithmetic and put it into the table of constants: `python -m reference.measure`.

exp2 and log2 are measured over every float32, division over samples, the products of the tensor cores over inputs that
make them truncate as much as they can. The table keeps the figures with GPU, date and versions; the bound uses those of
exp2 and log2 with a tenth added, and the documented limits of the architecture for the rest, which nothing measured may
exceed. Takes about a minute. Exit status: 0 measured, 1 a documented limit does not hold, 2 no GPU.
"""

import argparse
import datetime
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

from .constants import TABLE, UNIT, Constants, of_gpu

BLOCK = 1024
CHUNK = 2**26  # float32 numbers at a time: about 2 GiB in all
MARGIN = 1.1  # for other versions of the compiler and other GPUs of the same name


@triton.jit
def _apply(x, y, result, count, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    a = tl.load(x + index, mask=mask, other=1.0)
    if OPERATION == "exp2":
        value = tl.exp2(a)
    elif OPERATION == "log2":
        value = tl.log2(a)
    else:
        value = a / tl.load(y + index, mask=mask, other=1.0)
    tl.store(result + index, value, mask=mask)


@triton.jit
def _product(a, b, result, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row, column = tl.arange(0, M), tl.arange(0, N)
    total = tl.zeros([M, N], tl.float32)
    for start in range(0, n, K):
        k = start + tl.arange(0, K)
        left = tl.load(a + row[:, None] * n + k[None, :])
        right = tl.load(b + k[:, None] * N + column[None, :])
        total = tl.dot(left, right, total)
    tl.store(result + row[:, None] * N + column[None, :], total)


def apply(operation: str, x: Tensor, y: Tensor | None = None) -> Tensor:
    """exp2(x), log2(x) or x / y as Triton computes it; float32 [n]."""
    result = torch.empty_like(x)
    grid = (triton.cdiv(len(x), BLOCK),)
    _apply[grid](x, x if y is None else y, result, len(x), OPERATION=operation, BLOCK=BLOCK)
    return result


def product(a: Tensor, b: Tensor) -> Tensor:
    """a [64, n] @ b [n, 64] in one accumulator, 64 terms at a time; float32."""
    result = torch.empty(64, 64, device=a.device)
    _product[(1,)](a, b, result, a.shape[1], M=64, N=64, K=64)
    return result


def floats(start: int, stop: int, device: torch.device) -> Tensor:
    """The float32 numbers with bit patterns start .. stop, of 0 .. 2^32."""
    return torch.arange(start, stop, device=device).to(torch.int32).view(torch.float32)


def exp2_error(x: Tensor) -> float:
    """Worst relative error in u among the x in (-126, 128); inf if wrong below that or not exact at an integer."""
    exact, got = torch.exp2(x.double()), apply("exp2", x).double()
    inside = (x > -126) & (x < 128)
    if not torch.equal(got[inside & (x == x.round())], exact[inside & (x == x.round())]):
        return math.inf
    if ((got - exact).abs() > 2.0**-126)[x <= -126].any():
        return math.inf
    return _largest(((got - exact).abs() / exact)[inside]) / UNIT


def log2_errors(x: Tensor) -> tuple[float, float]:
    """Worst error in u among the normal x: absolute for (0.5, 2), relative for all others."""
    x = x[(x >= 2.0**-126) & (x < math.inf)]
    exact, got = torch.log2(x.double()), apply("log2", x).double()
    near = (x > 0.5) & (x < 2)
    error = (got - exact).abs()
    return _largest(error[near]) / UNIT, _largest((error / exact.abs())[~near]) / UNIT


def division_error(numerator: Tensor, denominator: Tensor) -> float:
    """Worst relative error in u; 0 is exact."""
    exact = numerator.double() / denominator.double()
    error = (apply("division", numerator, denominator).double() - exact).abs()
    return _largest(torch.where(error == 0, 0.0, error / exact.abs())) / UNIT


def dot_error(a: Tensor, b: Tensor) -> float:
    """Worst kappa: error over n u sum |product|."""
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    return _largest((product(a, b).double() - exact).abs() / (a.shape[1] * UNIT * size))


def dot_operands(dtype: torch.dtype, n: int, seeds: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs [64, n], [n, 64]: bell-shaped; all positive; and one large product before many that are cut off.

    The last kind has a first product of 1 and later ones between 2^-19 and 2^-28, above and below the last bit that a
    tensor core keeps of its largest summand, with a different step and different mantissas in each row and column.
    """
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        a, b = torch.randn(64, n, generator=generator), torch.randn(n, 64, generator=generator)
        yield a.to(device, dtype), b.to(device, dtype)
        yield a.abs().to(device, dtype), b.abs().to(device, dtype)
        steps = 2.0 ** -(9 + torch.arange(64) // 8).float()
        fraction = torch.finfo(dtype).eps
        small_a = steps[:, None] * (1 - fraction * torch.randint(0, 8, (64, n), generator=generator))
        small_b = 2.0 ** -torch.randint(10, 13, (n, 64), generator=generator) * (1 - fraction)
        small_a[:, 0], small_b[0] = 1, 1
        yield small_a.to(device, dtype), small_b.to(device, dtype)


def _largest(values: Tensor) -> float:
    """0 of nothing, infinity where there is a NaN."""
    return float(values.nan_to_num(math.inf).max()) if values.numel() else 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured, in u; kappa as a fraction of n u sum |product|."""

    exp2: float
    log2_near_1: float
    log2_elsewhere: float
    division: float
    kappa_bfloat16: float
    kappa_float16: float


def measure(device: torch.device) -> Figures:
    """Measure the current GPU."""
    exp2, near, elsewhere = 0.0, 0.0, 0.0
    for start in range(0, 2**32, CHUNK):
        x = floats(start, start + CHUNK, device)
        exp2 = max(exp2, exp2_error(x))
        errors = log2_errors(x)
        near, elsewhere = max(near, errors[0]), max(elsewhere, errors[1])
    kappa = {
        dtype: max(dot_error(a, b) for n in (576, 4096) for a, b in dot_operands(dtype, n, 20, device))
        for dtype in (torch.bfloat16, torch.float16)
    }
    return Figures(exp2, near, elsewhere, _sampled_division_error(device), kappa[torch.bfloat16], kappa[torch.float16])


def _sampled_division_error(device: torch.device) -> float:
    """Denominators as sums of P are: every float32 from 1 to 2, and random ones up to 2^17; random numerators."""
    generator = torch.Generator(device).manual_seed(0)
    one = 0x3F800000
    worst = 0.0
    for last in (one + 2**23, one + 17 * 2**23):
        bits = torch.randint(one, last, (CHUNK // 4,), device=device, generator=generator)
        numerator = torch.randn(CHUNK // 4, device=device, generator=generator)
        worst = max(worst, division_error(numerator, bits.to(torch.int32).view(torch.float32)))
    every = floats(one, one + 2**23, device)
    return max(worst, division_error(torch.ones_like(every), every))


def entry(figures: Figures, name: str, capability: tuple[int, int]) -> dict[str, object]:
    """The table's entry for a GPU."""
    base = of_gpu("", capability)
    exp2, log2 = (math.ceil(10 * MARGIN * worst) / 10 for worst in (figures.exp2, _log2(figures)))
    constants = replace(
        base,
        architecture=f"sm_{capability[0]}{capability[1]}",
        gpu=name,
        exp2=exp2,
        log2=log2,
        source=f"exp2 and log2 measured over every float32, a tenth added; the rest: {base.source}",
    )
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    rounded = {field: round(value, 3) for field, value in asdict(figures).items()}
    return asdict(constants) | {"measured": rounded | {"date": datetime.date.today().isoformat()} | versions}


def exceeded(figures: Figures, base: Constants) -> list[str]:
    """The documented limits of the architecture that the figures exceed, in words."""
    pairs = {
        "exp2": (figures.exp2, base.exp2),
        "log2": (_log2(figures), base.log2),
        "division": (figures.division, base.division),
        "kappa, bfloat16": (figures.kappa_bfloat16, base.kappa),
        "kappa, float16": (figures.kappa_float16, base.kappa),
    }
    return [f"{name}: measured {got:.3f}, limit {limit}" for name, (got, limit) in pairs.items() if not got <= limit]


def _log2(figures: Figures) -> float:
    return max(figures.log2_near_1, figures.log2_elsewhere)


def store(new: dict[str, object], table: Path) -> None:
    """Put an entry into the table, in place of an earlier one of the same GPU."""
    entries = [old for old in json.loads(table.read_text()) if (old["architecture"], old["gpu"]) != _key(new)]
    table.write_text(json.dumps([*entries, new], indent=2) + "\n")


def _key(entry: dict[str, object]) -> tuple[object, object]:
    return entry["architecture"], entry["gpu"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m reference.measure", description=__doc__.partition("\n")[0])
    parser.add_argument("--table", type=Path, default=TABLE, help="file to update (default: %(default)s)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("reference.measure measures the GPU at hand, and there is none that torch can use", file=sys.stderr)
        return 2
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    figures = measure(torch.device("cuda"))
    if failures := exceeded(figures, of_gpu("", capability)):
        print(f"{name} does not keep the limits of its table entry:", *failures, sep="\n  ", file=sys.stderr)
        return 1
    new = entry(figures, name, capability)
    store(new, options.table)
    print(json.dumps(new, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
