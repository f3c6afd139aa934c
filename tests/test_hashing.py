import pytest
import torch

from fuzz import hashing
from fuzz.hashing import bell, below, hashes, key, mix


def test_tensors_and_python_integers_are_mixed_alike() -> None:
    stream = key(7, "ckv")
    counters = torch.tensor([0, 1, -1, 1 << 62, -(1 << 63)])
    expected = [mix((c * 0x9E3779B97F4A7C15 + stream) % (1 << 64)) for c in counters.tolist()]
    assert [h % (1 << 64) for h in hashes(stream, counters).tolist()] == expected


def test_mixing_matches_splitmix64() -> None:
    """The first outputs of splitmix64 from the state 1234567, as published with it."""
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    outputs = [mix(1234567 + n * golden & mask) for n in range(1, 4)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_streams_differ_by_name_and_by_seed() -> None:
    keys = {key(seed, name) for seed in range(20) for name in ("q_nope", "q_pe", "ckv", "kpe")}
    assert len(keys) == 80


def test_numbers_below_a_bound_reach_all_of_it() -> None:
    numbers = below(3, torch.arange(2000), 7)
    assert numbers.unique().tolist() == list(range(7))
    assert below(3, torch.arange(5), 0).tolist() == [0] * 5
    bounds = torch.tensor([1, 5, 0, -3])
    assert (below(3, torch.arange(4), bounds) < bounds.clamp(min=1)).all()


def test_bell_has_its_shape_and_every_mantissa() -> None:
    values = bell(5, torch.arange(512), 512, 0, torch.bfloat16)
    numbers = values.double()
    assert abs(numbers.mean()) < 0.01
    assert abs(numbers.std() - 4 / 12**0.5) < 0.005
    assert numbers.abs().max() < 4
    near_one = values[(values >= 1) & (values < 2)]
    assert near_one.unique().numel() == 128
    # neighbouring rows and columns are independent
    for other in (values[1:], values[:, 1:]):
        pair = torch.stack((numbers[: other.shape[0], : other.shape[1]].flatten(), other.double().flatten()))
        assert abs(torch.corrcoef(pair)[0, 1]) < 0.01


def test_bell_is_rounded_once_to_nearest_even() -> None:
    counters = torch.arange(64)
    exact = bell(5, counters, 256, 0, torch.float32).double()
    for dtype, precision in ((torch.bfloat16, 8), (torch.float16, 11)):
        mantissa, exponent = torch.frexp(exact)
        nearest = torch.ldexp(torch.round(torch.ldexp(mantissa, torch.tensor(precision))), exponent - precision)
        rounded = bell(5, counters, 256, 0, dtype).double()
        normal = exact.abs() > 2.0**-13
        assert torch.equal(rounded[normal], nearest[normal])


def test_rows_are_the_same_alone_and_in_any_company() -> None:
    together = bell(9, torch.arange(300), 576, -3, torch.float16)
    assert torch.equal(bell(9, torch.tensor([299, 7]), 576, -3, torch.float16), together[[299, 7]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_are_the_same_in_numpy_and_in_torch(monkeypatch, dtype):
    def numbers():
        counters = torch.cat((torch.arange(130), torch.tensor([1 << 62, -(1 << 63)])))
        pattern = torch.int32 if dtype == torch.float32 else torch.int16
        bells = [bell(9, counters, columns, exponent, dtype) for columns in (1, 512, 1024) for exponent in (-8, 0, 12)]
        return [hashes(key(3, "ckv"), counters), *(numbers.view(pattern) for numbers in bells)]

    on_cpu = numbers()
    monkeypatch.setattr(hashing, "_in_numpy", lambda device: False)
    assert all(map(torch.equal, on_cpu, numbers()))
