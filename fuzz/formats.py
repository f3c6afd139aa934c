"""Which tensors the files of a dump hold, known from the case alone."""

from __future__ import annotations

import math

import torch

from fuzz.case import Case
from fuzz.strata.layouts import INDEX_DTYPES
from fuzz.strata.pages import PAGES
from fuzz.tensorfile import Wanted
from kernel.contract import CKV_DIM, KPE_DIM, NUM_HEADS, PAGE_SIZE

RESULTS = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)


def inputs_of(case: Case) -> dict[str, Wanted]:
    """inputs.safetensors: the operands; sm_scale is a float64 without dimensions."""
    values = (getattr(torch, case.dtype),)
    qo_indptr, kv_indptr, kv_indices = INDEX_DTYPES[case.index_dtype].dtypes
    rows, num_pages = rows_of(case), PAGES[case.pages].count(case.total_kv, case.spare_pages)
    return {
        "q_nope": Wanted(values, (rows, NUM_HEADS, CKV_DIM)),
        "q_pe": Wanted(values, (rows, NUM_HEADS, KPE_DIM)),
        "ckv_cache": Wanted(values, (num_pages, PAGE_SIZE, CKV_DIM)),
        "kpe_cache": Wanted(values, (num_pages, PAGE_SIZE, KPE_DIM)),
        "qo_indptr": Wanted((qo_indptr,), (case.batch + 1,)),
        "kv_indptr": Wanted((kv_indptr,), (case.batch + 1,)),
        "kv_indices": Wanted((kv_indices,), (case.total_kv + case.spare_indices,)),
        "sm_scale": Wanted((torch.float64,), ()),
    }


def observed_of(case: Case) -> dict[str, Wanted]:
    """observed.safetensors: a kernel may well give results of another form, or no lse."""
    return {"output": Wanted(RESULTS), "lse": Wanted(RESULTS, optional=True)}


def expected_of(case: Case) -> dict[str, Wanted]:
    """expected.safetensors: the golden result, the error that is allowed before rounding, the interval that follows
    from it, and the observed error before rounding over the allowed one."""
    output, lse = (rows_of(case), NUM_HEADS, CKV_DIM), (rows_of(case), NUM_HEADS)
    exact, stored, ratio = (torch.float64,), (getattr(torch, case.dtype),), (torch.float32,)
    return {
        "output": Wanted(exact, output),
        "output_error": Wanted(exact, output),
        "output_low": Wanted(stored, output),
        "output_high": Wanted(stored, output),
        "output_ratio": Wanted(ratio, output),
        "lse": Wanted(exact, lse),
        "lse_error": Wanted(exact, lse),
        "lse_low": Wanted(exact, lse),
        "lse_high": Wanted(exact, lse),
        "lse_ratio": Wanted(ratio, lse),
    }


def nbytes(tensors: dict[str, Wanted]) -> int:
    """Bytes of tensors whose shapes are known."""
    return sum(max(dtype.itemsize for dtype in one.dtypes) * math.prod(one.shape or ()) for one in tensors.values())


def rows_of(case: Case) -> int:
    return case.total_q + case.padded_rows
