"""Ways to call fit, and to stop it, after which it continues with the same numbers."""

import contextlib
import os
import signal
import time

import keras
import numpy as np
import pytest
from breaks import (
    BATCH,
    EPOCHS,
    ROWS,
    STEPS,
    X_VAL,
    Y_VAL,
    Stop,
    X,
    Y,
    arrays,
    at_once,
    break_and_compare,
    expect_equal,
    make,
    rows_of,
    train,
)  # fmt: skip

import millrace

pytestmark = pytest.mark.slow

WEIGHTS = np.linspace(0.5, 2, ROWS, dtype="float32")


def labels():
    return (Y > 0).astype("int32")


def classifier(**changed):
    model = make(**changed)
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", weighted_metrics=["accuracy"])
    return model


def streamed(**changed):
    model = make(**changed)
    model.set_infeed_queue_options(max_resident_bytes=0)
    return model


def asynchronous():
    model = make(executed=3)
    model.set_asynchronous_callbacks(True)
    return model


FITS = {
    "initial epoch": {"initial_epoch": 1, "epochs": 4},
    "validation split": {"validation_split": 0.25, "validation_freq": 2, "epochs": 4},
    "weights": {"data": lambda: arrays(sample_weight=WEIGHTS)},
    "class weights": {
        "build": classifier,
        "data": lambda: arrays(y=labels(), class_weight={0: 0.3, 1: 2.0}),
    },
    "batches shuffled": {"data": lambda: arrays(shuffle="batch")},
    "in order": {"data": lambda: arrays(shuffle=False)},
    "streamed": {"build": streamed},
    "streamed, executed": {"build": lambda: streamed(executed=4)},
    "fewer steps": {"steps_per_epoch": 4, "epochs": 5},
    "fewer steps, streamed": {"steps_per_epoch": 4, "epochs": 5, "build": streamed},
    "seven of thirty": {
        "build": lambda: make(executed=7),
        "data": lambda: dict(zip(("x", "y"), rows_of(30), strict=True), batch_size=1),
        "every_steps": 11,
    },
    "remainder": {
        "build": lambda: make(executed=4),
        "data": lambda: dict(zip(("x", "y"), rows_of(23), strict=True), batch_size=4),
    },
    "asynchronous": {"build": asynchronous},
}


@pytest.mark.filterwarnings("ignore:.*ran out of data.*:UserWarning")
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("breaks", [(8, 3), (6, 7)])
def test_fits(tmp_path, fit, breaks):
    break_and_compare(tmp_path, *breaks, **FITS[fit])


SCHEDULES = ["gpipe", "1f1b", "grouped", "sequential", "looped", "zero_bubble", "v_half"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(tmp_path, schedule):
    def build():
        stages = [0, 1, 2, 3, 3] if schedule == "v_half" else [0, 0, 1, 1, 1]
        model = make(devices="cpu:2", accumulation=2, stages=stages)
        model.set_pipelining_options(pipeline_schedule=schedule)
        return model

    break_and_compare(tmp_path, 8, 4, build=build)


@pytest.mark.parametrize("devices", [2, 4])
def test_replicas(tmp_path, devices):
    rows = lambda: dict(zip(("x", "y"), rows_of(48), strict=True), batch_size=BATCH)  # noqa: E731
    build = lambda: make(devices=devices, accumulation=1, executed=devices)  # noqa: E731
    break_and_compare(tmp_path, 16, 8, build=build, data=rows)


@pytest.mark.parametrize("sharding", [False, True])
def test_replicas_with_accumulation(tmp_path, sharding):
    def build():
        model = make(devices=2, accumulation=2, executed=2)
        if sharding:
            model.set_replication_options(replicated_optimizer_state_sharding=True)
        return model

    rows = lambda: dict(zip(("x", "y"), rows_of(64), strict=True), batch_size=BATCH)  # noqa: E731
    break_and_compare(tmp_path, 12, 12, build=build, data=rows)


def test_replicas_interrupted(tmp_path):
    rows = lambda: dict(zip(("x", "y"), rows_of(64), strict=True), batch_size=BATCH)  # noqa: E731
    build = lambda: make(devices=4, accumulation=1, executed=4)  # noqa: E731
    whole = train(build=build, data=rows, callbacks=lambda: [Interrupts("never", 1)])
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, build=build, data=rows, callbacks=lambda: [Interrupts("batch end", 6)])
    resumed = train(tmp_path, build=build, data=rows, callbacks=lambda: [Interrupts("never", 1)])
    expect_equal(whole, resumed, all_steps=False)


def test_replicas_of_a_pipeline(tmp_path):
    def build():
        return make(devices="cpu:4", executed=2, accumulation=2, stages=[0, 0, 1, 1, 1])

    rows = lambda: dict(zip(("x", "y"), rows_of(64), strict=True), batch_size=BATCH)  # noqa: E731
    break_and_compare(tmp_path, 12, 12, build=build, data=rows)


class StopsWithin(keras.callbacks.Callback):
    """Ends the training in the middle of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations is not None and batch == 3 and self.counted == 1:
            self.model.stop_training = True

    def on_train_begin(self, logs=None):
        self.counted = 0

    def on_epoch_end(self, epoch, logs=None):
        self.counted += 1


@pytest.mark.parametrize("breaks", [(5,), (8,), (7, 2)])
def test_stop_training_within_an_epoch(tmp_path, breaks):
    arguments = {"callbacks": lambda: [StopsWithin()], "epochs": 4, "every_steps": 2}
    whole, _ = break_and_compare(tmp_path, *breaks, **arguments)
    assert whole.epochs == [0, 1]
    again = train(tmp_path, **arguments)
    assert again.trained == 0
    assert again.history == whole.history


def phases(directory, stop_after=None):
    """A script of three phases; the last one trains a model that is compiled anew."""
    keras.utils.set_random_seed(7)
    model = make()
    left, losses, histories = [stop_after], [], []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs["loss"]))
            if left[0] is not None:
                left[0] -= 1
                if not left[0]:
                    raise Stop

    def fit(epochs, rows=ROWS):
        saver = []
        if directory is not None:
            saver = [millrace.callbacks.Checkpoint(directory, every_steps=2, async_save=False)]
        history = model.fit(
            X[:rows], Y[:rows], batch_size=BATCH, epochs=epochs, verbose=0,
            callbacks=[*saver, type("W", (Watch,), {})()],
        )  # fmt: skip
        histories.append((history.history, history.epoch))

    try:
        fit(2)
        fit(1, rows=16)
        model.layers[0].trainable = False
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mae", metrics=["mse"])
        fit(2)
    except Stop:
        return losses, None, None
    return (
        losses,
        histories,
        [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)],
    )


@pytest.mark.parametrize("breaks", [(3,), (12,), (14,), (17,), (20,), (27,), (5, 12, 6, 4)])
def test_several_fits_in_one_script(tmp_path, breaks):
    losses, histories, values = phases(None)
    for number in breaks:
        seen, ended, _ = phases(tmp_path, number)
        assert ended is None
        for loss in seen:
            assert loss in losses
    seen, resumed, got = phases(tmp_path)
    assert losses[-len(seen) :] == seen
    assert resumed == histories
    for a, b in zip(got, values, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_callback_list(tmp_path):
    def run(directory, stop=None):
        keras.utils.set_random_seed(7)
        model, losses = make(), []

        class Watch(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                losses.append(float(logs["loss"]))
                if stop is not None and len(losses) == stop:
                    raise Stop

        used = [Watch()]
        if directory is not None:
            used.insert(
                0, millrace.callbacks.Checkpoint(directory, every_steps=5, async_save=False)
            )
        listed = keras.callbacks.CallbackList(
            used, add_history=True, model=model, epochs=EPOCHS, steps=STEPS, verbose=0
        )
        with contextlib.suppress(Stop):
            model.fit(**arrays(), epochs=EPOCHS, callbacks=listed, verbose=0)
        return losses, model.get_weights()

    losses, weights = run(None)
    run(tmp_path, 8)
    seen, got = run(tmp_path)
    assert seen == losses[-len(seen) :]
    assert len(seen) == 13
    for a, b in zip(got, weights, strict=True):
        np.testing.assert_array_equal(a, b)


class Predicts(keras.callbacks.Callback):
    """Evaluates and predicts between epochs, and draws random numbers of all kinds."""

    def on_epoch_end(self, epoch, logs=None):
        self.predicted = self.model.predict(X_VAL, verbose=0)
        self.model.evaluate(X_VAL, Y_VAL, verbose=0)
        np.random.rand(3)
        keras.random.normal((2,))


class Assigns(keras.callbacks.Callback):
    """Changes weights and rates in the middle of epochs."""

    def on_train_batch_begin(self, batch, logs=None):
        rate = 0.01 * (1 + batch)
        self.model.optimizer.learning_rate = rate


class Resets(keras.callbacks.Callback):
    """Begins a layer anew after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        layer = self.model.get_layer("last")
        layer.kernel.assign(np.random.normal(size=layer.kernel.shape))


CALLBACKS = {
    "predicts": Predicts,
    "assigns": Assigns,
    "resets": Resets,
    "terminates": keras.callbacks.TerminateOnNaN,
    "lambda": lambda: keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
    "nan watch": lambda: millrace.callbacks.NaNWatch(),
    "statistics": lambda: millrace.callbacks.TensorStatistics(activations="*", gradients="*"),
}


@pytest.mark.parametrize("callback", CALLBACKS)
@pytest.mark.parametrize("breaks", [(8, 3), (6, 7)])
def test_callbacks(tmp_path, callback, breaks):
    break_and_compare(
        tmp_path, *breaks, callbacks=lambda: [CALLBACKS[callback]()], epochs=4,
        validation_data=(X_VAL, Y_VAL),
    )  # fmt: skip


class Interrupts(keras.callbacks.Callback):
    """Presses Ctrl-C in one place."""

    def __init__(self, place, number):
        super().__init__()
        self.place, self._seen = place, [number]

    def at(self, place):
        if place == self.place:
            self._seen[0] -= 1
            if not self._seen[0]:
                os.kill(os.getpid(), signal.SIGINT)

    def on_epoch_begin(self, epoch, logs=None):
        self.at("epoch begin")

    def on_epoch_end(self, epoch, logs=None):
        self.at("epoch end")

    def on_test_begin(self, logs=None):
        self.at("test begin")

    def on_test_batch_end(self, batch, logs=None):
        self.at("test batch")

    def on_test_end(self, logs=None):
        self.at("test end")

    def on_train_batch_begin(self, batch, logs=None):
        self.at("batch begin")

    def on_train_batch_end(self, batch, logs=None):
        self.at("batch end")

    def on_train_begin(self, logs=None):
        self.at("begin")

    def on_train_end(self, logs=None):
        self.at("end")


PLACES = [
    ("epoch begin", 1), ("epoch begin", 2), ("epoch end", 1), ("epoch end", 3), ("test begin", 2),
    ("test batch", 2), ("test batch", 4), ("test end", 1), ("batch begin", 1), ("batch begin", 7),
    ("batch end", 1), ("batch end", 6), ("batch end", 8), ("batch end", 18), ("begin", 1),
    ("end", 1),
]  # fmt: skip


@pytest.mark.parametrize("executed", [1, 4])
@pytest.mark.parametrize(("place", "number"), PLACES)
def test_interrupts(tmp_path, place, number, executed):
    if executed == 4 and number >= 4:
        pytest.skip("fewer executions")
    arguments = {
        "build": lambda: make(executed=executed, metrics=("mae",)),
        "validation_data": (X_VAL, Y_VAL), "validation_batch_size": 4, "every_steps": 1000,
    }  # fmt: skip
    whole = train(
        build=arguments["build"],
        validation_data=(X_VAL, Y_VAL),
        validation_batch_size=4,
        callbacks=lambda: [Interrupts("never", 1)],
    )
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=lambda: [Interrupts(place, number)], **arguments)
    resumed = train(tmp_path, callbacks=lambda: [Interrupts("never", 1)], **arguments)
    expect_equal(whole, resumed, all_steps=False)


def slow_stream(interrupted_at=None):
    random = np.random.default_rng(5)
    number = 0
    while True:
        number += 1
        if number == interrupted_at:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        x = random.normal(size=(BATCH, 5)).astype("float32")
        yield x, x[:, :1]


@pytest.mark.parametrize("number", [1, 2, 6, 7, 10, 18])
def test_an_interrupt_in_a_slow_generator(tmp_path, number):
    data = lambda: {"x": slow_stream(), "steps_per_epoch": STEPS, "shuffle": False}  # noqa: E731
    whole = train(data=data)
    with pytest.raises(KeyboardInterrupt):
        train(
            tmp_path,
            data=lambda: {"x": slow_stream(number), "steps_per_epoch": STEPS, "shuffle": False},
            every_steps=1000,
        )
    expect_equal(whole, train(tmp_path, data=data, every_steps=1000), all_steps=False)


def short_stream(batches):
    random = np.random.default_rng(5)
    for _ in range(batches):
        x = random.normal(size=(BATCH, 5)).astype("float32")
        yield x, x[:, :1]


@pytest.mark.filterwarnings("ignore:.*ran out of data.*:UserWarning")
@pytest.mark.parametrize("breaks", [(8,), (3, 5)])
def test_a_generator_that_ends_early(tmp_path, breaks):
    data = lambda: {"x": short_stream(15), "steps_per_epoch": STEPS, "shuffle": False}  # noqa: E731
    break_and_compare(tmp_path, *breaks, data=data)


@pytest.mark.filterwarnings("ignore:.*ran out of data.*:UserWarning")
def test_more_steps_than_data(tmp_path):
    break_and_compare(tmp_path, 8, 3, steps_per_epoch=8)


class Drawing(keras.utils.PyDataset):
    """Keeps a generator of random numbers, and one that all share."""

    def __init__(self, shared=False, **arguments):
        super().__init__(**arguments)
        self.random = np.random.default_rng(4)
        self.shared = shared

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        x = self.random.normal(size=(BATCH, 5)).astype("float32")
        if self.shared:
            x = x + np.random.normal(size=x.shape).astype("float32")
        return x, x[:, :1]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("breaks", [(8, 5), (6, 6)])
def test_a_data_set_that_draws(tmp_path, breaks, shuffle, shared):
    data = lambda: {"x": Drawing(shared), "shuffle": shuffle}  # noqa: E731
    break_and_compare(tmp_path, *breaks, data=data)


def shared_stream():
    while True:
        x = np.random.normal(size=(BATCH, 5)).astype("float32")
        yield x, x[:, :1]


@pytest.mark.parametrize("breaks", [(8, 5), (6, 6), (2, 3)])
def test_a_generator_that_draws_from_the_generator_of_all(tmp_path, breaks):
    data = lambda: {"x": shared_stream(), "steps_per_epoch": STEPS, "shuffle": False}  # noqa: E731
    break_and_compare(tmp_path, *breaks, data=data)


def test_validation_data_that_goes_on(tmp_path):
    """A validation that reads on in one stream has to find its place again."""
    arguments = {"validation_steps": 2, "validation_freq": 1}
    whole = train(validation_data=Drawing(), **arguments)
    train(tmp_path, stop_after=8, validation_data=Drawing(), **arguments)
    resumed = train(tmp_path, validation_data=Drawing(), **arguments)
    expect_equal(whole, resumed, all_steps=False)


def test_arrays_of_jax(tmp_path):
    import jax.numpy as jnp

    break_and_compare(tmp_path, 8, 3, data=lambda: arrays(x=jnp.asarray(X), y=jnp.asarray(Y)))


def test_every_epoch(tmp_path):
    _, (_, _, resumed) = break_and_compare(tmp_path, 8, 7, every_steps=None, **at_once())
    assert resumed.begun[0] == (2, 0)
