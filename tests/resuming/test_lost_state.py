"""What users of other trainers lost when they saved, stopped and continued: state and position.

Every test trains once without a break, then once more with breaks. `Stop` stands in for a kill.
docs/lost_state.md has the threads.
"""

import itertools

import keras
import numpy as np
import pytest
from breaks import (
    BATCH,
    SAVED,
    STEPS,
    X_VAL,
    Y_VAL,
    Shuffled,
    X,
    Y,
    arrays,
    at_once,
    break_and_compare,
    expect_equal,
    make,
    place_of,
    rows_of,
    train,
)
from keras import layers

import millrace
from millrace.errors import MillraceError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stop_after", [3, 5, 6, 8, 11, 12, 13, 17])
def test_goes_on_at_the_step_of_the_checkpoint(tmp_path, stop_after):
    """Epochs started again, steps left out, other rows seen."""
    _, (_, resumed) = break_and_compare(tmp_path, stop_after, **at_once())
    # a checkpoint is written after the callbacks of its step, and so after the one that stops
    assert resumed.begun[0] == place_of((stop_after - 1) // SAVED * SAVED)


@pytest.mark.parametrize("executed", [2, 4, 6])
@pytest.mark.parametrize("stop_after", [7, 13])
def test_goes_on_between_executions(tmp_path, executed, stop_after):
    """Every_steps lies within an execution."""
    break_and_compare(tmp_path, stop_after, build=lambda: make(executed=executed))


def test_asynchronous_saves_hold_the_step_at_which_they_were_asked_for(tmp_path):
    """Training continues, and donates its buffers, while a checkpoint is written."""
    wide = lambda: make(width=256, depth=2)  # noqa: E731
    break_and_compare(tmp_path, 4, 5, 4, build=wide, every_steps=1, checkpoint={"keep": 2})


@pytest.mark.parametrize("seed", [7, 8])
def test_random_numbers_come_from_the_checkpoint(tmp_path, seed):
    """Shuffling and dropout after a restart, also of a script with another seed."""
    whole = train()
    stopped = train(tmp_path, stop_after=14)
    np.random.permutation(5)
    resumed = train(tmp_path, seed=seed)
    expect_equal(whole, stopped, resumed)


def test_three_breaks_in_one_epoch(tmp_path):
    """After the second break the position started from nothing again."""
    arguments = {"every_steps": 1, "epochs": 2, **at_once()}
    break_and_compare(tmp_path, 2, 2, 3, 2, **arguments)


def test_epochs_after_the_broken_one_are_whole(tmp_path):
    """What was skipped once was skipped in every later epoch."""
    _, (_, resumed) = break_and_compare(tmp_path, 8, epochs=5, **at_once())
    batches = [sum(epoch == e for e, _ in resumed.rows) for epoch in range(5)]
    assert batches == [1, STEPS, STEPS, STEPS, STEPS]  # from step 5 on


@pytest.mark.parametrize("method", ["on_epoch_end", "on_epoch_begin", "on_train_end"])
@pytest.mark.parametrize("every_steps", [STEPS, STEPS - 1, STEPS + 1])
def test_breaks_between_epochs(tmp_path, method, every_steps):
    """An epoch dropped, repeated or one step longer after the end of an epoch."""
    arguments = {"validation_data": (X_VAL, Y_VAL), **at_once()}
    whole = train(validation_data=(X_VAL, Y_VAL))
    number = 1 if method == "on_train_end" else 2
    stopped = train(tmp_path, stop_at=(method, number), every_steps=every_steps, **arguments)
    assert stopped.stopped
    resumed = train(tmp_path, every_steps=every_steps, **arguments)
    seen = {**stopped.rows, **resumed.rows}
    assert seen == whole.rows
    assert resumed.history == whole.history
    assert resumed.epochs == whole.epochs
    for got, expected in zip(resumed.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("every_steps", [SAVED, STEPS])
def test_breaks_within_validation(tmp_path, every_steps):
    """Validation ran for one batch, and its loss was reported as that of all."""
    arguments = {"validation_data": (X_VAL, Y_VAL), "validation_batch_size": 2}
    whole = train(**arguments)
    saving = {"every_steps": every_steps, **arguments, **at_once()}
    stopped = train(tmp_path, stop_at=("on_test_batch_end", 6), **saving)  # in the second epoch
    assert stopped.stopped
    expect_equal(whole, stopped, train(tmp_path, **saving))


class Numbered:
    """An iterator with a state that does not end."""

    def __init__(self):
        self.number = 2

    def __iter__(self):
        return self

    def __next__(self):
        self.number += 1
        return rows_of(4, seed=self.number)

    def get_state(self):
        return self.number

    def set_state(self, state):
        self.number = state


@pytest.mark.parametrize("data", [lambda: (each for each in Numbered()), Numbered])
@pytest.mark.parametrize("stop", [{"stop_after": 14}, {"stop_at": ("on_test_batch_end", 5)}])
@pytest.mark.parametrize("every_steps", [1, STEPS])
def test_validation_goes_on_in_data_that_does_not_end(tmp_path, data, stop, every_steps):
    """Every validation is of the next batches of a generator, or of the first of an iterator."""

    def run(directory=None, **more):
        return train(
            directory, validation_data=data(), validation_steps=3, every_steps=every_steps,
            epochs=4, **at_once(), **more,
        )  # fmt: skip

    whole = run()
    assert len(set(whole.history["val_loss"])) == 4
    stopped = run(tmp_path, **stop)
    assert stopped.stopped
    expect_equal(whole, stopped, run(tmp_path))


def test_a_smaller_last_batch(tmp_path):
    """The position counted in whole batches."""
    x, y = rows_of(22)
    break_and_compare(tmp_path, 6, 5, data=lambda: arrays(x=x, y=y))


def test_part_of_the_data_for_validation(tmp_path):
    """Validation consumed random numbers of the training data."""
    break_and_compare(tmp_path, 9, validation_split=0.25)


def test_nothing_saved_yet(tmp_path):
    """Told to resume, and there was no checkpoint: an error instead of a beginning."""
    _, (_, resumed) = break_and_compare(tmp_path, 2)
    assert resumed.begun[0] == (0, 0)


def test_one_pass_over_several_epochs(tmp_path):
    """Steps_per_epoch smaller than the data."""
    break_and_compare(tmp_path, 3, steps_per_epoch=2, every_steps=1)


def test_what_callbacks_are_told(tmp_path):
    """Negative times, `25/?`, and steps counted from another number."""
    train(tmp_path, stop_after=9, **at_once())
    resumed = train(tmp_path, **at_once())
    assert resumed.begun[0] == (0, 5)
    assert resumed.steps == [STEPS] * 3
    assert resumed.epochs_begun == [0, 1, 2]


def test_the_same_model_goes_on(tmp_path):
    """After an exception the weights of the model were gone, or newer than its checkpoint."""
    whole = train()
    stopped = train(tmp_path, stop_after=13)
    resumed = train(tmp_path, model=stopped.model)
    expect_equal(whole, stopped, resumed)


def test_a_model_without_an_input(tmp_path):
    """ "your model must be built before you call fit", for a model that fit builds."""

    def build():
        with millrace.Strategy(devices=1).scope():
            model = keras.Sequential([layers.Dense(4, name="first"), layers.Dense(1, name="last")])
        model.compile("adam", "mse")
        return model

    break_and_compare(tmp_path, 8, build=build)


def test_names_that_keras_gives(tmp_path):
    """A cell of a notebook, run twice: layers are called dense_1 instead of dense."""

    def build():
        with millrace.Strategy(devices=1).scope():
            model = keras.Sequential([keras.Input((5,)), layers.Dense(4), layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    whole = train(build=build)
    stopped = train(tmp_path, build=build, stop_after=8)
    try:
        resumed = train(tmp_path, build=build)
    except MillraceError:
        return  # said so, which is not lost
    expect_equal(whole, stopped, resumed)


# The end of training


def test_a_finished_fit_trains_nothing(tmp_path):
    """Training continued after its last step, by a step or an epoch."""
    whole = train(tmp_path)
    again = train(tmp_path)
    assert again.trained == 0
    assert again.history == whole.history
    for got, expected in zip(again.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_finished_fit_goes_on_with_more_epochs(tmp_path, epochs):
    """The end that was saved won over the end that was asked for."""
    whole = train()
    begun = train(tmp_path, epochs=epochs)
    expect_equal(whole, begun, train(tmp_path))


def test_fewer_epochs_than_were_trained(tmp_path):
    """Max_steps below the step of the checkpoint was not respected."""
    train(tmp_path, stop_after=15, **at_once())
    try:
        again = train(tmp_path, epochs=1, **at_once())
    except MillraceError:
        return
    assert again.trained == 0


def patient():
    return [keras.callbacks.EarlyStopping("loss", patience=2, min_delta=10.0)]


def test_a_fit_that_early_stopping_ended_trains_nothing(tmp_path):
    """A run that had stopped early continued when it was started again."""
    whole = train(tmp_path, callbacks=patient, epochs=9)
    assert len(whole.epochs) == 3
    again = train(tmp_path, callbacks=patient, epochs=9)
    assert again.trained == 0
    assert again.history == whole.history


# State of optimizers, layers and metrics

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.01, clipnorm=0.5),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "average": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=4),
    "cosine": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(0.0, 12, warmup_target=0.05, warmup_steps=6)
    ),
    "piecewise": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.PiecewiseConstantDecay([5, 11], [0.1, 0.05, 0.01])
    ),
    "accumulating": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=4),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=4
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(tmp_path, optimizer):
    """Moments, schedules, averages, half an accumulation, scales of losses."""
    build = lambda: make(OPTIMIZERS[optimizer])  # noqa: E731
    break_and_compare(tmp_path, 7, 6, build=build)


@pytest.mark.parametrize("accumulation", [2, 3, 4])
def test_accumulation(tmp_path, accumulation):
    """Steps of updates and of batches mistaken for each other; 4 does not divide 6."""
    build = lambda: make(accumulation=accumulation)  # noqa: E731
    break_and_compare(tmp_path, 7, 8, build=build, all_steps=False)


def test_metrics_within_an_epoch(tmp_path):
    """Means of the broken epoch began at the restart."""
    metrics = lambda: (keras.metrics.MeanAbsoluteError(), keras.metrics.RootMeanSquaredError())  # noqa: E731
    build = lambda: make(metrics=metrics())  # noqa: E731
    break_and_compare(tmp_path, 9, 8, build=build, validation_data=(X_VAL, Y_VAL))


def test_random_layers(tmp_path):
    """Dropout masks repeated from the first step on."""

    def build():
        with millrace.Strategy(devices=1).scope():
            model = keras.Sequential(
                [
                    keras.Input((5,)),
                    layers.GaussianNoise(0.3, name="noise"),
                    layers.Dense(8, "tanh", name="first"),
                    layers.Dropout(0.5, seed=11, name="drop"),
                    layers.GaussianDropout(0.2, name="factor"),
                    layers.Dense(1, name="last"),
                ],
                name="net",
            )
        model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=2)
        return model

    break_and_compare(tmp_path, 9, 4, build=build)


def test_a_recurrent_state(tmp_path):
    """Variables that no gradient changes."""

    def build():
        with millrace.Strategy(devices=1).scope():
            model = keras.Sequential(
                [
                    keras.Input((1, 5), batch_size=BATCH),
                    layers.LSTM(4, stateful=True, name="memory"),
                    layers.Dense(1, name="last"),
                ],
                name="net",
            )
        model.compile("adam", "mse")
        return model

    break_and_compare(tmp_path, 9, build=build, data=lambda: arrays(x=X[:, None], shuffle=False))


# Another program than the one that was saved

OTHERS = {
    "wider": {"build": lambda: make(width=9)},
    "deeper": {"build": lambda: make(depth=2)},
    "optimizer": {"build": lambda: make(lambda: keras.optimizers.SGD(0.01, momentum=0.9))},
    "rows": {"data": lambda: arrays(x=X[:20], y=Y[:20])},
    "batch size": {"data": lambda: arrays(batch_size=6)},
    "source": {"data": lambda: {"x": Shuffled()}},
}


@pytest.mark.parametrize("other", OTHERS)
def test_refuses_what_does_not_fit(tmp_path, other):
    """Rows left out of another data set; other variables filled by position."""
    whole = train()
    stopped = train(tmp_path, stop_after=8, **at_once())
    with pytest.raises(MillraceError):
        train(tmp_path, **OTHERS[other], **at_once())
    expect_equal(whole, stopped, train(tmp_path, **at_once()))  # which is left as it was


def expect_close(whole, resumed):
    assert resumed.epochs == whole.epochs
    for name, values in whole.history.items():
        np.testing.assert_allclose(resumed.history[name], values, rtol=1e-4)
    for got, expected in zip(resumed.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("executed", [(1, 3), (4, 1)])
def test_another_number_of_steps_per_execution(tmp_path, executed):
    """It does not change results, and so it may change."""
    before, after = (lambda: make(executed=executed[0])), (lambda: make(executed=executed[1]))
    whole = train(build=after)
    train(tmp_path, build=before, stop_after=9)
    expect_close(whole, train(tmp_path, build=after))


DEVICES = {
    "one device": {"accumulation": 2},
    "two replicas": {"devices": 2, "accumulation": 1, "executed": 2},
    "two stages": {"devices": "cpu:2", "accumulation": 2, "stages": [0, 0, 1, 1]},
}


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(DEVICES, 2)))
def test_other_devices(tmp_path, before, after):
    """As many devices as before, or an error; in one case, other rows without a word."""

    def build(way):  # without means over rows, which replicas do not have in common
        return make(dropout=0.0, norm=False, **DEVICES[way])

    whole = train(build=lambda: build(after))
    stopped = train(tmp_path, build=lambda: build(before), stop_after=8, **at_once())
    assert stopped.stopped
    resumed = train(tmp_path, build=lambda: build(after))
    assert resumed.begun[0] > (0, 0)
    expect_close(whole, resumed)
