"""A run on a real Ray cluster of three nodes on this machine: the same as a run here, whatever is lost on the way."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzz.journal import Reader
from fuzz.recall import Recall, database
from fuzz.units import CASES
from tests.redis_server import redis_server
from tests.test_plugin import command, environment, events, run, summary

LONGEST = 90.0  # seconds that any run here may take
MEMORY = 80 << 20  # bytes of an object store: the least that Ray takes is 75 MB
# Without the first Ray has its driver look for a cluster on localhost at the machine's outer address.
SETTINGS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
FIXED = {"PRETENDED_UNITS": "2", "PRETENDED_SECONDS": "0.015"}  # processes of the nodes have them from the cluster


class Nodes:
    """A cluster: a head without cores, and nodes with one core each."""

    def __init__(self, count: int, scratch: Path) -> None:
        """`scratch` is where the processes of the nodes have their temporary files."""
        from ray.cluster_utils import Cluster

        self._scratch = scratch
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH}
        self._common = {"object_store_memory": MEMORY, "node_ip_address": "127.0.0.1"}
        self._cluster = Cluster(initialize_head=True, head_node_args=head | self._common)
        self.address = self._cluster.address
        self.nodes = [self._cluster.add_node(wait=False, num_cpus=1, **self._common) for _ in range(count)]
        self._cluster.wait_for_nodes(60)

    def kill(self, node) -> None:
        """End a node as a crash would, with all that runs there."""
        self._cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)

    def add(self) -> None:
        self.nodes.append(self._cluster.add_node(num_cpus=1, **self._common))

    def shards(self) -> list[str]:
        """The directories of shards, and the processes that have them among their arguments."""
        running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
        place = f"{self._scratch}/mla-fuzz-shard-"
        return [line for line in running if place in line] + list(map(str, self._scratch.glob("mla-fuzz-shard-*")))

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="Ray is not installed: the extra mla-fuzz[cluster]")
    with pytest.MonkeyPatch.context() as patch:
        scratch = tmp_path_factory.mktemp("scratch")
        # Ray itself stays where it is: the paths of its sockets must not be long
        places = {"TMPDIR": str(scratch), "RAY_TMPDIR": tempfile.gettempdir()}
        for name, value in (SETTINGS | FIXED | places).items():
            patch.setenv(name, value)
        cluster = Nodes(2, scratch)
        try:
            yield cluster
        finally:
            cluster.close()


def on_cluster(directory: Path, nodes: Nodes, *arguments: str, out: str = "out", **variables: str):
    return run(directory, "run", "--ray", nodes.address, *arguments, out=out, **SETTINGS, **FIXED, **variables)


@contextlib.contextmanager
def started(directory: Path, nodes: Nodes, *arguments: str, cases: int, **variables: str):
    """A run in the background, once that many cases have come to the driver."""
    with (directory / "output").open("w") as output:
        process = subprocess.Popen(
            command(directory, "run", "--ray", nodes.address, *arguments),
            cwd=directory,
            env=environment(**SETTINGS, **FIXED, **variables),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            journal = directory / "out" / "journal"
            wait_for(process, directory, lambda: journal.exists() and len(events(directory, "verdict")) >= cases)
            yield process
        finally:
            process.kill()
            process.wait()


def wait_for(process: subprocess.Popen, directory: Path, condition: Callable[[], object]) -> None:
    until = time.monotonic() + LONGEST
    while not condition():
        assert process.poll() is None and time.monotonic() < until, said(directory)
        time.sleep(0.1)


def in_flight(directory: Path) -> list[dict]:
    """The cases that workers are in, as far as the driver knows."""
    last = {}
    for name, event in Reader(directory / "out" / "journal").new_events():
        last[name] = event
    return [event["case"] for event in last.values() if event["event"] == "case"]


def said(directory: Path) -> str:
    return (directory / "output").read_text()


def results(directory: Path, out: str) -> dict[int, list[str]]:
    """unit -> its cases in order, each with its verdict."""
    units: dict[int, list[tuple[float, str]]] = {}
    for path in (directory / out / "journal").glob("*.jsonl"):
        case: dict = {}
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "case":
                case = event
            elif event["event"] == "verdict" and case["phase"] == "generate":
                told = json.dumps([case["case"], case["strata"], event["ran"], event["findings"]])
                units.setdefault(case["unit"], []).append((case["at"], told))
    return {unit: [told for _, told in sorted(cases)] for unit, cases in units.items()}


def assert_nothing_is_left(nodes: Nodes) -> None:
    """Neither processes of shards nor their directories, after a moment."""
    until = time.monotonic() + 10
    while found := nodes.shards():
        assert time.monotonic() < until, found
        time.sleep(0.1)


OPTIONS = ("--kernel", "wrong:run", "--seed", "5", "--max-cases", str(9 * CASES + 12))


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The results of the same run on this machine alone."""
    directory = tmp_path_factory.mktemp("alone")
    ended = run(directory, "run", *OPTIONS, "-n", "1")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return directory


def assert_same(directory: Path, alone: Path) -> None:
    ours, theirs = summary(directory), summary(alone)
    for name in ("kernel", "contract", "device", "seed", "cases", "strata", "checks", "stopped", "exit_status"):
        assert ours[name] == theirs[name], name
    for name in ("bucket", "check", "stratum"):
        assert [failure[name] for failure in ours["failures"]] == [failure[name] for failure in theirs["failures"]]
    assert results(directory, "out") == results(alone, "out")


def test_a_run_on_a_cluster_is_case_for_case_that_of_one_machine(nodes, tmp_path, alone):
    ended = on_cluster(tmp_path, nodes, *OPTIONS)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "2 shards at a time, 1 workers each" in ended.stdout
    assert_same(tmp_path, alone)
    for failure in summary(tmp_path)["failures"]:
        assert (tmp_path / "out" / failure["path"] / "inputs.safetensors").exists()
    assert (tmp_path / "out" / "report.html").exists() and (tmp_path / "out" / "junit.xml").exists()
    assert_nothing_is_left(nodes)


def test_the_shards_of_a_lost_node_go_on_elsewhere_and_nothing_is_lost_or_done_twice(nodes, tmp_path, alone):
    with started(tmp_path, nodes, *OPTIONS, cases=40) as process:
        nodes.kill(nodes.nodes[0])
        assert process.wait(LONGEST) == 1, said(tmp_path)
    nodes.add()
    told = summary(tmp_path)
    assert_same(tmp_path, alone)
    assert len(told["lost"]) <= 1 and "was lost" in told["warnings"][0]
    assert told["errors"] == [] and told["unfinished"] == []
    assert_nothing_is_left(nodes)


def test_a_driver_that_was_killed_goes_on(nodes, tmp_path, alone):
    with started(tmp_path, nodes, *OPTIONS, cases=70) as process:
        process.kill()
    assert_nothing_is_left(nodes)
    assert not (tmp_path / "out" / "summary.json").exists()
    before = len(events(tmp_path, "verdict"))
    refused = run(tmp_path, "run", "--resume", str(tmp_path / "out"), "--seed", "6", out="out", **SETTINGS)
    assert refused.returncode == 2 and "--seed" in refused.stderr
    ended = subprocess.run(
        command(tmp_path, "run", "--resume", str(tmp_path / "out"))[:-2],
        cwd=tmp_path,
        env=environment(**SETTINGS, **FIXED),
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert len(events(tmp_path, "verdict")) > before
    assert_same(tmp_path, alone)


def test_a_shard_can_be_run_alone(nodes, tmp_path, alone):
    ended = run(tmp_path, "run", *OPTIONS, "--shard", "1/5", "-n", "0")
    assert ended.returncode == 1
    whole = results(alone, "out")
    assert results(tmp_path, "out") == {unit: cases for unit, cases in whole.items() if unit % 5 == 1}


def test_the_case_in_flight_on_a_lost_node_is_flagged_and_an_interrupted_run_says_so(nodes, tmp_path):
    with started(tmp_path, nodes, "--kernel", "hanging:run", "--max-time", "55s", cases=2) as process:
        wait_for(process, tmp_path, lambda: sum(case["x"] > 200 for case in in_flight(tmp_path)) == 2)
        hanging = in_flight(tmp_path)
        nodes.kill(nodes.nodes[0])
        wait_for(process, tmp_path, lambda: events(tmp_path, "lost"))
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST) == 2, said(tmp_path)
    nodes.add()
    told = summary(tmp_path)
    assert told["stopped"] == "interrupted" and told["cases"] >= 2 and told["failures"] == []
    (lost,) = told["lost"]
    assert lost["case"] in hanging and lost["why"].startswith("node ")
    assert f"run again, as {lost['why']}: " in said(tmp_path)
    assert_nothing_is_left(nodes)


def test_max_time_bounds_a_run_on_a_cluster(nodes, tmp_path):
    began = time.monotonic()
    ended = on_cluster(tmp_path, nodes, "--kernel", "right:run", "--max-time", "14s")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert time.monotonic() - began < 14 + 12
    assert summary(tmp_path)["stopped"] == "time limit" and summary(tmp_path)["cases"] > 0


def test_two_drivers_share_a_corpus_and_a_redis_that_dies_ends_neither(nodes, tmp_path):
    with redis_server() as (url, server):
        first, second = tmp_path / "first", tmp_path / "second"
        for directory in (first, second):
            directory.mkdir()
        corpus = Recall("wrong:run", database(url, pytest.fail))
        known = {"x": 101, "y": 0, "kind": "a"}
        corpus.remember("output", known)
        corpus.remember("lse", mended := {"x": 1, "y": 1, "kind": "b"})
        limits = ("--kernel", "wrong:run", "--seed", "6", "--max-cases", "1000", "--database", url, "--workers", "1")
        with started(first, nodes, *limits, cases=3) as one, started(second, nodes, *limits, cases=3) as other:
            assert ("output", known) in corpus.known() and ("lse", mended) not in corpus.known()
            server.kill()
            done = [len(events(directory, "case")) for directory in (first, second)]
            assert (one.wait(LONGEST), other.wait(LONGEST)) == (1, 1), said(first) + said(second)
    assert done[1] < 500  # it has only just begun
    for directory, before in zip((first, second), done, strict=True):
        told = summary(directory)
        assert told["cases"] == 1000 and not (directory / ".hypothesis").exists()
        assert [failure["bucket"] for failure in told["failures"]] == ["lse-boundary+values-b", "output-interior"]
        tried = [event["case"] for event in events(directory, "case") if event["phase"] == "search"]
        assert known in tried[:2]
        # One that was through with its shards by then has no use for the corpus any more.
        assert before >= 500 or told["warnings"][0].startswith(f"--database {url}: ")
    assert results(first, "out") == results(second, "out")


def test_a_cluster_that_dies_is_exit_status_2_and_leaves_what_was_found(nodes, tmp_path):
    limits = ("--kernel", "right:run", "--max-time", "50s")
    with started(tmp_path, nodes, *limits, cases=5, RAY_gcs_rpc_server_reconnect_timeout_s="2") as process:
        nodes.close()  # for good: this is the last test that needs it
        assert process.wait(LONGEST) == 2, said(tmp_path)
    told = summary(tmp_path)
    assert told["cases"] >= 5 and told["exit_status"] == 2 and told["errors"]
    assert_nothing_is_left(nodes)


def test_an_address_where_no_cluster_is_ends_at_once(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: the extra mla-fuzz[cluster]")
    ended = run(tmp_path, "run", "--ray", "127.0.0.1:1", "--kernel", "right:run")
    assert ended.returncode == 2 and "--ray 127.0.0.1:1: " in ended.stderr and "refused" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_without_ray_the_extra_is_named(tmp_path):
    blocker = tmp_path / "sitecustomize.py"
    blocker.write_text("import sys\nsys.modules['ray'] = None\n")
    ended = subprocess.run(
        [sys.executable, "-m", "fuzz", "run", "--ray", "local"],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])},
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    assert ended.returncode == 2 and "mla-fuzz[cluster]" in ended.stderr
