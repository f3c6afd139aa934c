"""Where in the batch a row of the results lies."""

import operator
from dataclasses import replace

from fuzz.checks.finding import Finding
from fuzz.demands import AGAIN
from fuzz.target import Target
from kernel.contract import Inputs

_TILE = 64  # keys; rows that see a multiple of it, one less or one more, are where tile loops go wrong


def owns_rows(inputs: Inputs) -> bool:
    """Whether qo_indptr says which request owns which row, so that results are defined."""
    starts = inputs.qo_indptr.tolist()
    return starts[0] == 0 and starts[-1] <= inputs.total_q and all(map(operator.le, starts, starts[1:]))


def place(inputs: Inputs, finding: Finding, target: Target) -> Finding:
    """The finding with what is known of its row: the request, the query, how many keys it sees, the class, and the
    variant of the kernel."""
    if finding.index is None or finding.check not in _OF_RESULTS or not owns_rows(inputs):
        return finding
    row = finding.index[0]
    finding = replace(finding, variant=target.variant(inputs, row))
    starts, keys = inputs.qo_indptr.tolist(), inputs.kv_indptr.tolist()
    owners = [b for b in range(inputs.batch) if starts[b] <= row < starts[b + 1]]
    if not owners:
        return replace(finding, detail=f"{finding.detail}; row {row} is padding", rows="empty")
    request = owners[0]
    query, q_len, kv_len = (
        row - starts[request],
        starts[request + 1] - starts[request],
        keys[request + 1] - keys[request],
    )
    visible = max(0, min(kv_len - q_len + query + 1, kv_len))
    kind = "interior"
    if visible == 0:
        kind = "empty"
    elif query in (0, q_len - 1) or visible % _TILE in (0, 1, _TILE - 1):
        kind = "boundary"
    where = f"row {row} is query {query} of {q_len} of request {request} and sees {visible} of {kv_len} keys"
    return replace(finding, detail=f"{finding.detail}; {where}", rows=kind)


_OF_RESULTS = AGAIN.keys() | {"output", "lse", "empty-rows", "written"}
