"""Ray, as far as a run needs it: hosts on its nodes, and their answers as they come. Nothing else imports Ray."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuzz.cluster.host import Host
from fuzz.machine import WORKERS_PER_GPU, choose_device
from fuzz.options import UsageError

LOCAL = "local"
CONNECT_SECONDS = 5.0
LOCAL_MEMORY = 128 << 20  # bytes of the object store of a cluster made here; it holds no more than some news


class Lost(Exception):
    """A host is gone, or what it was asked to do failed there; the message says why."""


class Engine:
    """A connection to a cluster.

    device     "cpu" or "cuda", what all hosts run on
    processes  worker processes of a shard: as many cores as its host has, and a GPU on "cuda"
    """

    def __init__(self, address: str, device: str, workers: int | None) -> None:
        """Connect to the cluster at an address, or make one; `workers` is the most processes at a time.

        Raises:
            UsageError: Ray is not installed, the cluster does not answer, or it has nothing to run on.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address == LOCAL:
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # it stays on the loopback address
        try:
            import ray
        except ImportError:
            raise UsageError("--ray needs the package ray, of the extra mla-fuzz[cluster]") from None
        self._ray = ray
        _connect(ray, address)
        self._workers = workers
        self.device = choose_device(device, ["GPU"] * any(node.get("GPU") for node in self._nodes()))
        self.processes = processes(self._nodes(), self.device, workers)
        if not self.slots():
            needs = f"{self.processes} CPU" + " and a GPU" * (self.device == "cuda")
            raise UsageError(f"--ray {address}: no node has {needs}")
        self._host = ray.remote(num_cpus=self.processes, num_gpus=int(self.device == "cuda"), max_restarts=0)(Host)

    def slots(self) -> int:
        """How many hosts there is room for, now that some nodes may have come or gone."""
        return room(self._nodes(), self.device, self.processes, self._workers)

    def hire(self) -> Any:
        """A new host, as soon as a node has room for it."""
        return self._host.remote()

    def fire(self, host: Any) -> None:
        """End a host and what it runs."""
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(host)

    def ready(self, answers: Iterable[Any], seconds: float) -> list[Any]:
        """Those of the answers that have come, after some seconds at most."""
        answers = list(answers)
        if not answers:
            time.sleep(seconds)
            return []
        self._ray.wait(answers, num_returns=1, timeout=seconds)
        come: list[Any] = self._ray.wait(answers, num_returns=len(answers), timeout=0)[0]
        return come

    def value(self, answer: Any) -> Any:
        """An answer that has come. Raises Lost."""
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            raise Lost(str(error).strip().splitlines()[-1]) from error

    def close(self) -> None:
        """Leave the cluster; one that was made here ends."""
        self._ray.shutdown()

    def _nodes(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]


def processes(nodes: Sequence[Mapping[str, float]], device: str, workers: int | None) -> int:
    """Processes of a shard: one, or those that share a GPU, as many as the node has that has the fewest cores for each.

    nodes    CPU and GPU of each
    workers  the most processes in the cluster, or None
    """
    if device == "cpu":
        return 1
    cores = min(int(node.get("CPU", 0) // node["GPU"]) for node in nodes if node.get("GPU"))
    return max(1, min(cores, WORKERS_PER_GPU, workers or WORKERS_PER_GPU))


def room(nodes: Sequence[Mapping[str, float]], device: str, processes: int, workers: int | None) -> int:
    """How many shards of so many processes the nodes can have at a time."""
    there = 0
    for node in nodes:
        here = int(node.get("CPU", 0)) // processes
        there += here if device == "cpu" else min(here, int(node.get("GPU", 0)))
    return there if workers is None else min(there, max(1, workers // processes))


def _connect(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == LOCAL:
            ray.init(address="local", include_dashboard=False, object_store_memory=LOCAL_MEMORY, **quiet)
            return
        _require_listener(ray, address)
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        hint = "" if "RAY_AUTH_MODE" in os.environ else " (where clusters have tokens, set RAY_AUTH_MODE=token)"
        raise UsageError(f"--ray {address}: {str(error).strip().splitlines()[0]}{hint}") from error


def _require_listener(ray: Any, address: str) -> None:
    """Raise OSError where nobody listens: Ray itself would try for minutes."""
    if address == "auto":
        address = ray._private.services.canonicalize_bootstrap_address(address) or ""
        if not address:
            raise ConnectionError("no cluster was started on this machine (ray start)")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("not an address; write HOST:PORT, auto or local")
    socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
