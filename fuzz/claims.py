"""What kernels are held to where the user says nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """The promises of a contract less some (`kernel.contract`), and a numerics profile (`reference.profile`).

    The defaults are those of anyone's kernel.
    """

    contract: str = "definition"
    without: tuple[str, ...] = ()
    profile: str = "default"


OURS = "kernel:run"

# by the spec of --kernel
CLAIMS = {
    OURS: Claim("hardened"),
    "kernel.emulated:run": Claim("hardened"),
    "kernel.portable:run": Claim("hardened"),
    "fuzz.adapters.flashinfer_mla:run": Claim("definition", profile="flashinfer"),
    "fuzz.adapters.sglang_extend:run": Claim("serving", without=("lse", "masked-rows", "padding", "stream-ordered")),
    "fuzz.adapters.torch_sdpa:run": Claim("serving", without=("lse", "stream-ordered")),
    "fuzz.adapters.vllm_flash_mla:run": Claim(
        "serving", without=("padding", "batch-invariant", "stream-ordered"), profile="fast-math"
    ),
    "fuzz.adapters.vllm_triton_mla:run": Claim(
        "serving", without=("masked-rows", "padding", "batch-invariant", "stream-ordered")
    ),
}
