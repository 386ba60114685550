"""Variables that Keras overwrites with their gradient, as scales and histories of float8 layers.

Keras's own accumulation takes the largest of its micro-batches; the same is true of all others.
"""

import functools

import cases
import keras
import numpy as np
import pipeline_cases as pipes
import pytest
import replica_cases
from keras import layers

import millrace
from millrace.errors import ModelError, OptionError

ROWS = np.array([8, 1, 4, 2]).repeat(4)[:, None]  # the first micro-batch has the largest values


def float8():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            # Keras rounds biases to bfloat16.
            layers.Dense(4, "relu", use_bias=False, name="first"),
            layers.Dense(1, use_bias=False, name="last"),
        ]
    )
    for layer in model.layers:
        layer.quantize("float8")
    return model


def data(rows):
    values = cases.table(rows)
    return {**values, "x": values["x"] * ROWS[:rows]}


def case_of(**options):
    options |= {"weight_decay": 0.1, "global_clipnorm": 0.5}
    compiled = cases.optimizer("AdamW", 1e-2, **options)
    return cases.Case("float8", float8, data, 16, lambda: {**compiled(), "loss": "mse"})


CASE = case_of()


def fit(model, batch_size=4, **arguments):
    model.fit(**data(16), batch_size=batch_size, shuffle=False, verbose=0, **arguments)
    return [np.array(variable.value) for variable in model.trainable_variables]


@functools.cache
def by_keras(batches=1, batch_size=4):
    """One epoch of plain Keras, whose optimizer accumulates so many batches."""
    many = {"gradient_accumulation_steps": batches} if batches > 1 else {}
    return fit(cases.compiled(case_of(**many)), batch_size)


MODELS = {
    "accumulated": lambda: pipes.accumulated(
        CASE,
        gradient_accumulation_reduction_method="running_mean",
        dtype=lambda v: "float16" if v.overwrite_with_gradient else None,
    ),
    "pipelined": lambda: pipes.pipelined(CASE),
    "replicas": lambda: replica_cases.replicated(
        CASE, steps=1, replication={"replicated_optimizer_state_sharding": True}
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_largest_of_an_update_counts_as_where_keras_accumulates(name):
    cases.assert_close(fit(MODELS[name]()), by_keras(2))


@pytest.mark.slow
def test_the_largest_of_replicas_of_a_pipeline_counts():
    cases.assert_close(fit(replica_cases.pipelined(CASE, executed=1)), by_keras(4))


def test_parts_of_a_batch_measure_the_gradients_of_the_whole_batch():
    model = cases.compiled(CASE, pipes.strategy(), 2)
    model.set_gradient_accumulation_options(micro_batch=3)  # the last part has two rows
    # The sums of kernels are rounded in another order, and then to float8.
    cases.assert_close(fit(model, 8), by_keras(1, 8), cases.Tolerance(1e-3, 1e-5))


def test_they_are_no_gradients_for_callbacks():
    model = pipes.accumulated(CASE)
    statistics = millrace.callbacks.TensorStatistics(gradients="*")
    fit(model, callbacks=[statistics, millrace.callbacks.NaNWatch(directory=None)])
    assert set(statistics.history["name"]) == {"first/kernel", "last/kernel"}
    with pytest.raises(OptionError, match=r"amax.*first/kernel"):
        fit(model, callbacks=[millrace.callbacks.TensorStatistics(gradients="*amax*")])


def test_a_layer_of_two_stages():
    def build():
        inputs = keras.Input((6,))
        layer = layers.Dense(6, name="twice")
        model = keras.Model(inputs, layers.Dense(1)(layer(layer(inputs))))
        layer.quantize("float8")
        return model

    model = pipes.pipelined(cases.Case("shared", build), [0, 1, 1])
    with pytest.raises(ModelError, match=r"'twice/inputs_scale'.*stages \[0, 1\].*on one stage"):
        fit(model)
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    calls = pipes.leaf_calls(model.get_pipeline_stage_assignment())
    assert [call.pipeline_stage for call in calls] == [0, 0, 1]
