import contextlib

import jax
import keras
import numpy as np
import pytest

import millrace
from millrace.callbacks import BatchOutputs
from millrace.errors import ModelError, OptionError

X = np.random.default_rng(0).random((21, 4), np.float32)  # six batches of 4 rows, the last of 1


def build(strategy, steps_per_execution=4, width=3):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(width)(inputs)
    outputs = {"hidden": hidden, "sum": keras.layers.Dense(1, dtype="bfloat16")(hidden)}
    model = strategy.attach(keras.Model(inputs, outputs))
    model.compile(steps_per_execution=steps_per_execution)
    return model


def check(model, rows, **arguments):
    gathered = model.predict(X, **arguments, verbose=0)
    taken = []
    left = model.predict(X, **arguments, verbose=0, callbacks=[BatchOutputs(taken.append)])
    assert [len(outputs["sum"]) for outputs in taken] == rows
    for name, values in gathered.items():
        np.testing.assert_array_equal(np.concatenate([each[name] for each in taken]), values)
        assert left[name].shape == (0, *values.shape[1:])
        assert left[name].dtype == values.dtype
    again = model.predict(X, **arguments, verbose=0)
    jax.tree.map(np.testing.assert_array_equal, again, gathered)


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_batches_come_in_order_and_nothing_is_gathered(strategy, steps_per_execution):
    model = build(strategy, steps_per_execution)
    check(model, [4] * 5 + [1], batch_size=4)
    assert len(model.predict_on_batch(X)["sum"]) == 21


@pytest.mark.slow
@pytest.mark.parametrize("stages", [[0, 1], None])
def test_so_they_do_of_replicas_and_of_stages(stages):
    model = build(millrace.Strategy(devices="cpu:2"))
    if stages is not None:
        calls = model.get_pipeline_stage_assignment()
        for call, stage in zip(calls, stages, strict=True):
            call.pipeline_stage = stage
        model.set_pipeline_stage_assignment(calls)
    check(model, [4] * 5 + [1], batch_size=4)


@pytest.mark.parametrize("error", [None, KeyError("disk"), KeyboardInterrupt()], ids=repr)
def test_an_early_end_leaves_the_model_usable(strategy, error):
    model = build(strategy, steps_per_execution=2)
    whole, taken = model.predict(X, batch_size=4, verbose=0), []

    def take(outputs):
        taken.append(outputs)
        if len(taken) == 3:
            model.stop_predicting = True
            if error is not None:
                raise error

    ends = contextlib.nullcontext() if error is None else pytest.raises(type(error))
    with ends:
        model.predict(X, batch_size=4, verbose=0, callbacks=[BatchOutputs(take)])
    assert len(taken) == (4 if error is None else 3)  # all steps of an execution
    again = model.predict(X, batch_size=4, verbose=0)
    jax.tree.map(np.testing.assert_array_equal, again, whole)


def test_memory_stays_flat(strategy):
    model, seen = build(strategy, steps_per_execution=5, width=1 << 13), []  # 128 KiB a batch
    callback = BatchOutputs(lambda _: seen.append(sum(a.nbytes for a in jax.live_arrays())))
    model.predict(np.zeros((4 * 100, 4), np.float32), batch_size=4, verbose=0, callbacks=[callback])
    assert len(seen) == 100
    assert max(seen[10:]) <= seen[0] + 5 * (1 << 17) + (1 << 16)


def test_what_cannot_be_is_refused():
    with pytest.raises(OptionError, match="takes a function of the outputs of a batch"):
        BatchOutputs("file")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="plain")
    with pytest.raises(ModelError, match="'plain' belongs to none: plain Keras gathers"):
        model.predict(X, verbose=0, callbacks=[BatchOutputs(print)])
