"""What a run on a cluster is made of, without a cluster: its division, its hosts, what it gathers, its corpus."""

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fuzz.cluster.driver import Driver
from fuzz.cluster.engine import Lost, processes, room
from fuzz.cluster.gather import KNOWN, Gathered
from fuzz.cluster.host import Host, News, Order
from fuzz.cluster.plan import ENDLESS, LEAST_UNITS, MOST_UNITS, Plan, command, divide, part
from fuzz.options import Options, Shard
from fuzz.parsers import redis_url, without_password
from fuzz.run import Run
from fuzz.units import CASES
from tests.redis_server import redis_server
from tests.report_runs import CASE, FINDING
from tests.test_plugin import run

ROOT = Path(__file__).parent.parent


def begun(directory: Path, **options) -> Run:
    (directory / "journal").mkdir(parents=True)
    return Run.begun(Options(kernel="kernel:run", seed=3, out=directory, **options), 3, "cpu", directory, 0.0)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("cases", [1, 31, 32, 1000, 40_000])
@pytest.mark.parametrize("slots", [1, 2, 7])
def test_the_shards_of_all_drivers_have_every_unit_once(tmp_path, count, cases, slots):
    drawn = []
    for index in range(count):
        run = begun(tmp_path / str(index), max_cases=cases, shard=Shard(index, count))
        plan = divide(run.options, slots, 1)
        for shard in range(plan.shards):
            one = part(run, plan, shard).options
            assert one.max_cases == cases and one.max_time is None and one.seed == 3
            units = range(one.shard.index, -(-cases // CASES), one.shard.count)
            assert len(units) <= MOST_UNITS
            drawn += units
    assert sorted(drawn) == list(range(-(-cases // CASES)))


def test_a_run_has_a_shard_for_each_slot_and_more_if_they_would_be_long():
    assert divide(Options(max_cases=2 * CASES), 4, 1).shards == 2
    assert divide(Options(max_cases=8 * CASES), 4, 1).shards == 4
    assert divide(Options(max_cases=4 * 2 * LEAST_UNITS * CASES), 4, 1).shards == 8
    assert divide(Options(max_cases=100 * MOST_UNITS * CASES), 4, 1).shards == 100
    assert divide(Options(max_cases=1600 * MOST_UNITS * CASES), 4, 16).shards == 100
    assert divide(Options(max_time=60), 4, 1).shards == ENDLESS


def test_a_shard_of_a_run_with_a_time_has_as_many_cases_as_any():
    run = Run.begun(Options(max_time=60), 3, "cpu", Path("."), 0.0)
    one = part(run, divide(run.options, 4, 1), ENDLESS - 1).options
    assert len(range(one.shard.index, one.max_cases // CASES, one.shard.count)) == MOST_UNITS


def test_the_command_for_one_shard_has_all_that_decides_its_cases_and_where_the_kernel_runs():
    options = Options(kernel="my file.py:run", contract="serving", without=("padding",), strata=("tiny", "bell"))
    options = dataclasses.replace(options, max_cases=3200, sandbox="never")
    run = Run.begun(options, 4, "cpu", Path("."), 0.0)
    assert command(part(run, divide(options, 2, 1), 1)) == (
        "python -m fuzz run --kernel 'my file.py:run' --seed 4 --contract serving --without padding --strata tiny,bell"
        " --sandbox never --shard 1/4 --max-cases 3200"
    )
    assert command(part(dataclasses.replace(run, seed=9), divide(Options(max_cases=32), 2, 1), 0)).count("--shard") == 0


def test_a_shard_takes_a_gpu_and_as_many_cores_as_every_node_has_for_each():
    nodes = [{"CPU": 64.0, "GPU": 4.0}, {"CPU": 20.0, "GPU": 2.0}, {"CPU": 8.0}]
    assert processes(nodes, "cuda", None) == 10 and room(nodes, "cuda", 10, None) == 6
    assert processes(nodes, "cuda", 4) == 4 and room(nodes, "cuda", 4, 4) == 1
    assert room(nodes, "cuda", 10, 25) == 2
    assert processes([{"CPU": 128.0, "GPU": 2.0}], "cuda", None) == 16
    assert processes(nodes, "cpu", None) == 1 and room(nodes, "cpu", 1, None) == 92
    assert room(nodes, "cpu", 1, 3) == 3 and room([{"GPU": 1.0}], "cpu", 1, None) == 0


def lines(*events: dict) -> bytes:
    return b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in events)


def case(unit: int, at: float, seed: int = 1) -> dict:
    common = {"event": "case", "unit": unit, "phase": "generate", "at": at, "case": CASE | {"seed": seed}}
    return common | {"strata": ["values:bell"], "traits": [], "size": [seed]}


def verdict(*findings: dict) -> dict:
    return {"event": "verdict", "ran": {"output": 0.5}, "findings": list(findings), "ms": 1.0}


def device(name: str) -> dict:
    return {"event": "device", "device": name, "versions": {"python": "3"}, "strata": {"values:bell": ""}}


def test_what_shards_write_is_one_run_with_times_from_its_start(tmp_path):
    gathered = Gathered(begun(tmp_path))
    for shard, at in ((0, 10.0), (1, 20.0)):
        assert gathered.left(shard, at) == {KNOWN: b""}
    gathered.take(0, News({"gw0.jsonl": lines(device("one"), case(0, 1.5), verdict(FINDING))}))
    gathered.take(1, News({"gw0.jsonl": lines({"event": "worker", "pid": 7}, device("other"), case(1, 2.5))}))
    assert gathered.totals.cases == 1 and gathered.totals.elapsed == 22.5 and gathered.totals.pids == {}
    assert gathered.totals.device == "one, other"
    gathered.take(1, News({"controller.jsonl": lines({"event": "died", "worker": "gw0"})}))
    assert {bucket.check for bucket in gathered.totals.buckets()} == {"output", "alive"}
    again = Gathered(dataclasses.replace(begun(tmp_path / "other"), directory=tmp_path))
    again.take_up()
    assert again.totals.cases == 2 and again.begun == {0: 0, 1: 0} and again.totals.device == "one, other"


def test_a_shard_goes_on_elsewhere_with_its_journals_and_its_time(tmp_path):
    gathered = Gathered(begun(tmp_path))
    gathered.left(5, at=10.0)
    shrunk = {"event": "shrunk", "worker": "gw0", "began_with": [], **case(0, 0), "finding": FINDING}
    shrunk = {name: shrunk[name] for name in shrunk if name not in ("unit", "phase", "at")} | {"event": "shrunk"}
    gathered.take(5, News({"gw0.jsonl": lines(case(0, 1.0), verdict(), case(0, 4.0, seed=9))}))
    gathered.take(5, News({"gw0.found.jsonl": lines(shrunk)}))
    gathered.lose(5, "node there was lost")
    assert gathered.totals.lost == [{"case": CASE | {"seed": 9}, "why": "node there was lost"}]
    left = gathered.left(5, at=30.0)
    assert left.keys() == {"5-gw0.jsonl", "5-gw0.found.jsonl", KNOWN}
    assert left["5-gw0.jsonl"].splitlines()[-1] == b'{"event":"lost","why":"node there was lost"}'
    assert json.loads(left[KNOWN])["worker"] == "5-gw0"
    # the shard itself goes on from the time that its journals end with
    gathered.take(5, News({"r1-gw0.jsonl": lines(case(0, 14.0 + 2.0, seed=9), verdict())}))
    assert gathered.totals.cases == 2 and gathered.totals.elapsed == 32.0 and gathered.begun == {5: 1}
    gathered.finish(5)
    assert gathered.done == {5} and gathered.totals.unfinished() == []


DONE = News({"r1-gw0.jsonl": lines(case(0, 1.0), verdict())}, {}, 0, "all cases done")


class PretendedEngine:
    """Hosts that answer at once, but for `mute` ones that never do. A node that gets a shard of `deadly` is lost."""

    def __init__(self, room: int, deadly: tuple[int, ...] = (), mute: int = 0, news: News = DONE) -> None:
        self.room, self.deadly, self.mute, self.news = room, deadly, mute, news
        self.answers: dict[object, object] = {}
        self.at_work = 0

    def slots(self) -> int:
        return self.room

    def hire(self) -> SimpleNamespace:
        self.at_work += 1
        self.mute -= 1
        host = SimpleNamespace(mute=self.mute >= 0)
        for question in ("where", "start", "news", "stop"):
            setattr(host, question, SimpleNamespace(remote=functools.partial(self._ask, host, question)))
        return host

    def _ask(self, host: SimpleNamespace, question: str, *values) -> object:
        if question == "start":
            host.deadly = Run.from_json(values[0].run).options.shard.index in self.deadly
        answer = object()
        if question == "news" and host.deadly:
            self.answers[answer] = Lost("the machine is gone")
        elif question == "news":
            self.answers[answer] = self.news
        elif not host.mute:
            self.answers[answer] = "there"
        return answer

    def fire(self, host: SimpleNamespace) -> None:
        self.at_work -= 1

    def ready(self, answers, seconds: float) -> list[object]:
        return [answer for answer in answers if answer in self.answers]

    def value(self, answer: object) -> object:
        value = self.answers.pop(answer)
        if isinstance(value, Lost):
            raise value
        return value


def driven(directory: Path, engine: PretendedEngine, shards: int) -> tuple[Gathered, Driver]:
    run = begun(directory, max_cases=shards * CASES)
    gathered = Gathered(run)
    display = SimpleNamespace(show=lambda totals: None, close=lambda: None)
    driver = Driver(run, Plan(shards, shards * CASES, 1), engine, gathered, display, ())
    before = signal.getsignal(signal.SIGTERM)
    driver.work()
    signal.signal(signal.SIGTERM, before)
    assert engine.at_work == 0
    return gathered, driver


def test_a_shard_that_is_lost_again_and_again_is_given_up_and_the_others_are_done(tmp_path):
    gathered, driver = driven(tmp_path, PretendedEngine(room=2, deadly=(1,)), shards=5)
    assert gathered.done == {0, 2, 3, 4} and driver.stopped is None
    (error,) = gathered.totals.errors
    alone = "python -m fuzz run --kernel kernel:run --seed 3 --shard 1/5 --max-cases 160"
    assert error["message"] == f"shard 1/5 was lost 3 times; alone it is: {alone}"
    assert len(gathered.totals.warnings) == 1  # the same each time
    assert "shard 1/5: node there was lost: the machine is gone" in gathered.totals.warnings


def test_hosts_that_never_find_room_do_not_keep_a_run_from_its_end(tmp_path):
    gathered, driver = driven(tmp_path, PretendedEngine(room=3, mute=2), shards=4)
    assert gathered.done == {0, 1, 2, 3} and driver.stopped is None


def test_a_cluster_on_which_nothing_runs_ends_the_run_with_an_error(tmp_path):
    gathered, driver = driven(tmp_path, PretendedEngine(room=2, deadly=tuple(range(100))), shards=100)
    assert gathered.done == set() and driver.stopped == "error"
    assert "nothing runs on the cluster: the machine is gone" in [one["message"] for one in gathered.totals.errors]


def test_a_kernel_that_cannot_be_loaded_ends_the_run(tmp_path):
    refused = News({"gw0.jsonl": lines({"event": "error", "usage": True, "message": "no such module"})}, {}, 2, "error")
    gathered, driver = driven(tmp_path, PretendedEngine(room=2, news=refused), shards=5)
    assert gathered.done == set() and driver.stopped == "error" and gathered.totals.warnings == []
    assert [one["message"] for one in gathered.totals.errors] == ["no such module"]


def test_pytest_takes_no_cluster(tmp_path):
    ended = run(tmp_path, "pytest", "--ray", "local")
    assert ended.returncode == 2 and "`python -m fuzz run` takes it" in ended.stderr


@pytest.fixture
def suite(tmp_path, monkeypatch) -> Path:
    """Where hosts may work."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PRETENDED_SECONDS", "0.05")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def order(directory: Path, journals: dict[str, bytes], cases: int) -> Order:
    run = Run.begun(Options(kernel="right:run", seed=3, max_cases=cases, out=Path(".")), 3, "cpu", Path("."), 0.0)
    program = (str(ROOT / "tests" / "pretend_run.py"),)
    return Order(run.to_json(), journals, 1, None, program, str(directory))


def shards(directory: Path) -> list[Path]:
    return list(directory.glob("mla-fuzz-shard-*"))


def test_a_host_does_a_shard_and_hands_over_what_it_wrote_once(suite):
    host = Host()
    host.start(order(suite, {"0-gw0.jsonl": lines({"event": "worker", "pid": 1})}, cases=5))
    told: dict[str, bytes] = {}
    until = time.monotonic() + 60
    while (news := host.news(0.1)).ended is None:
        assert time.monotonic() < until
        told = {name: told.get(name, b"") + news.lines.get(name, b"") for name in told.keys() | news.lines.keys()}
    told = {name: told.get(name, b"") + news.lines.get(name, b"") for name in told.keys() | news.lines.keys()}
    assert (news.ended, news.stopped) == (0, "all cases done"), news.said
    assert told.keys() == {"controller.jsonl", "r1-gw0.jsonl"}
    assert told["r1-gw0.jsonl"].count(b'"event":"verdict"') == 5
    host.drop()
    _assert_gone(suite)


AT_WORK = """
host.start(order(Path('.'), {}, 10000))
while not host.news(0.1).lines.get('r1-gw0.jsonl'): pass
print('here', flush=True); time.sleep(60)
"""
BEFORE_IT_STARTS = """
def save(run): print('here', flush=True); time.sleep(60)
outdir.save = save
host.start(order(Path('.'), {}, 10000))
"""


@pytest.mark.parametrize("deed", [AT_WORK, BEFORE_IT_STARTS])
def test_nothing_of_a_shard_outlives_a_host_that_is_killed(suite, deed):
    script = (
        "import time; from pathlib import Path; from fuzz import outdir; from fuzz.cluster.host import Host\n"
        f"from tests.test_cluster_parts import order; host = Host()\n{deed}"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=suite, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    (place,) = shards(suite)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    _assert_gone(suite)
    assert _running(place) == []


def test_a_shard_whose_last_processes_still_write_is_gone_all_the_same(suite):
    place = suite / "mla-fuzz-shard-0"
    file = f"{str(place)!r} + f'/{{time.time()}}'"
    writes = f"import time\nwhile time.monotonic() < {time.monotonic() + 3}: open({file}, 'w')"
    runs = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {writes!r}], start_new_session=True)"
    far, near = os.pipe()
    leash = [sys.executable, "-m", "fuzz.cluster.leash", str(place), sys.executable, "-c", runs]
    subprocess.run(leash, stdin=far, check=True)
    os.close(far)
    os.write(near, b".")
    while len(list(place.iterdir())) < 100:
        time.sleep(0.01)
    os.close(near)
    _assert_gone(suite)


def _assert_gone(directory: Path) -> None:
    until = time.monotonic() + 20
    while shards(directory):
        assert time.monotonic() < until
        time.sleep(0.05)


def _running(place: Path) -> list[str]:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in found if str(place) in line]


@pytest.mark.parametrize("text", ["redis://localhost:6379", "redis://:secret@10.0.0.1:7000/2", "rediss://a.b"])
def test_addresses_of_redis_servers(text):
    assert redis_url(text) == text
    assert "secret" not in without_password(f"--database {text} --out here") and "--out" in without_password("--out")


@pytest.mark.parametrize("text", ["localhost:6379", "redis://", "http://a", "redis://a b", ".hypothesis"])
def test_what_is_no_address_of_a_redis_server_is_refused(text):
    with pytest.raises(ValueError, match="redis://HOST:PORT"):
        redis_url(text)


def test_a_corpus_on_a_server_is_shared_and_does_without_it_once_it_is_away():
    pytest.importorskip("redis", reason="the client for Redis is not installed: the extra mla-fuzz[cluster]")
    from fuzz.corpus import Corpus
    from fuzz.recall import Recall

    warnings: list[str] = []
    with redis_server() as (url, _):
        one, other = (Recall("kernel:run", Corpus(url, warnings.append)) for _ in range(2))
        one.remember("output", {"x": 1})
        other.remember("lse", {"x": 2})
        assert list(one.known()) == list(other.known()) == [("lse", {"x": 2}), ("output", {"x": 1})]
        other.forget("output", {"x": 1})
        assert list(one.known()) == [("lse", {"x": 2})]
    assert warnings == []
    assert list(one.known()) == []
    one.remember("output", {"x": 3})
    assert len(warnings) == 1 and warnings[0].startswith(f"--database {url}: ")
    assert list(Recall("kernel:run", Corpus("redis://127.0.0.1:1", warnings.append)).known()) == []
    assert len(warnings) == 2
