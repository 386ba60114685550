"""The state of an object: what has changed in it, and what has not."""

import collections

import numpy as np
import pytest

from millrace.base.checkpoints.object_state import ObjectState


class Counts:
    """A callback of somebody, as far as its attributes go."""

    def __init__(self, patience=3):
        self.patience = patience
        self.steps = self.first = 0
        self.losses = collections.deque(maxlen=2)
        self.seen = set()
        self.kinds = collections.defaultdict(list)
        self.sums = np.zeros(3)

    def begin_epoch(self):
        self.first = self.steps

    def step(self):
        self.steps += 1
        self.losses.append(float(self.steps))
        self.seen.add(self.steps % 3)
        self.kinds[self.steps % 2].append(self.steps)
        self.sums += 1


def after(steps, epochs=1):
    counts = Counts()
    state = ObjectState(counts)
    for _ in range(epochs):
        counts.begin_epoch()
        for _ in range(steps):
            counts.step()
    return counts, state


def test_it_goes_on_as_it_was():
    counts, state = after(5)
    other = Counts(patience=7)
    ObjectState(other).restore(state.changes())
    assert other.patience == 7
    for each in (counts, other):
        each.step()
    del counts.patience, other.patience
    np.testing.assert_array_equal(vars(counts).pop("sums"), vars(other).pop("sums"))
    assert vars(counts) == vars(other)
    assert other.losses.maxlen == 2
    assert other.kinds[9] == []


@pytest.mark.parametrize("resets", [True, False])
def test_what_had_not_changed_gets_its_first_value(resets):
    """The epoch that continues begins once more: there is no first step but the one of then."""
    _, state = after(4)
    other = Counts()
    begun = ObjectState(other)
    begun.restore(state.changes())
    other.begin_epoch()
    other.sums += 1
    assert other.first == 4
    begun.restore(state.changes(), resets=resets)
    assert (other.steps, other.first) == (4, 0 if resets else 4)
    np.testing.assert_array_equal(other.sums, 4)


def test_first_values_are_copies():
    counts = Counts()
    begun = ObjectState(counts)
    for _ in range(2):
        counts.sums += 1
        counts.seen.add(1)
        begun.restore({})
        np.testing.assert_array_equal(counts.sums, 0)
        assert counts.seen == set()


def test_what_is_large_stays_as_it_is():
    counts = Counts()
    counts.rows = np.zeros((1 << 22) + 1, np.float32)
    begun = ObjectState(counts)
    counts.rows[0] = 1
    begun.restore({})
    assert counts.rows[0] == 1
