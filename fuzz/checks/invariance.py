"""Checks that call the kernel under test once more, with something changed that must not matter, or that must.

Results are compared bit by bit where the kernel promises repeatable bits, otherwise each must lie in the bound.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fuzz.build import poison_anew
from fuzz.checks.finding import Verdict
from fuzz.checks.results import call, call_captured, result_buffers
from fuzz.checks.storage import copy_of
from fuzz.checks.trial import Trial, different_bits, plain, renew
from fuzz.strata.poison import POISONS


def repeatable(trial: Trial) -> Verdict:
    """The same call again."""
    return trial.same("repeatable", "the same call again", call(trial.target, trial.inputs, trial.case))


def page_invariant(trial: Trial) -> Verdict | None:
    """All pages renamed: the cache permuted, and kv_indices with it."""
    inputs = trial.inputs
    generator = torch.Generator().manual_seed(trial.draw("page-invariant", 1 << 62))
    name_of = torch.randperm(inputs.num_pages, generator=generator).to(inputs.device)
    pages = inputs.kv_indices.long()
    exists = (pages >= 0) & (pages < inputs.num_pages)
    renamed = copy_of(inputs)
    for cache, moved in ((inputs.ckv_cache, renamed.ckv_cache), (inputs.kpe_cache, renamed.kpe_cache)):
        moved[name_of] = cache
    renamed.kv_indices[exists] = name_of[pages[exists]].to(renamed.kv_indices.dtype)
    return trial.same("page-invariant", "pages renamed", call(trial.target, renamed, trial.case))


def batch_invariant(trial: Trial) -> Verdict | None:
    """One request of the batch alone, its results as far apart as in the batch: a kernel may go by strides."""
    inputs = trial.inputs
    lengths = inputs.qo_indptr.long().diff()
    owners = lengths.nonzero()[:, 0]
    if inputs.batch < 2 or not owners.numel():
        return None
    request = int(owners[trial.draw("batch-invariant", owners.shape[0])])
    rows = slice(*inputs.qo_indptr[request : request + 2].tolist())
    keys = slice(*inputs.kv_indptr[request : request + 2].tolist())
    alone = replace(
        inputs,
        q_nope=inputs.q_nope[rows],
        q_pe=inputs.q_pe[rows],
        qo_indptr=inputs.qo_indptr[request : request + 2] - rows.start,
        kv_indptr=inputs.kv_indptr[request : request + 2] - keys.start,
        kv_indices=inputs.kv_indices[keys],
    )
    here = trial.results.rows(rows)
    verdict = Verdict(trial.case)
    buffers = tuple(buffer[rows] for buffer in result_buffers(trial.target, inputs, trial.case))
    there = call(trial.target, alone, trial.case, buffers)
    finding = different_bits("batch-invariant", f"request {request} alone", here, there, None)
    verdict.add("batch-invariant", finding and finding.moved(rows.start))
    return verdict


def dead_content(trial: Trial) -> Verdict:
    """Other content in the pages and rows that no request owns."""
    case = trial.generated
    names = [name for name in POISONS if name != case.poison]
    if "nan-contained" not in trial.contract:
        names = [name for name in names if POISONS[name].finite]
    poison = names[trial.draw("dead-content", len(names))]
    other = copy_of(trial.inputs)
    poison_anew(other, replace(case, poison=poison))
    return trial.same("dead-content", f"dead pages hold {poison}", call(trial.target, other, trial.case))


def causality(trial: Trial) -> Verdict | None:
    """Other keys from some position of a request on: rows that do not see it must not change."""
    inputs = trial.inputs
    q_len, kv_len = inputs.qo_indptr.long().diff(), inputs.kv_indptr.long().diff()
    able = ((q_len > 1) & (kv_len > 0)).nonzero()[:, 0]
    if not able.numel():
        return None
    request = int(able[trial.draw("causality request", able.shape[0])])
    prefix = int(kv_len[request] - q_len[request])
    first = max(prefix + 1, 0)
    cut = first + trial.draw("causality cut", int(kv_len[request]) - first)
    start = int(inputs.kv_indptr[request])
    future = torch.arange(inputs.num_kv_indices, device=inputs.device)
    future = (future >= start + cut) & (future < start + int(kv_len[request]))
    pages = inputs.kv_indices.long()
    live = torch.arange(inputs.num_kv_indices, device=inputs.device) < inputs.kv_indptr[-1]
    exists = (pages >= 0) & (pages < inputs.num_pages)
    shared = pages[live & exists & ~future]
    changed = pages[future & exists].unique()
    changed = changed[~torch.isin(changed, shared)]
    if not changed.numel():
        return None
    after = copy_of(inputs)
    for cache in (after.ckv_cache, after.kpe_cache):
        cache[changed] = (2 - cache[changed].float().clamp(-2, 2)).nan_to_num(1.0).to(cache.dtype)
    q_start = int(inputs.qo_indptr[request])
    rows = torch.ones(inputs.total_q, dtype=torch.bool, device=inputs.device)
    rows[q_start + cut - prefix : q_start + int(q_len[request])] = False
    results = call(trial.target, after, trial.case)
    return trial.same("causality", f"keys of request {request} from {cut} on changed", results, rows)


def fresh(trial: Trial) -> Verdict:
    """New values in the same buffers."""
    target, inputs = trial.on_device()
    call(target, inputs, trial.case)
    given = replace(inputs, sm_scale=renew(inputs, replace(trial.generated, seed=trial.generated.seed ^ 1)))
    results = call(target, given, trial.case)
    home = copy_of(given, trial.inputs.device)
    return trial.numbers("fresh", "new values in the same buffers", home, results)


def side_stream(trial: Trial) -> Verdict | None:
    """The call on a side stream, behind a slow copy of its queries: a kernel on another stream reads them too early."""
    if trial.device.type != "cuda" or not trial.inputs.total_q:
        return None
    target, inputs = trial.on_device()
    q_nope = plain(inputs.q_nope).clone()
    plain(inputs.q_nope).fill_(1)
    torch.cuda.synchronize(trial.device)
    with torch.cuda.device(trial.device), torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(_PRODUCER_CYCLES)
        plain(inputs.q_nope).copy_(q_nope)
        results = call(target, inputs, trial.case)
    return trial.same("side-stream", "on a side stream", results)


def graph(trial: Trial) -> Verdict | None:
    """The call captured in a CUDA graph and replayed with new values in the same buffers."""
    if trial.device.type != "cuda" or not trial.inputs.total_q:
        return None
    target, inputs = trial.on_device()
    call(target, inputs, trial.case)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.device(trial.device):
        results = call_captured(target, inputs, trial.case, captured)
        renew(inputs, replace(trial.generated, seed=trial.generated.seed ^ 1))
        captured.replay()
        torch.cuda.synchronize()
    home = copy_of(inputs, trial.inputs.device)
    return trial.numbers("graph", "a graph replayed with new values", home, results)


def other_device(trial: Trial) -> Verdict | None:
    """The call while another GPU is the current device."""
    if trial.device.type != "cuda" or torch.cuda.device_count() < 2:
        return None
    target, inputs = trial.on_device()
    with torch.cuda.device((inputs.device.index + 1) % torch.cuda.device_count()):
        results = call(target, inputs, trial.case)
    return trial.same("other-device", "with another GPU current", results)


# About 0.5 ms: a kernel that does not wait for its producer has long finished by then.
_PRODUCER_CYCLES = 1_000_000


@dataclass(frozen=True)
class Invariance:
    """A check that calls the kernel again.

    promise  what it rests on
    copies   whether it copies the cache
    rebuilds whether it builds operands from the case, so that there must be one
    one_in   one case in so many draws it
    """

    promise: str
    copies: bool
    check: Callable[[Trial], Verdict | None]  # None: the case has nothing to change
    rebuilds: bool = False
    one_in: int = 6


INVARIANCES = {
    "repeatable": Invariance("repeatable", False, repeatable),
    "page-invariant": Invariance("page-invariant", True, page_invariant),
    # In every case, though that costs a fifth of the cases that the interpreter gets through (docs/mutants.md): what it
    # shows depends on which request is computed again.
    "batch-invariant": Invariance("batch-invariant", False, batch_invariant, one_in=1),
    "dead-content": Invariance("base", True, dead_content, rebuilds=True),
    "causality": Invariance("base", True, causality),
    "fresh": Invariance("base", True, fresh, rebuilds=True),
    "side-stream": Invariance("stream-ordered", True, side_stream),
    "graph": Invariance("stream-ordered", True, graph, rebuilds=True),
    "other-device": Invariance("stream-ordered", False, other_device),
}
