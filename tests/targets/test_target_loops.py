"""Accumulation, executions of any length, and taps, in programs for a GPU and a TPU."""

import keras
import pytest
from keras import layers
from target_programs import Target, bytes_of, check_state, shape_bytes

import millrace

BATCH = (((32, 256), "float32"), ((32, 256), "float32"))


def dense(*more):
    return keras.Sequential(
        [keras.Input((256,)), layers.Dense(256, "relu", name="hidden"), *more, layers.Dense(256)]
    )


def compiled(target, *more, steps=8, optimizer="adam", **options):
    with target.strategy.scope():
        model = dense(*more)
    model.compile(optimizer, "mse", steps_per_execution=steps)
    if options:
        model.set_gradient_accumulation_options(**options)
    return model


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.quick),
        {"gradient_accumulation_reduction_method": "running_mean"},
        {"dtype": "float32", "gradient_accumulation_reduction_method": "sum"},
        {"micro_batch": 8},
        {"offload_weight_update_variables": False},
    ],
    ids=str,
)
def test_accumulation(kind, options):
    target = Target(kind)
    model = compiled(target, gradient_accumulation_steps_per_replica=4, **options)
    check_state(target.precompile(model, BATCH)["train_run"], model)


def test_normalization_over_all_micro_batches(kind):
    target = Target(kind)
    model = compiled(
        target,
        layers.BatchNormalization(),
        gradient_accumulation_steps_per_replica=4,
        synchronized_batch_statistics=True,
    )
    check_state(target.precompile(model, BATCH)["train_run"], model)


@pytest.mark.parametrize("steps", [1, 64])
def test_executions_of_any_length_are_the_same_loop(kind, steps):
    """Their number is an argument: the loops of 64 steps have the instructions of those of 2."""
    target = Target(kind)
    programs = target.precompile(compiled(target, steps=steps), BATCH, steps_per_epoch=64)
    assert set(programs) == {"train_run", "test_run", "predict_run"}
    lengths = {name: len(program.text.splitlines()) for name, program in programs.items()}
    few = Target(kind)
    fewest = few.precompile(compiled(few, steps=2), BATCH, steps_per_epoch=64)
    for name, program in fewest.items():
        assert lengths[name] <= 1.05 * len(program.text.splitlines()), name


@pytest.mark.parametrize(
    "callback",
    [
        pytest.param(
            lambda: millrace.callbacks.TensorStatistics(activations="*", gradients="*"),
            id="statistics",
        ),
        pytest.param(
            lambda: millrace.callbacks.TensorStatistics(
                gradients="*", when="after_compute", every=2
            ),
            id="micro_batches",
        ),
        pytest.param(lambda: millrace.callbacks.NaNWatch(), id="nan_watch"),
    ],
)
def test_watched_tensors_stay_in_the_loop(kind, callback):
    """Statistics are results of a program, not calls of the host from within."""
    target = Target(kind)
    model = compiled(target, gradient_accumulation_steps_per_replica=2)
    plain = target.precompile(model, BATCH)["train_run"]
    watch = callback()
    watch.set_model(model)
    watch.on_train_begin()
    watched = target.precompile(model, BATCH)["train_run"]
    check_state(watched, model)
    assert watched.plan.taps
    more = watched.memory.output_size_in_bytes - plain.memory.output_size_in_bytes
    assert 0 < more < bytes_of(model.trainable_variables)


def test_outfeeds_are_results(kind):
    target = Target(kind)
    gradients, activations = millrace.OutfeedQueue(), millrace.OutfeedQueue()
    model = compiled(target, millrace.layers.Outfeed(activations, name="acts"))
    optimizer = millrace.optimizers.OutfeedOptimizer(keras.optimizers.SGD(), gradients, model=model)
    model.compile(optimizer, "mse", steps_per_execution=8)
    program = target.precompile(model, BATCH)["train_run"]
    kept = 8 * shape_bytes("f32[32,256]")  # of the layer, for each step
    assert program.memory.output_size_in_bytes - program.memory.alias_size_in_bytes >= kept
