"""The cost of a round on devices, against the paper's formula worked out by hand, and the laws of
what goes beyond it."""

import numpy as np
import pytest

import fedslice as fs
from fedslice.data.devices import Devices, ending
from fedslice.errors import InputError, MissingDataError


def test_a_worked_example_of_the_field_guide():
    """GLD-23k: 0.127 s of simulation for an example (section 5.4).  A client with 120 examples
    and two epochs, MobileNetV2 of 2.4 million numbers, 9.6 MB each way:

    down 9.6 / 0.75 = 12.8 s, up 9.6 / 0.25 = 38.4 s, 7 x 0.127 x 240 = 213.36 s, and 10 s.
    """
    devices = Devices(example=0.127)
    found = devices.seconds(np.array([9.6e6]), np.array([9.6e6]), np.array([240]))
    assert found[0] == pytest.approx(12.8 + 38.4 + 213.36 + 10)


def test_a_round_is_as_long_as_its_slowest_client_and_the_server():
    devices = Devices(server=2.0)
    each = devices.seconds(np.array([1e6, 3e6]), np.array([1e6, 1e5]), np.array([1000.0, 10.0]))
    by_hand = [1 / 0.75 + 4 + 7 + 10, 4 + 0.4 + 0.07 + 10]
    np.testing.assert_allclose(each, by_hand)
    assert ending(devices, each).seconds == pytest.approx(max(by_hand) + 2)


def test_devices_differ_as_they_should_and_stay_themselves():
    devices = Devices(overhead=0.0, example=0.0, bandwidth_spread=0.7, up=1e12, down=1.0)
    many = 100_000
    ones = np.ones(many)
    first = devices.seconds(ones, ones, ones, round=0)
    np.testing.assert_array_equal(first, devices.seconds(ones, ones, ones, round=9))
    logs = np.log(first)
    assert abs(logs.mean()) < 4 * 0.7 / np.sqrt(many)
    assert abs(logs.std() / 0.7 - 1) < 4 / np.sqrt(2 * many)
    assert (first > 2).mean() == pytest.approx(1 - 0.839, abs=0.005)  # Phi(log 2 / 0.7)
    np.testing.assert_array_equal(
        first[[5, 70]], devices.seconds(ones[:2], ones[:2], ones[:2], numbers=np.array([5, 70]))
    )
    other = devices.seconds(ones, ones, ones, seed=1)
    assert abs(np.corrcoef(logs, np.log(other))[0, 1]) < 0.02
    # bandwidth and speed are two things
    slow = devices._replace(down=1e12, example=1 / 7, bandwidth_spread=0.0, speed_spread=0.7)
    assert abs(np.corrcoef(logs, np.log(slow.seconds(ones, ones, ones)))[0, 1]) < 0.02


def test_stragglers_are_others_in_every_round():
    devices = Devices(stragglers=0.1, straggling=3.0)
    zeros = np.zeros(50_000)
    one, two = (devices.seconds(zeros, zeros, zeros, round=number) == 30 for number in (0, 1))
    assert one.mean() == pytest.approx(0.1, abs=0.006)
    assert (one & two).mean() == pytest.approx(0.01, abs=0.002)


@pytest.mark.parametrize("deadline", [None, 40.0, 15.0, 5.0])
@pytest.mark.parametrize("wanted", [None, 1, 3, 10])
def test_a_round_ends_with_enough_answers_or_at_its_deadline(deadline, wanted):
    seconds = np.array([12.0, 30.0, 14.0, 50.0, 14.0])
    ended = ending(Devices(), seconds, wanted, deadline)
    limit = np.inf if deadline is None else deadline
    in_time = np.sort(seconds[seconds <= limit])
    needed = 5 if wanted is None else min(wanted, 5)
    assert ended.counted.sum() == min(needed, len(in_time))
    assert set(seconds[ended.counted]) <= set(in_time[:needed])
    enough = len(in_time) >= needed
    assert ended.seconds == (in_time[needed - 1] if enough else limit)


def test_who_does_not_wait_hears_the_fast():
    """Client i takes i + 1 seconds.  Of 6 asked at random of 10 the first 3 are taken: never the
    three slowest, and the fastest whenever it is asked."""
    sampler = fs.sampling.punctual(3, lambda seed, round, who: who + 1.0, spare=3)
    asked = fs.sampling.uniform(6)
    times = np.zeros(10)
    for number in range(300):
        cohort = sampler.cohort(1, number, np.ones(10))
        np.testing.assert_array_equal(cohort, asked.cohort(1, number, np.ones(10))[:3])
        times[cohort] += 1
    assert times[0] == pytest.approx(180, abs=35)
    assert times[7:].sum() == 0


def test_noise_is_refused_where_the_fast_come_more_often():
    hurried = fs.sampling.punctual(3, lambda seed, round, who: who + 1.0)
    with pytest.raises(InputError, match="cannot be accounted for"):
        fs.privacy.central(clip=1.0, noise=1.0, sampler=hurried)


def test_devices_of_ones_own(tmp_path):
    file = tmp_path / "phones.toml"
    file.write_text("up = 1e6\nbandwidth_spread = 0.5\n")
    assert Devices.read(file) == Devices(up=1e6, bandwidth_spread=0.5)
    file.write_text("upload = 1e6\n")
    with pytest.raises(InputError, match="have no upload, only down, up"):
        Devices.read(file)
    file.write_text("up = 'fast'\n")
    with pytest.raises(InputError, match="up must be a number"):
        Devices.read(file)
    file.write_text("up = -1\n")
    with pytest.raises(InputError, match="above 0"):
        Devices.read(file)
    file.write_text("up = = 1\n")
    with pytest.raises(InputError, match="no TOML file"):
        Devices.read(file)
    with pytest.raises(MissingDataError, match="there is no file"):
        Devices.read(tmp_path / "none.toml")
