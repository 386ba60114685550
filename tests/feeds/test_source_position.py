import numpy as np

from millrace.programs.feeds.source_position import StateFunctions, TrackedBatches


def test_a_state_stays_as_it_was_when_the_source_changes_its_array():
    counts = np.zeros(3)
    functions = StateFunctions(lambda: {"counts": [counts]}, lambda state: None)
    batches = TrackedBatches(iter([1, 2]), functions)
    counts[:] = 1
    state = batches.state_at(0)
    assert state is not None
    assert not state.state["counts"][0].any()
