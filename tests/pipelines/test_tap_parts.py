"""Taps of several stages put together; their numbers are in tests/equivalence."""

import numpy as np
import pytest

from millrace.base.records.tensors import Tensor
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.programs.taps.structure import ordered, plain
from millrace.programs.taps.taps import Tapped
from millrace.programs.taps.tensors import Rows
from millrace.run.pipelines.programs.stage_taps import bundle_of
from millrace.run.pipelines.runtime.taps import UpdateCount, gathered

pytestmark = pytest.mark.quick

FIRST, SECOND = Tensor("activation", "first"), Tensor("activation", "second")


def test_a_value_with_leaves_of_two_stages_is_whole_once_both_are_there():
    queue = OutfeedQueue()
    tapped = Tapped((FIRST, queue, SECOND), (0, {"x": 0, "y": 0}, 0))
    made = [
        (bundle_of(tapped, (2, 3), 1), ["y", "rows 1"][::-1]),
        (bundle_of(tapped, (0, 1), 0), ["rows 0", "x"]),
    ]
    found = gathered(made)
    assert found.keys == (
        Rows((FIRST,)), Rows((Tensor("activation", "second", stage=1),)), queue
    )  # fmt: skip
    assert found.values == ("rows 0", "rows 1", {"x": "x", "y": "y"})
    # In a process without stage 1 there is nothing of it.
    assert gathered(made[1:]).keys == (Rows((FIRST,)),)


def test_dicts_of_several_traces_are_one_from_the_last_stage_to_the_first():
    queue = OutfeedQueue()
    made = [
        (bundle_of(Tapped((queue,), (ordered({name: 0}),)), (0,), stage, stage), [stage])
        for stage, name in enumerate("abc")
    ]
    (value,) = gathered(reversed(made)).values
    assert list(plain(value).items()) == [("c", 2), ("b", 1), ("a", 0)]


def test_updates_are_counted_without_reading_what_is_known():
    class Unread:
        def __array__(self, *args, **kwargs):
            raise AssertionError("read")

    count, known = UpdateCount(), Unread()
    count.begin(np.int64(7))
    count.number += 2
    count.end(known)
    count.number = 0
    count.begin(known)
    assert count.number == 9
    count.begin(np.int64(3))  # set by a callback, say
    assert count.number == 3
