"""Own loops that are killed, and go on with the same bits."""

import keras
import numpy as np
import pytest
from loops_to_resume import QUICK, SLOW

import millrace
from millrace.loop_checkpoints.parts import Parts

CALLS = 6


class KilledError(Exception):
    pass


def run_loop(make, directory, seed, killed_at=None, save_every=2):
    """Runs a loop until it ends or is killed; returns its first call, losses, and last values."""
    keras.utils.set_random_seed(seed)
    parts, values, call = make()
    calls = begin = millrace.restore_checkpoint(directory, values=values, **parts)
    losses = []
    try:
        while calls < CALLS:
            losses.append(np.array(call()))
            calls += 1
            if calls == killed_at:
                raise KilledError
            if calls % save_every == 0:
                millrace.save_checkpoint(directory, calls, values=values, **parts)
    except KilledError:
        pass
    found = Parts(parts)
    last = {
        name: [np.array(variable.value) for variable in own]
        for name, own in found.variables.items()
    }
    for queue in found.infeeds.values():
        queue.close()
    return begin, losses, last


def assert_same(found, expected):
    assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]


def goes_on(make, tmp_path, kills):
    # Another seed for each process: what goes on comes from the checkpoint.
    _, expected, last = run_loop(make, tmp_path / "whole", seed=0)
    assert len(expected) == CALLS
    assert len({each.tobytes() for each in expected}) == CALLS
    for killed_at in kills:
        directory = tmp_path / str(killed_at)
        begin, losses, _ = run_loop(make, directory, seed=0, killed_at=killed_at)
        assert begin == 0
        assert_same(losses, expected[:killed_at])
        begin, losses, values = run_loop(make, directory, seed=1)
        assert begin == (killed_at - 1) // 2 * 2
        assert_same(losses, expected[begin:])
        assert list(values) == list(last)
        for name, own in values.items():
            assert_same(own, last[name])


@pytest.mark.parametrize("make", QUICK, ids=lambda make: make.__name__)
def test_a_killed_loop_goes_on_with_the_same_bits(make, tmp_path):
    goes_on(make, tmp_path, [5])


@pytest.mark.slow
@pytest.mark.parametrize("make", [*QUICK, *SLOW], ids=lambda make: make.__name__)
def test_a_loop_killed_anywhere_goes_on_with_the_same_bits(make, tmp_path):
    goes_on(make, tmp_path, [4, 5])
