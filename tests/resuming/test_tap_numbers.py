"""Steps and updates that taps number continue where a training was broken off."""

import numpy as np
import pytest
from breaks import BATCH, X, Y, at_once, make, train

import millrace


def statistics_of(run):
    (callback,) = run.callbacks
    return callback.history


@pytest.mark.parametrize(
    ("fit", "stop_after"),
    [
        ({}, 8),
        pytest.param({"every": 3}, 8, marks=pytest.mark.slow),
        pytest.param({"accumulation": 2, "executed": 1}, 8, marks=pytest.mark.slow),
        pytest.param({"when": "after_compute", "accumulation": 2}, 8, marks=pytest.mark.slow),
    ],
)
def test_statistics_go_on_with_their_numbers(tmp_path, fit, stop_after):
    chosen = {name: fit[name] for name in ("when", "every") if name in fit}
    model = {name: value for name, value in fit.items() if name not in chosen}

    def statistics():
        return millrace.callbacks.TensorStatistics(gradients="*", **chosen)

    def run(directory=None, **more):
        return train(
            directory, callbacks=lambda: [statistics()], build=lambda: make(**model),
            every_steps=2, epochs=3, **at_once(), **more,
        )  # fmt: skip

    whole = statistics_of(run())
    run(tmp_path, stop_after=stop_after)
    resumed = statistics_of(run(tmp_path))
    rows = len(resumed["step"])
    assert 0 < rows < len(whole["step"])
    for name, column in resumed.items():
        np.testing.assert_array_equal(column, whole[name][-rows:], name)


@pytest.mark.slow
def test_a_nan_is_found_at_the_same_step(tmp_path):
    x = X.copy()
    x[17] = np.nan
    data = {"x": x, "y": Y, "batch_size": BATCH, "shuffle": False}

    def run(directory, **more):
        found = train(
            directory, callbacks=lambda: [millrace.callbacks.NaNWatch(directory=None)],
            data=lambda: data, every_steps=2, epochs=1, **at_once(), **more,
        )  # fmt: skip
        return found.callbacks[0].found

    whole = run(tmp_path / "whole")
    run(tmp_path / "broken", stop_after=3)
    resumed = run(tmp_path / "broken")
    assert resumed is not None
    for name in ("epoch", "step", "update", "batch"):
        assert getattr(resumed, name) == getattr(whole, name), name
