"""What callbacks lost when other trainers continued; see test_lost_state.py."""

import keras
import pytest
from breaks import SAVED, STEPS, X_VAL, Y_VAL, at_once, break_and_compare, expect_equal, make, train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("breaks", [(14,), (7, 7), (13, 8)])
def test_early_stopping(tmp_path, breaks, best, first):
    """Patience began anew; state was saved before the callback had counted."""

    def callbacks():
        return [
            keras.callbacks.EarlyStopping(
                "val_loss", patience=3, min_delta=10.0, restore_best_weights=best
            )
        ]

    arguments = {"callbacks": callbacks, "validation_data": (X_VAL, Y_VAL), "epochs": 8}
    whole, parts = break_and_compare(tmp_path, *breaks, first=first, **arguments)
    assert len(whole.epochs) == 4
    for name in ("wait", "best", "stopped_epoch", "best_epoch"):
        assert getattr(parts[-1].callbacks[0], name) == getattr(whole.callbacks[0], name)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("every_steps", [SAVED, STEPS])
def test_reduce_lr_on_plateau(tmp_path, every_steps, first):
    """A new callback waited from the beginning, and reduced later."""

    def callbacks():
        return [
            keras.callbacks.ReduceLROnPlateau(
                "loss", factor=0.5, patience=2, cooldown=1, min_delta=10.0
            )
        ]

    arguments = {"callbacks": callbacks, "epochs": 7, "every_steps": every_steps, "first": first}
    whole, parts = break_and_compare(tmp_path, 14, 13, **arguments)
    assert len(set(whole.history["learning_rate"])) > 2
    for name in ("wait", "best", "cooldown_counter"):
        assert getattr(parts[-1].callbacks[0], name) == getattr(whole.callbacks[0], name)


def test_the_best_model_stays(tmp_path):
    """The first epoch after a restart counted as the best so far."""

    def run(name, **arguments):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)

        def callbacks():
            # the loss of this optimizer grows from epoch to epoch
            return [
                keras.callbacks.ModelCheckpoint(
                    str(folder / "{epoch}.weights.h5"), monitor="loss", save_best_only=True,
                    save_weights_only=True,
                )
            ]  # fmt: skip

        run = train(
            build=lambda: make(lambda: keras.optimizers.SGD(-0.05), dropout=0.0),
            callbacks=callbacks, epochs=4, **arguments,
        )  # fmt: skip
        return run, sorted(path.name for path in folder.iterdir())

    whole, expected = run("whole")
    assert expected == ["1.weights.h5"]
    saving = {"directory": tmp_path / "saved", **at_once()}
    _, _ = run("parts", stop_after=9, **saving)
    _, _ = run("parts", stop_after=7, **saving)
    resumed, files = run("parts", **saving)
    assert files == expected
    assert resumed.callbacks[0].best == whole.callbacks[0].best


def test_model_checkpoints_between_batches(tmp_path):
    """Batches since the last save counted from the restart on."""

    def run(name, **arguments):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)

        def callbacks():
            path = str(folder / "{epoch}-{batch}.weights.h5")
            return [keras.callbacks.ModelCheckpoint(path, save_freq=4, save_weights_only=True)]

        train(callbacks=callbacks, **arguments)
        return sorted(path.name for path in folder.iterdir())

    expected = run("whole")
    saving = {"directory": tmp_path / "saved", **at_once()}
    run("parts", stop_after=7, **saving)
    assert run("parts", **saving) == expected


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("stop_after", [14, 20, 19])
def test_csv_file(tmp_path, append, stop_after):
    """Rows written twice, a second header, or rows of earlier epochs gone."""

    def run(name, **arguments):
        path = tmp_path / f"{name}.csv"
        callbacks = lambda: [keras.callbacks.CSVLogger(str(path), append=append)]  # noqa: E731
        trained = train(callbacks=callbacks, epochs=4, **arguments)
        trained.callbacks[0].csv_file.close()  # which Keras does only where nothing is raised
        return path.read_text()

    expected = run("whole")
    # the last checkpoint is at step 8 or 16, an epoch before the break: its row is in the file
    saving = {"directory": tmp_path / "saved", "every_steps": 8, **at_once()}
    run("parts", stop_after=stop_after, **saving)
    assert run("parts", **saving) == expected


@pytest.mark.parametrize("every_steps", [SAVED, STEPS])
def test_a_learning_rate_that_epochs_multiply(tmp_path, every_steps):
    """The rate of an epoch applied twice, or an epoch late."""

    def callbacks():  # a lambda, which cannot be pickled
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: float(rate) * 0.7)]

    break_and_compare(tmp_path, 8, 6, callbacks=callbacks, epochs=4, every_steps=every_steps)


@pytest.mark.parametrize("on_epoch", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("every_steps", [SAVED, STEPS])
def test_averages_that_a_callback_swaps_in(tmp_path, on_epoch, first, every_steps):
    """Training continued from averaged weights, or the averages became the weights."""
    break_and_compare(
        tmp_path,
        8,
        7,
        build=lambda: make(lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8)),
        callbacks=lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)],
        validation_data=(X_VAL, Y_VAL),
        every_steps=every_steps,
        first=first,
    )


def test_a_break_at_the_end_of_an_epoch_with_swapped_averages(tmp_path):
    """A checkpoint of a moment at which the model holds its averages."""
    arguments = {
        "build": lambda: make(lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8)),
        "callbacks": lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
    }
    whole = train(**arguments)
    stopped = train(tmp_path, stop_at=("on_epoch_end", 2), every_steps=1, **arguments)
    assert stopped.stopped
    expect_equal(whole, stopped, train(tmp_path, every_steps=1, **arguments))


def test_several_callbacks_at_once(tmp_path):
    """Two of one class must not exchange their states."""

    def callbacks():
        return [
            keras.callbacks.EarlyStopping("loss", patience=5, min_delta=10.0),
            keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=10.0),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=10.0),
        ]

    arguments = {"callbacks": callbacks, "validation_data": (X_VAL, Y_VAL), "epochs": 9}
    whole, parts = break_and_compare(tmp_path, 8, 8, **arguments)
    for got, expected in zip(parts[-1].callbacks, whole.callbacks, strict=True):
        assert (got.wait, got.best) == (expected.wait, expected.best)


def test_callbacks_in_an_empty_directory_begin_anew(tmp_path):
    """The best value of an earlier fit counted in the next."""
    stopper = keras.callbacks.EarlyStopping("loss", patience=2)
    stopper.best, stopper.wait = -1.0, 5
    whole = train(callbacks=lambda: [keras.callbacks.EarlyStopping("loss", patience=2)])
    got = train(tmp_path / "new", callbacks=lambda: [stopper])
    expect_equal(whole, got)
