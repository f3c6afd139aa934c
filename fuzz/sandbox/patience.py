"""How long a call may take before it is taken for a hang."""

from kernel.contract import Inputs

LOADING = 300.0  # seconds: some kernels are compiled while they are imported
# Seconds of a call. On a GPU it may compile and tune the kernel for a new shape.
_USUAL = {"cpu": 30.0, "cuda": 120.0}
# Seconds more for each tile of 4 queries x 64 keys in Triton's interpreter, where a kernel with one query and head in
# each program takes that long.
_PER_TILE = 5.0
_MOST = 240.0  # before `fuzz.watch.HANG_SECONDS`, after which the worker itself is replaced
# Once a call has hung, no other gets more than that, or so many times what the slowest call took that returned: a
# search for a smaller case runs many that hang.
_SHORTEST = 5.0
_SLOWER = 20.0
# A verdict has several calls in it, and the reference.
_VERDICT = 60.0


class Patience:
    """The limits of one kernel, which depend on what its calls took so far."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._slowest = 0.0
        self._has_hung = False

    def call(self, inputs: Inputs) -> float:
        """Seconds that a call with these operands may take."""
        return self._limit(_tiles(inputs) * _PER_TILE if self._device == "cpu" else 0.0)

    def verdict(self) -> float:
        """Seconds that all calls and checks of a case may take together."""
        return self._limit(_VERDICT)

    def took(self, seconds: float) -> None:
        """A call returned after so long."""
        self._slowest = max(self._slowest, seconds)

    def hung(self) -> None:
        """A call did not return."""
        self._has_hung = True

    def _limit(self, more: float) -> float:
        if self._has_hung:
            return min(_MOST, max(_SHORTEST, _SLOWER * self._slowest))
        return min(_MOST, max(_USUAL[self._device] + more, _SLOWER * self._slowest))


def _tiles(inputs: Inputs) -> int:
    """Tiles of 4 queries x 64 keys; none for requests whose offsets are garbage."""
    queries, keys = (offsets.long().diff() for offsets in (inputs.qo_indptr, inputs.kv_indptr))
    valid = (queries >= 0) & (queries <= inputs.total_q) & (keys >= 0) & (keys <= inputs.kv_indices.numel())
    return int((-(-queries // 4) * -(-keys // 64))[valid].sum())
