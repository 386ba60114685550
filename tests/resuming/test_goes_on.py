"""A training that is stopped and started again continues with the same numbers: the quick cases."""

import time

import keras
import numpy as np
import pytest
from breaks import BATCH, STEPS, Stop, X, Y, at_once, expect_equal, train
from keras import layers

import millrace
from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.errors import MillraceError


def tiny():
    """A model with statistics, seeds and moments, in few operations."""
    with millrace.Strategy(devices=1).scope():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(1, name="last"),
                layers.Dropout(0.3, name="drop"),
            ],
            name="net",
        )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", steps_per_execution=2)
    return model


def arguments(**changed):
    return {"build": tiny, "epochs": 2, "every_steps": 2, **at_once(), **changed}


@pytest.fixture(scope="module")
def whole():
    return train(build=tiny, epochs=2)


@pytest.mark.parametrize("stop_after", [4, 6, 8])
def test_the_same_numbers_after_a_break(tmp_path, whole, stop_after):
    stopped = train(tmp_path, stop_after=stop_after, **arguments())
    assert stopped.stopped
    expect_equal(whole, stopped, train(tmp_path, **arguments()))


def test_another_seed_and_asynchronous_files(tmp_path, whole):
    changed = arguments(checkpoint={})
    stopped = train(tmp_path, stop_after=8, **changed)
    np.random.permutation(5)
    expect_equal(whole, stopped, train(tmp_path, seed=8, **changed))


def test_a_finished_fit_trains_nothing(tmp_path, whole):
    expect_equal(whole, train(tmp_path, **arguments()))
    again = train(tmp_path, **arguments())
    assert again.trained == 0
    assert again.history == whole.history


def test_it_says_where_it_goes_on(tmp_path, capsys):
    def said(stop_after=None, **changed):
        train(tmp_path, stop_after=stop_after, **arguments(**{"verbose": 2, **changed}))
        return capsys.readouterr().err

    (tmp_path / "step-00000002.partial-17").mkdir()
    assert said(verbose=0, stop_after=1) == ""
    (tmp_path / "step-00000002.partial-17").mkdir()
    assert said(stop_after=4) == (
        f"No complete checkpoint in {tmp_path}: a process ended while it wrote "
        "step-00000002.partial-17. Training begins at step 0.\n"
    )
    assert f"Continues from {tmp_path / 'step-00000002'}: epoch 1, after 2 of its steps." in said()
    assert "12: it had ended after 2 epochs, and no epoch is run." in said()


@pytest.mark.parametrize(
    ("every_steps", "step", "asked"), [(2, 4, "every_steps=2"), (None, 12, "an epoch")]
)
def test_it_says_that_checkpoints_lag_behind(
    tmp_path, capsys, caplog, monkeypatch, every_steps, step, asked
):
    write = CheckpointDirectory.write

    def slow(directory, snapshot):
        time.sleep(0.5)
        return write(directory, snapshot)

    monkeypatch.setattr(CheckpointDirectory, "write", slow)
    train(tmp_path, **arguments(every_steps=every_steps, checkpoint={}, verbose=2, epochs=3))
    said = f"{capsys.readouterr().err}\n{caplog.text}"
    lines = [line for line in said.splitlines() if "waits" in line]
    assert len(lines) == 1
    assert f"The checkpoint of step {step} waits" in lines[0]
    assert f"longer than {asked}. None is complete yet" in lines[0]


def test_a_damaged_checkpoint_is_passed_over(tmp_path, whole):
    stopped = train(tmp_path, stop_after=8, **arguments())
    (tmp_path / "step-00000006" / "checkpoint.json").write_text("{}")
    resumed = train(tmp_path, **arguments())
    assert resumed.begun[0] == (0, 4)
    expect_equal(whole, stopped, resumed)


@pytest.mark.parametrize("changed", [{"x": X[:20], "y": Y[:20]}, {"batch_size": 6}])
def test_other_data_is_refused(tmp_path, changed):
    train(tmp_path, stop_after=4, **arguments())
    data = {"x": X, "y": Y, "batch_size": BATCH, **changed}
    with pytest.raises(MillraceError, match="Nothing has been changed"):
        train(tmp_path, data=lambda: data, **arguments())


def test_ctrl_c_between_epochs_is_saved(tmp_path, whole):
    class Interrupts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    quiet = arguments(every_steps=1000)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=lambda: [Interrupts()], **quiet)
    resumed = train(tmp_path, **quiet)
    assert sum(epoch == 1 for epoch, _ in resumed.rows) == STEPS // 2
    expect_equal(whole, resumed, all_steps=False)


def test_a_callback_that_saw_an_interrupted_end_of_an_epoch_sees_it_once(tmp_path):
    class Counts(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.epochs = []

        def on_epoch_end(self, epoch, logs=None):
            self.epochs.append(epoch)

    class Interrupts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    quiet = arguments(every_steps=1000)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=lambda: [Counts(), Interrupts()], **quiet)
    resumed = train(tmp_path, callbacks=lambda: [Counts()], **quiet)
    assert resumed.callbacks[0].epochs == [0, 1]


def test_the_second_fit_of_a_script_draws_what_it_drew(tmp_path):
    """The order of rows of the second fit follows from the end of the first, resumed or not."""

    def script(directory, stops=False):
        keras.utils.set_random_seed(7)
        model, savers, losses = tiny(), [], []

        class Watch(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                losses.append(logs["loss"])
                if stops and len(losses) > STEPS // 2:
                    raise Stop

        if directory is not None:
            savers = [millrace.callbacks.Checkpoint(directory, async_save=False)]
        for _ in range(2):
            model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[*savers, Watch()])
        return losses

    expected = script(None)
    with pytest.raises(Stop):
        script(tmp_path, stops=True)
    assert script(tmp_path) == expected[STEPS // 2 :]
