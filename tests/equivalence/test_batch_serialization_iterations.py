"""Stages of one device that run several micro-batches before the next stage starts."""

import logging

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace.errors import OptionError, PlanError, UnsupportedError
from millrace.programs.plan import Mode

TWICE = {"gradient_accumulation_steps_per_replica": 2, "batch_serialization_iterations": 3}


def data(rows):
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, x[:, :1] * x[:, 1:2]


def three_layers():
    return [layers.Dense(3), layers.Dense(2), layers.Dense(1)]


def layers_of_all_kinds():
    return [
        layers.Dense(6, "tanh"),
        layers.BatchNormalization(momentum=0.8),
        layers.Dense(5, "tanh", kernel_regularizer="l2"),
        layers.Dropout(0.2),
        layers.Dense(1),
    ]


def build(make=three_layers, devices=1, steps_per_execution=6, optimizer="sgd", **options):
    """A model of three stages."""
    keras.utils.set_random_seed(1)
    with millrace.Strategy(devices=devices).scope():
        model = keras.Sequential([keras.Input((4,)), *make()])
    count = len(model.layers)
    model.set_pipeline_stage_assignment([3 * k // count for k in range(count)])
    model.set_pipelining_options(**options)
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
    return model


class Logs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append((batch, dict(logs)))


def trained(rows, make=three_layers, devices=1, steps_per_execution=24, **options):
    """Logs of each batch and of each epoch, and all variables."""
    momentum = keras.optimizers.SGD(1e-2, momentum=0.9)
    model = build(make, devices, steps_per_execution, momentum, **options)
    logs = Logs()
    model.set_asynchronous_callbacks(True)
    history = model.fit(
        *data(rows), batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=[logs]
    ).history
    variables = [*model.variables, *model.optimizer.variables]
    assert len(logs.found) == 2 * -(-rows // 2)
    return logs.found, history, [np.array(variable.value) for variable in variables]


def twenty_four(**options):
    """One micro-batch at a time, in updates of 24."""
    return trained(
        pipeline_schedule="sequential", device_mapping=[0, 0, 0],
        **{"gradient_accumulation_steps_per_replica": 24, **options},
    )  # fmt: skip


def assert_bits(found, expected):
    assert found[:2] == expected[:2]
    for value, other in zip(found[2], expected[2], strict=True):
        np.testing.assert_array_equal(value, other)


# 128 rows end with an update of 16 micro-batches.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "method", "count", "serialization"),
    [(layers_of_all_kinds, "mean", 8, 3), (three_layers, "sum", 1, 24)],
)
def test_an_update_is_that_of_all_micro_batches_to_the_last_bit(make, method, count, serialization):
    options = {"rows": 128, "make": make, "gradient_accumulation_reduction_method": method}
    found = trained(
        gradient_accumulation_steps_per_replica=count,
        batch_serialization_iterations=serialization,
        device_mapping=[0, 0, 0],
        **options,
    )
    assert_bits(found, twenty_four(**options))


@pytest.mark.slow
def test_an_update_of_replicas_is_that_of_all_micro_batches(caplog):
    options = {"rows": 100, "devices": 2, "steps_per_execution": 48}
    with caplog.at_level(logging.INFO, "millrace"):
        found = trained(
            gradient_accumulation_steps_per_replica=8,
            batch_serialization_iterations=3,
            device_mapping=[0, 0, 0],
            **options,
        )
    assert_bits(found, twenty_four(**options))
    assert (
        "runs as 2 replicas: one update takes gradient_accumulation_steps_per_replica x "
        "batch_serialization_iterations x replicas = 8 x 3 x 2 = 48 steps of 2 rows"
    ) in caplog.text


def test_each_stage_runs_and_holds_so_many_micro_batches():
    model = build(**TWICE)
    model.fit(*data(12), batch_size=2, verbose=0)
    statistics = model._millrace.totals.pipeline
    assert (statistics.last_tasks, statistics.last_in_flight) == (36, (3, 3, 3))
    (runner,) = model._millrace.functions.compiled[Mode.TRAIN]._runners.values()
    _, order = runner._executables.orders.of(6)
    assert " ".join(map(str, order)) == (
        "0F0 0F1 0F2 1F0 1F1 1F2 2F0 2F1 2F2 2B0 2B1 2B2 1B0 1B1 1B2 0B0 0B1 0B2 "
        "0F3 0F4 0F5 1F3 1F4 1F5 2F3 2F4 2F5 2B3 2B4 2B5 1B3 1B4 1B5 0B3 0B4 0B5"
    )


def test_evaluate_and_predict_are_as_without():
    x, y = data(10)
    model = build(steps_per_execution=4, **TWICE)
    other = build(steps_per_execution=4, device_mapping=[0, 0, 0])
    one, two = (m.evaluate(x, y, batch_size=2, verbose=0) for m in (model, other))
    assert one == two
    one, two = (m.predict(x, batch_size=2, verbose=0) for m in (model, other))
    np.testing.assert_array_equal(one, two)


def test_stages_are_on_one_device_unless_somebody_says_otherwise():
    model = build(devices=2, **TWICE)
    assert model._millrace.setup.replicas == 2
    model.set_pipelining_options(**TWICE, device_mapping=[1, 1, 1])
    assert model._millrace.setup.replicas == 1
    model.fit(*data(12), batch_size=2, verbose=0)
    assert {str(v.value.device) for v in model.trainable_variables} == {
        str(millrace.Strategy(devices=2).devices[1])
    }


@pytest.mark.parametrize("schedule", ["grouped", "1F1B", "0F0 0B0", lambda p, m: ""])
def test_other_schedules_are_refused_when_they_are_set(schedule):
    with pytest.raises(UnsupportedError) as error:
        build(**TWICE, pipeline_schedule=schedule)
    assert isinstance(error.value, NotImplementedError)
    assert str(error.value) == (
        "batch_serialization_iterations=3 is a form of the schedule 'sequential'. Received: "
        f"pipeline_schedule={schedule!r}. Set pipeline_schedule='sequential'; or leave out "
        "batch_serialization_iterations, and set 3 times as many "
        "gradient_accumulation_steps_per_replica: the update is the same in every schedule."
    )


def test_several_devices_are_refused_when_they_are_set():
    message = (
        r"batch_serialization_iterations=3 lets.*device_mapping=\[1, 0, 1\] has 2 devices. "
        r"Set device_mapping=\[1, 1, 1\]; or leave out.*3 times as many"
    )
    with pytest.raises(NotImplementedError, match=message):
        build(**TWICE, device_mapping=[1, 0, 1])
    model = build(devices=2, device_mapping=[1, 0, 1])
    with pytest.raises(UnsupportedError, match=message):
        model.set_pipelining_options(**TWICE)  # which keeps the mapping
    assert model._millrace.setup.options.pipelining.batch_serialization == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0, "batch_serialization_iterations must be at least 1. Received: 0"),
        (2.0, "whole number.*Received: 2.0.*Set batch_serialization_iterations=2"),
        ("auto", "whole number of at least 1. Received: 'auto'"),
    ],
)
def test_the_number_is_whole(given, message):
    with pytest.raises(OptionError, match=message):
        build(batch_serialization_iterations=given)


def test_the_default_schedule_follows_it():
    def in_force():
        pipelining = model._millrace.setup.options.pipelining
        return pipelining.schedule_in_force, pipelining.accumulation.steps

    model = build(**TWICE)
    assert in_force() == ("sequential", 6)
    model.set_pipelining_options(batch_serialization_iterations=2)
    assert in_force() == ("sequential", 4)
    model.set_pipelining_options(batch_serialization_iterations=1)
    assert in_force() == ("1f1b", 2)
    model.set_pipelining_options(pipeline_schedule="gpipe")
    with pytest.raises(UnsupportedError, match="pipeline_schedule='gpipe'"):
        model.set_pipelining_options(batch_serialization_iterations=2)
    assert in_force() == ("gpipe", 2)
    model.set_pipelining_options(pipeline_schedule="auto", batch_serialization_iterations=2)
    assert in_force() == ("sequential", 4)


def test_executions_are_whole_updates():
    model = build(steps_per_execution=8, **TWICE)
    message = (
        r"One update takes gradient_accumulation_steps_per_replica x batch_serialization_iterations"
        r" x replicas = 2 x 3 x 1 = 6 steps, and the epoch has 10 steps. Set "
        r"steps_per_execution=6 in compile\(\), or gradient_accumulation_steps_per_replica x "
        r"batch_serialization_iterations to a divisor of 8."
    )
    with pytest.raises(PlanError, match=message):
        model.fit(*data(20), batch_size=2, verbose=0)


def test_an_optimizer_that_accumulates_itself_is_refused():
    own = keras.optimizers.SGD(gradient_accumulation_steps=2)
    with pytest.raises(PlanError, match=r"x batch_serialization_iterations=2 x 3\. Remove"):
        build(optimizer=own, **TWICE).fit(*data(20), batch_size=2, verbose=0)


def test_travels_with_the_model(tmp_path):
    model = build(**TWICE)
    model.fit(*data(12), batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    with millrace.Strategy(devices=1).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded._millrace.setup.options == model._millrace.setup.options
    assert [each.pipeline_stage for each in loaded.get_pipeline_stage_assignment()] == [0, 1, 2]
