"""`millrace checkpoint`, and Keras's own callbacks that save."""

import json
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from click.testing import CliRunner

import millrace
from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.stored import Snapshot
from millrace.errors import CheckpointError
from millrace.tools.cli.main import main

X = np.random.default_rng(0).standard_normal((24, 5)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def run(*words, status=0):
    result = CliRunner().invoke(main, ["checkpoint", *map(str, words)], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == status, result.output
    return result


def build(kind="functional"):
    keras.utils.set_random_seed(0)
    if kind == "sequential":  # built by its first batch
        return keras.Sequential(
            [keras.layers.Dense(4, "tanh"), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
        )
    inputs = keras.Input((5,))
    x = keras.layers.Dense(4, "tanh")(inputs)
    x = keras.layers.BatchNormalization()(keras.layers.Dropout(0.1)(x))
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def train(directory, model, loss="mse", optimizer="adam", epochs=2, **options):
    model = millrace.Strategy(devices=1).attach(model)
    model.compile(optimizer, loss, metrics=["mae"], steps_per_execution=3)
    checkpoint = millrace.callbacks.Checkpoint(directory, **options)
    model.fit(X, Y, batch_size=4, epochs=epochs, verbose=0, callbacks=[checkpoint])
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoints")
    return directory, train(directory, build(), keep=None)


@pytest.fixture
def directory(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "checkpoints")


def write(directory, step, value=1.0):
    values = {"trainable": [np.full(3, value, "float32")]}
    snapshot = Snapshot(step=step, epoch=0, epoch_step=step, kind="fit", model=values, others={})
    CheckpointDirectory(directory).write(snapshot)


def arrays_of(directory, step):
    """The file of the arrays of a checkpoint."""
    return CheckpointDirectory(directory).path_of(step) / "arrays.safetensors"


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_list(directory):
    (directory / "step-00000018.partial-4711").mkdir()
    (directory / "step-00000003.damaged").mkdir()
    write(directory, 9, np.nan)
    arrays_of(directory, 6).write_bytes(b"")
    lines = [" ".join(line.split()) for line in run("list", directory).output.splitlines()]
    assert lines[0] == "step epochs + steps written size kind"
    assert lines[1].startswith("6 1 + 0 ")
    assert " damaged: arrays.safetensors " in lines[1]
    assert lines[2].startswith("9 0 + 9 ")
    assert lines[2].endswith(" fit values are NaN or infinite")
    assert lines[3].startswith("12 2 + 0 ")
    assert lines[3].endswith(" fit")
    assert lines[4:] == ["3 damaged", "18 unfinished"]


def test_list_as_json(directory):
    (directory / "step-00000018.partial-4711").mkdir()
    listed = json.loads(run("list", "--json", directory).output)
    assert listed["writer"] is None
    assert [(each["name"], each["state"]) for each in listed["checkpoints"]] == [
        ("step-00000006", "complete"),
        ("step-00000012", "complete"),
        ("step-00000018.partial-4711", "unfinished"),
    ]
    newest = listed["checkpoints"][1]
    assert (newest["step"], newest["epoch"], newest["epoch_step"]) == (12, 2, 0)
    assert newest["finite"] is True
    assert newest["bytes"] > 100


@pytest.mark.slow
def test_list_names_the_training_that_writes(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "step-00000002.partial-4711").mkdir()
    program = (
        "import sys; from millrace.base.checkpoints.directory import CheckpointDirectory\n"
        "with CheckpointDirectory(sys.argv[1]).locked(): print('locked', flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert other.stdout.readline() == "locked\n"
        (tmp_path / "step-00000002.partial-4711").mkdir()
        output = run("list", tmp_path).output
        assert f"A training writes here: process {other.pid} on " in output
        assert output.splitlines()[2].split() == ["2", "being", "written"]
    finally:
        other.communicate("\n")
    assert "writes here" not in run("list", tmp_path).output


def test_an_empty_directory(tmp_path):
    assert run("list", tmp_path).output == f"No checkpoints in {tmp_path}.\n"
    assert not list(tmp_path.iterdir())
    assert "There are no checkpoints in" in run("verify", tmp_path, status=2).stderr
    run("list", tmp_path / "none", status=2)


def test_verify(directory):
    output = run("verify", directory).output.splitlines()
    assert output[0].startswith("step 6: as it was written, ")
    assert output[1].startswith("step 12: as it was written, ")
    flip(arrays_of(directory, 6))
    first, second = run("verify", directory, status=1).output.splitlines()
    assert first.startswith("step 6: damaged: arrays.safetensors ")
    assert first.endswith("does not match its checksum")
    assert second == output[1]
    run("verify", directory, 6, status=1)
    assert run("verify", directory, 12).output == f"{second}\n"
    message = run("verify", directory, 7, status=2).stderr
    assert "There are those of steps 6, 12." in message


def test_a_checkpoint_that_waits_to_be_replaced_is_complete(directory):
    (directory / "step-00000006").rename(directory / "step-00000006.replaced-4711")
    listed = json.loads(run("list", "--json", directory).output)["checkpoints"]
    assert [(each["name"], each["state"]) for each in listed] == [
        ("step-00000006.replaced-4711", "complete"),
        ("step-00000012", "complete"),
    ]


def test_a_checkpoint_that_is_removed_meanwhile_is_not_damaged(directory, monkeypatch):
    monkeypatch.setattr(CheckpointDirectory, "steps", lambda self: [3, 6, 12])
    assert [line.split()[0] for line in run("list", directory).output.splitlines()[1:]] == [
        "6",
        "12",
    ]
    assert len(run("verify", directory).output.splitlines()) == 2


def test_the_weights_of_a_step(directory, trained):
    model = trained[1]
    newest, earlier = build(), build()
    assert millrace.restore_weights(newest, directory) == 12
    for one, other in zip(newest.weights, model.weights, strict=True):
        assert np.array_equal(one, other)
    assert millrace.restore_weights(earlier, directory, step=6) == 6
    assert not np.array_equal(earlier.get_weights()[0], model.get_weights()[0])
    with pytest.raises(CheckpointError, match="There is no checkpoint of step 7"):
        millrace.restore_weights(newest, directory, step=7)
    flip(arrays_of(directory, 12))
    with pytest.raises(CheckpointError, match=r"The checkpoint of step 12.*There are those of st"):
        millrace.restore_weights(newest, directory)


class OwnModel(keras.Model):
    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def call(self, x):
        return self.dense(x)


def test_the_weights_of_a_model_with_code_of_its_own(tmp_path):
    model = train(tmp_path, OwnModel(keras.layers.Dense(1)), epochs=1)
    again = OwnModel(keras.layers.Dense(1))
    again(X[:1])
    millrace.restore_weights(again, tmp_path, step=6)
    assert np.array_equal(again.get_weights()[0], model.get_weights()[0])


def test_weights_of_another_model_are_refused(directory):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7)])
    before = model.get_weights()
    with pytest.raises(CheckpointError, match="it has 2 of them, and the checkpoint 6"):
        millrace.restore_weights(model, directory)
    other = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(3), keras.layers.BatchNormalization(),
         keras.layers.Dense(1)]
    )  # fmt: skip
    with pytest.raises(CheckpointError, match=r"kernel is float32\[5, 3\], and float32\[5, 4\]"):
        millrace.restore_weights(other, directory)
    assert np.array_equal(model.get_weights()[0], before[0])
    snapshot = Snapshot(step=1, epoch=0, epoch_step=1, kind="loop", model={}, others={})
    CheckpointDirectory(directory / "loop").write(snapshot)
    with pytest.raises(CheckpointError, match="is not of a fit"):
        millrace.restore_weights(model, directory / "loop")


class Stops(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise InterruptedError


def fit(model, callbacks, epochs=3, is_attached=True):
    if is_attached:
        model = millrace.Strategy(devices=1).attach(model)
    model.compile("adam", "mse", steps_per_execution=3 if is_attached else 1)
    return model.fit(
        X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks
    ).history["loss"]


@pytest.mark.slow
def test_backup_and_restore_under_a_strategy(tmp_path):
    def interrupted(name, is_attached):
        """Trains in two processes' worth of models, and returns the loss of the last epoch."""
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / name))
        with pytest.raises(InterruptedError):
            fit(build("sequential"), [backup, Stops(2)], is_attached=is_attached)
        again = build("sequential")
        again.build((None, 5))
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / name))
        losses = fit(again, [backup], is_attached=is_attached)
        assert len(losses) == 1
        return losses

    assert interrupted("ours", True) == pytest.approx(interrupted("plain", False), rel=1e-6)


def test_backup_and_restore_beside_checkpoint(tmp_path):
    def callbacks(*more):
        own = millrace.callbacks.Checkpoint(tmp_path / "checkpoints")
        return [keras.callbacks.BackupAndRestore(str(tmp_path / "backup")), own, *more]

    whole = fit(build("sequential"), [])
    with pytest.raises(InterruptedError):
        fit(build("sequential"), callbacks(Stops(2)))
    again = build("sequential")
    again.build((None, 5))
    assert fit(again, callbacks()) == whole  # History continues, too


def test_model_checkpoint_beside_checkpoint(tmp_path):
    best = str(tmp_path / "best.keras")
    model = build()
    callbacks = [
        keras.callbacks.ModelCheckpoint(best, monitor="loss", save_best_only=True),
        millrace.callbacks.Checkpoint(tmp_path / "checkpoints"),
    ]
    fit(model, callbacks)
    loaded = keras.models.load_model(best)
    assert np.array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    assert json.loads(run("list", "--json", tmp_path / "checkpoints").output)["checkpoints"]
