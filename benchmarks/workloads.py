"""The 44 workloads with what each peer takes on an H200, and tensors for them."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from kernel.contract import CKV_DIM, KPE_DIM, NUM_HEADS, Inputs

NUM_PAGES = 989_669
SM_SCALE = 0.13523
_PEERS_FILE = Path(__file__).with_name("h200.json")


@dataclass(frozen=True)
class Workload:
    """Lengths of one call; `gflop`, `roof_us` and `peers_us` (microseconds by peer) as measured in h200.json."""

    name: str
    qo_lens: list[int]
    kv_lens: list[int]
    gflop: float
    roof_us: float
    peers_us: dict[str, float]


def load_workloads() -> list[Workload]:
    rows = json.loads(_PEERS_FILE.read_text())["rows"]
    return [Workload(r["name"], r["qo_lens"], r["kv_lens"], r["gflop"], r["roof_us"], r["us"]) for r in rows]


@dataclass(frozen=True)
class Cache:
    """A KV cache of random pages that all workloads share, and an order in which they are handed out."""

    ckv: torch.Tensor
    kpe: torch.Tensor
    order: torch.Tensor

    @classmethod
    def random(cls, device: torch.device, generator: torch.Generator) -> "Cache":
        def normal(width: int) -> torch.Tensor:
            return torch.randn(NUM_PAGES, 1, width, device=device, generator=generator, dtype=torch.bfloat16)

        order = torch.randperm(NUM_PAGES, device=device, generator=generator).to(torch.int32)
        return cls(normal(CKV_DIM), normal(KPE_DIM), order)


def build(workload: Workload, cache: Cache, generator: torch.Generator) -> Inputs:
    """Operands of a workload with random queries over a slice of the cache's pages."""
    device, total_q = cache.ckv.device, sum(workload.qo_lens)

    def indptr(lengths: list[int]) -> torch.Tensor:
        return torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)

    def normal(width: int) -> torch.Tensor:
        return torch.randn(total_q, NUM_HEADS, width, device=device, generator=generator, dtype=torch.bfloat16)

    return Inputs(
        normal(CKV_DIM), normal(KPE_DIM), cache.ckv, cache.kpe,
        indptr(workload.qo_lens), indptr(workload.kv_lens), cache.order[: sum(workload.kv_lens)], SM_SCALE,
    )  # fmt: skip


def sample_rows(inputs: Inputs, count: int, generator: torch.Generator) -> tuple[torch.Tensor, Inputs]:
    """Indices of `count` query rows, the last of each request first, and inputs with each as a request of its own."""
    qo, kv = inputs.qo_indptr.long(), inputs.kv_indptr.long()
    drawn = torch.randint(inputs.total_q, (count,), device=qo.device, generator=generator)
    rows = torch.cat([qo[1:] - 1, drawn])[:count]
    request = torch.searchsorted(qo, rows, right=True) - 1
    seen = (kv[request + 1] - kv[request]) - (qo[request + 1] - rows) + 1
    pages = [inputs.kv_indices[start : start + n] for start, n in zip(kv[request].tolist(), seen.tolist(), strict=True)]
    ends = torch.nn.functional.pad(seen.cumsum(0), (1, 0))
    return rows, Inputs(
        inputs.q_nope[rows], inputs.q_pe[rows], inputs.ckv_cache, inputs.kpe_cache,
        torch.arange(count + 1, device=qo.device, dtype=torch.int32), ends.int(), torch.cat(pages), inputs.sm_scale,
    )  # fmt: skip
