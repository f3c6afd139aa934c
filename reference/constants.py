"""How exactly a machine computes: the constants of the error bound, from one table per architecture and GPU.

All are in units of u = 2^-24, the unit roundoff of float32. `constants.json` says where each entry comes from: a GPU
that was measured (`python -m reference.measure`) has its own entry with figures and date, next come the documented
limits of its architecture, and whatever is unknown gets the widest figures. A figure measured over all inputs is exact
for the compiler and GPU at hand; a tenth is added for other versions of either.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

UNIT = 2.0**-24
TABLE = Path(__file__).with_name("constants.json")


@dataclass(frozen=True, slots=True)
class Constants:
    """Accuracy of one machine's float32 arithmetic; kappa and the next four fields bound errors for every input."""

    architecture: str  # "sm_90", "cpu", "unknown"
    gpu: str | None  # the GPU that was measured, None for what documents say of the architecture
    kappa: float  # a sum of n products of 16-bit floats errs by at most kappa * n * u * sum |product|
    instruction_keys: int  # products that one tensor core instruction adds up before it truncates
    exp2: float  # relative error of exp2, in u; exact at 0
    log2: float  # error of log2(x) over max(1, |log2(x)|), in u
    division: float  # relative error of a quotient, in u
    source: str


@cache
def table() -> tuple[Constants, ...]:
    """All entries of constants.json."""
    fields = Constants.__slots__
    return tuple(Constants(**{name: entry[name] for name in fields}) for entry in json.loads(TABLE.read_text()))


def constants_for(device: torch.device) -> Constants:
    """The constants for a kernel that gets its operands on `device`.

    CPU operands may be computed by the interpreter or on the current GPU, where there is one: the wider of the two.
    """
    if device.type == "cuda":
        return of_gpu(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
    cpu = next(entry for entry in table() if entry.architecture == "cpu")
    if not torch.cuda.is_available():
        return cpu
    return wider(cpu, of_gpu(torch.cuda.get_device_name(), torch.cuda.get_device_capability()))


def of_gpu(name: str, capability: tuple[int, int]) -> Constants:
    """The entry of a GPU by name, else that of its architecture, else "unknown"."""
    architecture = f"sm_{capability[0]}{capability[1]}"
    entries = {(entry.architecture, entry.gpu): entry for entry in table()}
    return entries.get((architecture, name)) or entries.get((architecture, None)) or entries["unknown", None]


def wider(a: Constants, b: Constants) -> Constants:
    """Constants that hold on both machines."""
    return Constants(
        architecture=f"{a.architecture} or {b.architecture}",
        gpu=a.gpu or b.gpu,
        kappa=max(a.kappa, b.kappa),
        instruction_keys=min(a.instruction_keys, b.instruction_keys),
        exp2=max(a.exp2, b.exp2),
        log2=max(a.log2, b.log2),
        division=max(a.division, b.division),
        source=f"{a.source}; {b.source}",
    )
