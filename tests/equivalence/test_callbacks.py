"""Keras's callbacks, and epochs, steps and stops as plain Keras counts them."""

import csv

import cases
import keras
import numpy as np
import pytest

from case_marks import slow

CASE = cases.Case("binary", cases.mlp, compile=cases.optimizer("SGD", 0.1))


def pair(strategy, case=CASE, steps_per_execution=2, **changes):
    """A stock model and an attached one, from the same seeds."""
    return (
        cases.compiled(case, **changes),
        cases.compiled(case, strategy, steps_per_execution, **changes),
    )


def fit(model, rows=20, seed=2, **arguments):
    keras.utils.set_random_seed(seed)
    history = model.fit(**CASE.data(rows), batch_size=4, verbose=0, **arguments)
    return cases.outcome(model, history)


def assert_fits_are_same(strategy, make_callbacks, **arguments):
    """Runs both fits with callbacks of their own, and returns these."""
    made, outcomes = [], []
    for model in pair(strategy):
        made.append(make_callbacks())
        outcomes.append(fit(model, callbacks=made[-1], **arguments))
    cases.assert_same(outcomes[1], outcomes[0])
    return made


class Recorder(keras.callbacks.Callback):
    """Notes every call with the names of its logs."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def steps(self, name):
        return [step for n, step, _ in self.calls if n == name]


def _note(name):
    def method(self, step=None, logs=None):
        if name.endswith(("train_begin", "train_end", "test_begin", "test_end")):
            step, logs = None, step
        self.calls.append((name, step, sorted(logs or {})))

    return method


for _name in (
    "train_begin", "train_end", "test_begin", "test_end", "epoch_begin", "epoch_end",
    "train_batch_begin", "train_batch_end", "test_batch_begin", "test_batch_end",
):  # fmt: skip
    setattr(Recorder, f"on_{_name}", _note(_name))


@pytest.mark.slow
def test_calls_come_in_the_order_of_keras(strategy):
    recorders = []
    for model in pair(strategy, steps_per_execution=1):
        recorders.append(Recorder())
        data = cases.first(CASE.data(20), 6)
        fit(model, epochs=2, callbacks=[recorders[-1]], validation_data=data)
    assert recorders[1].calls == recorders[0].calls


@pytest.mark.parametrize(
    ("steps", "steps_per_execution", "ends"),
    [(96, 16, range(15, 96, 16)), (128, 256, [127]), (10, 4, [3, 7, 9])],
)
def test_steps_of_batch_callbacks(strategy, steps, steps_per_execution, ends):
    model = cases.compiled(CASE, strategy, steps_per_execution)
    recorder = Recorder()
    data = CASE.data(steps)
    model.fit(**data, batch_size=1, verbose=0, callbacks=[recorder])
    model.evaluate(**data, batch_size=1, verbose=0, callbacks=[recorder])
    for mode in ("train", "test"):
        assert recorder.steps(f"{mode}_batch_begin") == list(range(0, steps, steps_per_execution))
        assert recorder.steps(f"{mode}_batch_end") == list(ends)
    assert int(model.optimizer.iterations) == steps


def test_initial_epoch(strategy):
    outcomes = [fit(model, initial_epoch=3, epochs=5) for model in pair(strategy)]
    cases.assert_same(outcomes[1], outcomes[0])
    assert outcomes[1].epochs == [3, 4]
    assert int(outcomes[1].model.optimizer.iterations) == 10


def test_early_stopping_restores_the_best_weights(strategy):
    def callbacks():
        return [
            keras.callbacks.EarlyStopping(
                "val_loss", patience=1, mode="max", restore_best_weights=True
            )
        ]

    stock, attached = assert_fits_are_same(
        strategy, callbacks, epochs=6, validation_data=cases.first(CASE.data(20), 8)
    )
    assert attached[0].stopped_epoch == stock[0].stopped_epoch > 0


@pytest.mark.parametrize("save_freq", ["epoch", 4])
def test_model_checkpoint(strategy, tmp_path, save_freq):
    saved = []
    models = pair(strategy, steps_per_execution=1 if save_freq == 4 else 2)
    for name, model in zip(("stock", "attached"), models, strict=True):
        path = tmp_path / name
        path.mkdir()
        checkpoint = keras.callbacks.ModelCheckpoint(
            str(path / "{epoch}.weights.h5"), save_weights_only=True, save_freq=save_freq
        )
        fit(model, epochs=3, callbacks=[checkpoint])
        weights = {}
        for file in sorted(path.iterdir()):
            loaded = cases.compiled(CASE)
            loaded.load_weights(file)
            weights[file.name] = loaded.get_weights()
        saved.append(weights)
    cases.assert_close(saved[1], saved[0])
    assert len(saved[0]) == 3


def test_model_checkpoint_of_whole_models(strategy, tmp_path):
    model = cases.compiled(CASE, strategy, 2)
    path = str(tmp_path / "best.keras")
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_best_only=True, monitor="loss")
    fit(model, epochs=2, callbacks=[checkpoint])
    cases.assert_close(keras.models.load_model(path).get_weights(), model.get_weights())


def test_reduce_lr_on_plateau(strategy):
    def callbacks():
        return [keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, mode="max")]

    assert_fits_are_same(strategy, callbacks, epochs=4)


def test_learning_rate_scheduler(strategy):
    def callbacks():
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]

    assert_fits_are_same(strategy, callbacks, epochs=3)


def test_csv_logger(strategy, tmp_path):
    rows = []
    for name, model in zip(("stock.csv", "attached.csv"), pair(strategy), strict=True):
        logger = keras.callbacks.CSVLogger(str(tmp_path / name))
        fit(model, epochs=2, callbacks=[logger], validation_data=cases.first(CASE.data(20), 8))
        with (tmp_path / name).open() as file:
            rows.append([{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)])
    assert len(rows[1]) == 2
    cases.assert_close(rows[1], rows[0])


def test_terminate_on_nan(strategy):
    outcomes = []
    for model in pair(strategy, steps_per_execution=1):
        data = CASE.data(20)
        data["x"][9] = np.nan
        callbacks = [keras.callbacks.TerminateOnNaN()]
        history = model.fit(
            **data, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=callbacks
        )
        outcomes.append(cases.outcome(model, history))
    cases.assert_same(outcomes[1], outcomes[0])
    assert int(outcomes[1].model.optimizer.iterations) == 3
    assert outcomes[1].epochs == [0]


def test_terminate_on_nan_stops_after_the_execution(strategy):
    model = cases.compiled(CASE, strategy, 2)
    data = CASE.data(20)
    data["x"][9] = np.nan
    callbacks = [keras.callbacks.TerminateOnNaN()]
    model.fit(**data, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    assert int(model.optimizer.iterations) == 4


@pytest.mark.parametrize(("save_freq", "steps_per_execution"), [("epoch", 2), (2, 1)])
def test_backup_and_restore(strategy, tmp_path, save_freq, steps_per_execution):
    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise RuntimeError("interrupted")

    outcomes = []
    models = pair(strategy, steps_per_execution=steps_per_execution)
    for name, model in zip(("stock", "attached"), models, strict=True):
        directory = str(tmp_path / name)
        backup = keras.callbacks.BackupAndRestore(directory, save_freq=save_freq)
        with pytest.raises(RuntimeError, match="interrupted"):
            fit(model, epochs=3, shuffle=False, callbacks=[backup, Fails()])
        model.set_weights([0 * weight for weight in model.get_weights()])
        backup = keras.callbacks.BackupAndRestore(directory, save_freq=save_freq)
        outcomes.append(fit(model, epochs=3, shuffle=False, callbacks=[backup]))
    cases.assert_same(outcomes[1], outcomes[0])
    assert outcomes[1].epochs[-1] == 2
    assert len(outcomes[1].epochs) < 3


def test_a_lambda_callback_reads_the_weights_of_every_batch(strategy):
    read = []
    for model in pair(strategy, steps_per_execution=1):
        weights = []

        # Through the callback: only its `model` puts the values of the loop into the variables.
        callback = keras.callbacks.LambdaCallback()
        callback.on_train_batch_end = lambda batch, logs, callback=callback, weights=weights: (
            weights.append(callback.model.get_weights())
        )
        fit(model, callbacks=[callback])
        read.append(weights)
    assert len(read[1]) == 5
    cases.assert_close(read[1], read[0])


def test_a_callback_reads_the_weights_of_every_execution(strategy):
    """Those after steps 2, 4 and 5, and what it writes stays."""
    read = []
    for model, wanted in zip(pair(strategy), ([1, 3, 4], [1, 3, 4]), strict=True):
        weights = []

        class Reads(keras.callbacks.Callback):
            def __init__(self, weights, wanted):
                super().__init__()
                self.weights, self.wanted = weights, wanted

            def on_train_batch_end(self, batch, logs=None):
                if batch in self.wanted:
                    self.weights.append([np.array(w) for w in self.model.get_weights()])
                    if batch == 3:
                        self.model.layers[0].kernel.assign(0.5 * self.model.layers[0].kernel)

        fit(model, callbacks=[Reads(weights, wanted)])
        read.append([*weights, model.get_weights()])
    assert len(read[1]) == 4
    cases.assert_close(read[1], read[0])


def test_tensorboard(strategy, tmp_path):
    pytest.importorskip("tensorboard")
    pytest.importorskip("tensorflow")
    fit(
        cases.compiled(CASE, strategy, 2),
        epochs=2,
        callbacks=[keras.callbacks.TensorBoard(str(tmp_path), histogram_freq=1)],
    )
    assert list(tmp_path.rglob("events.out*"))


@pytest.mark.parametrize("other_is_attached", [False, slow(True)])
def test_a_callback_runs_another_model(strategy, other_is_attached):
    """Its loops neither take over nor disturb those of the model that is being trained."""
    other = cases.compiled(CASE, strategy if other_is_attached else None, 3)
    x, y = CASE.data(10).values()
    expected = cases.compiled(CASE).predict(x, batch_size=4, verbose=0)
    predictions = []

    class Predicts(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            predictions.append(other.predict(x, batch_size=4, verbose=0))

        def on_epoch_end(self, epoch, logs=None):
            other.fit(x, y, batch_size=4, verbose=0, shuffle=False)
            other.set_weights(start)

    start = other.get_weights()
    reference, model = pair(strategy)
    found = fit(model, epochs=2, callbacks=[Predicts()])
    cases.assert_same(found, fit(reference, epochs=2))
    assert len(predictions) == 6
    for prediction in predictions:
        cases.assert_close(prediction, expected)


@pytest.mark.parametrize("when", ["on_epoch_end", "on_train_batch_end"])
def test_a_callback_evaluates_the_model_itself(strategy, when):
    data = CASE.data(10)

    class Evaluates(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.found = []

        def evaluate(self, index, logs=None):
            evaluated = self.model.evaluate(**data, batch_size=4, return_dict=True, verbose=0)
            self.found.append((evaluated, self.model.predict(data["x"], verbose=0)))

    setattr(Evaluates, when, Evaluates.evaluate)
    found, outcomes = [], []
    for model in pair(strategy, steps_per_execution=1 if when == "on_train_batch_end" else 2):
        callback = Evaluates()
        outcomes.append(fit(model, epochs=2, callbacks=[callback]))
        found.append(callback.found)
    cases.assert_same(outcomes[1], outcomes[0])
    cases.assert_close(found[1], found[0])


def test_a_callback_changes_the_learning_rate_of_every_batch(strategy):
    class Changes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = 0.1 / (1 + batch)

    outcomes = [
        fit(model, epochs=2, callbacks=[Changes()])
        for model in pair(strategy, steps_per_execution=1)
    ]
    cases.assert_same(outcomes[1], outcomes[0])


def test_a_callback_stops_training_within_an_epoch(strategy):
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 3

    stock, _ = outcomes = [fit(model, epochs=3, callbacks=[Stops()]) for model in pair(strategy)]
    cases.assert_same(outcomes[1], stock)
    assert stock.epochs == [0]
    assert int(outcomes[1].model.optimizer.iterations) == 4
    # The next fit starts anew.
    cases.assert_same(*[fit(outcome.model) for outcome in reversed(outcomes)])


def test_the_learning_rate_changes_between_fits(strategy):
    outcomes = []
    for model in pair(strategy):
        fit(model)
        model.optimizer.learning_rate = 0.01
        outcomes.append(fit(model))
    cases.assert_same(outcomes[1], outcomes[0])


def test_weights_change_between_fits(strategy):
    outcomes = []
    for model in pair(strategy):
        fit(model)
        model.set_weights([0.5 * weight for weight in model.get_weights()])
        model.layers[0].kernel.assign(0.1 * model.layers[0].kernel)
        outcomes.append(fit(model))
    cases.assert_same(outcomes[1], outcomes[0])


def test_compiling_anew(strategy):
    outcomes = []
    for model in pair(strategy):
        fit(model)
        model.compile("adam", "mse", metrics=["mae"], steps_per_execution=model.steps_per_execution)
        outcomes.append(fit(model))
    cases.assert_same(outcomes[1], outcomes[0])
    assert list(outcomes[1].history) == ["loss", "mae"]


def test_freezing_layers(strategy):
    outcomes = []
    for model in pair(strategy, cases.Case("normalized", cases.normalized)):
        fit(model)
        model.layers[0].trainable = model.layers[1].trainable = False
        model.compile("adam", "mse", steps_per_execution=model.steps_per_execution)
        frozen = [np.array(weight) for weight in model.layers[0].get_weights()]
        outcomes.append(fit(model))
        for weight, value in zip(model.layers[0].get_weights(), frozen, strict=True):
            np.testing.assert_array_equal(weight, value)
    cases.assert_same(outcomes[1], outcomes[0])


@pytest.mark.parametrize("steps_per_execution", [1, 2, 100])
@pytest.mark.parametrize("shuffle", [False, True])
def test_one_pass_goes_on_over_several_epochs(strategy, steps_per_execution, shuffle):
    """Epochs of 3 steps out of 7: the third one runs out of data, with Keras's warning."""
    outcomes = []
    for model in pair(strategy, steps_per_execution=steps_per_execution):
        with pytest.warns(UserWarning, match="ran out of data"):
            outcomes.append(fit(model, 28, epochs=4, steps_per_epoch=3, shuffle=shuffle))
    cases.assert_same(outcomes[1], outcomes[0])


def test_whole_passes_over_several_epochs(strategy):
    outcomes = [
        fit(model, 24, epochs=4, steps_per_epoch=3)
        for model in pair(strategy, steps_per_execution=2)
    ]
    cases.assert_same(outcomes[1], outcomes[0])


def test_more_steps_than_data(strategy):
    outcomes = []
    for model in pair(strategy):
        with pytest.warns(UserWarning, match="ran out of data"):
            outcomes.append(fit(model, epochs=2, steps_per_epoch=9))
    cases.assert_same(outcomes[1], outcomes[0])


def test_validation_steps_and_frequency(strategy):
    outcomes = [
        fit(
            model,
            epochs=4,
            validation_data=cases.first(CASE.data(20), 18),
            validation_steps=3,
            validation_freq=2,
        )
        for model in pair(strategy)
    ]
    cases.assert_same(outcomes[1], outcomes[0])
    assert len(outcomes[1].history["val_loss"]) == 2


def test_validation_at_chosen_epochs(strategy):
    data = cases.first(CASE.data(20), 8)
    outcomes = [
        fit(model, epochs=4, validation_data=data, validation_freq=[1, 4])
        for model in pair(strategy)
    ]
    cases.assert_same(outcomes[1], outcomes[0])


def test_an_exception_in_a_callback_leaves_a_model_that_trains_on(strategy):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                raise KeyError("callback")

    outcomes = []
    for model in pair(strategy):
        with pytest.raises(KeyError, match="callback"):
            fit(model, callbacks=[Fails()])
        outcomes.append(fit(model))
    cases.assert_same(outcomes[1], outcomes[0])


def test_the_progress_bar_counts_to_the_end(strategy, capsys):
    model = cases.compiled(CASE, strategy, 3)
    model.fit(**CASE.data(20), batch_size=4, verbose=1)
    assert "5/5" in capsys.readouterr().out
    model.evaluate(**CASE.data(20), batch_size=4, verbose=1)
    assert "5/5" in capsys.readouterr().out
