"""What warpgroups may leave to chance: nothing, in whatever order they run."""

import numpy as np
import pytest

from kernel.warpgroups import Barrier, Copy, Product, Region, SharedMemoryError, Team

SEEDS = range(12)


def run(seed: int, *bodies) -> None:
    team = Team([f"group {i}" for i in range(len(bodies))], seed)
    team.run([lambda body=body: body(team) for body in bodies])


class Memory:
    """A region and a barrier for each direction, made anew for each order."""

    def __init__(self) -> None:
        self.region = Region("tile")
        self.filled, self.emptied = Barrier(1), Barrier(1)


def rounds(memory: Memory, *, wait_filled: bool = True, wait_emptied: bool = True):
    """A writer and a reader of three rounds."""

    def writer(team: Team) -> None:
        for i in range(3):
            if wait_emptied:
                team.wait(memory.emptied, (i + 1) % 2)
            team.write(memory.region, landed=True)
            team.arrive(memory.filled, 1)

    def reader(team: Team) -> None:
        for i in range(3):
            if wait_filled:
                team.wait(memory.filled, i % 2)
            memory.region.read(team.current)
            team.arrive(memory.emptied, 1)

    return writer, reader


@pytest.mark.parametrize("seed", SEEDS)
def test_what_barriers_order_passes_in_every_order(seed):
    run(seed, *rounds(Memory()))


@pytest.mark.parametrize("left_out", ["wait_filled", "wait_emptied"])
def test_a_wait_left_out_is_found_in_every_order(left_out):
    for seed in SEEDS:
        with pytest.raises(
            SharedMemoryError, match=r"nothing says that group|arrivals at a barrier|wait for each other"
        ):
            run(seed, *rounds(Memory(), **{left_out: False}))


def test_what_a_third_one_has_waited_for_is_known_to_those_who_wait_for_it():
    memory, told = Memory(), Barrier(1)

    def third(team: Team) -> None:
        team.wait(memory.filled, 0)
        team.arrive(told, 1)

    def last(team: Team) -> None:
        team.wait(told, 0)
        memory.region.read(team.current)

    def first(team: Team) -> None:
        team.write(memory.region, landed=True)
        team.arrive(memory.filled, 1)

    run(0, first, third, last)


def test_those_who_wait_for_each_other_are_named():
    def waits_for(index: int):
        return lambda team: team.wait(barriers[index], 0)

    barriers = [Barrier(1), Barrier(1)]
    with pytest.raises(SharedMemoryError, match=r"all wait for each other: group 0 in .*; group 1 in"):
        run(0, waits_for(0), waits_for(1))


def test_more_arrivals_than_a_barrier_has_are_an_error():
    barrier = Barrier(2)
    with pytest.raises(SharedMemoryError, match="3 arrivals at a barrier of 2"):
        run(0, lambda team: team.arrive(barrier, 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_so_are_arrivals_of_copies_that_land_when_their_warpgroup_has_ended(seed):
    barrier = Barrier(1)

    def copies(team: Team) -> None:
        team.arrive_after_copies(barrier, 2)

    with pytest.raises(SharedMemoryError, match="2 arrivals at a barrier of 1"):
        run(seed, copies, lambda team: team.wait(barrier, 0))


def test_copies_are_there_when_the_arrival_that_follows_them_is_waited_for():
    place = np.zeros(2)
    region, barrier = Region("tile"), Barrier(1)

    def copies(team: Team) -> None:
        team.write(region, landed=False)
        team.current.copies.append(Copy(region, place, np.ones(2)))
        team.arrive_after_copies(barrier, 1)

    def reads(team: Team) -> None:
        team.wait(barrier, 0)
        region.read(team.current)
        assert (place == 1).all()

    run(0, copies, reads)


def test_copies_that_nobody_waited_for_are_not_there():
    def copies(team: Team) -> None:
        region = Region("tile")
        team.write(region, landed=False)
        region.read(team.current)

    with pytest.raises(SharedMemoryError, match="group 0 reads tile, where copies of group 0 may not have landed"):
        run(0, copies)


def product_of(team: Team, region: Region) -> Product:
    product = Product(team.current)
    region.multiply(product)
    return product


def test_a_product_needs_a_fence_after_what_threads_wrote():
    def multiplies(fence: bool):
        def body(team: Team) -> None:
            region = Region("tile")
            team.write(region, landed=True)
            if fence:
                team.fence()
            product_of(team, region).use()

        return body

    run(0, multiplies(True))
    with pytest.raises(SharedMemoryError, match="group 0 multiplies tile, and no fence comes before"):
        run(0, multiplies(False))


def test_a_product_whose_operands_change_is_an_error_for_those_who_look_at_it():
    def body(team: Team) -> None:
        region = Region("tile")
        product = product_of(team, region)
        team.write(region, landed=True)
        if looks:
            product.use()

    looks = False
    run(0, body)
    looks = True
    with pytest.raises(SharedMemoryError, match="group 0 writes tile, and nothing says that a product of group 0 is"):
        run(0, body)


def test_an_error_in_one_ends_the_others():
    def fails(team: Team) -> None:
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        run(0, fails, lambda team: team.wait(Barrier(1), 0), lambda team: team.wait(Barrier(1), 0))
