"""Heavy cases of workers that share a GPU: together as far as its memory goes, in turn beyond that."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fuzz.build import memory_bytes
from fuzz.case import Case
from fuzz.room import Room

LIGHT = Case(((1, 4, 64),))
DENSE = Case(((1, 14_000, 14_000),))  # of which copies are made
SPARSE = Case(((1, 4, 64),), pages="across-2^22")  # about 9 GB, never copied


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Room]:
    """Makes the rooms of 16 workers on one GPU of 141 GiB."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=141 << 30))
    return lambda: Room("cuda", 16, tmp_path)


def enters(room: Room, case: Case, leave: threading.Event) -> threading.Event:
    """An event that is set once another worker has taken what `case` needs; it keeps that until `leave`."""
    inside = threading.Event()

    def work() -> None:
        with room.taken(case):
            inside.set()
            leave.wait(10)

    threading.Thread(target=work, daemon=True).start()
    return inside


def test_heavy_cases_run_together_as_far_as_memory_goes_and_the_next_waits_for_one_to_leave(room):
    first, others = threading.Event(), threading.Event()
    assert 8e9 < memory_bytes(SPARSE, "cuda") < 10e9
    taken = [enters(room(), SPARSE, first), *(enters(room(), SPARSE, others) for _ in range(4))]
    assert all(inside.wait(5) for inside in taken)
    sixth = enters(room(), SPARSE, others)
    assert not sixth.wait(0.3)
    with room().taken(LIGHT):
        pass
    first.set()
    assert sixth.wait(5)
    others.set()


def test_a_case_whose_operands_are_copied_takes_room_for_the_copies(room):
    leave = threading.Event()
    assert 0.7e9 < memory_bytes(DENSE, "cuda") < 0.8e9
    taken = [enters(room(), DENSE, leave) for _ in range(16)]
    assert [inside.wait(0.3) for inside in taken].count(True) == 8
    leave.set()
    assert all(inside.wait(5) for inside in taken)


def test_the_golden_result_counts_where_it_stands_in_memory_whole():
    valid = Case(((1, 100_000, 10),))
    invalid = Case(((1, 100_000, 10),), indptr="kv-past-end")
    golden = 100_000 * 16 * 512 * 8
    assert memory_bytes(invalid, "cuda") - memory_bytes(valid, "cuda") >= 2 * golden
