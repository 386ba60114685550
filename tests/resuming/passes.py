"""A training that saves every step, and trainings that continue from each of its checkpoints."""

import pathlib
import shutil

import keras
import numpy as np

import millrace

ROWS, BATCH = 22, 4  # five whole batches and one of two rows
FEATURES = 3


def rows(count=ROWS):
    random = np.random.default_rng(8)
    x = random.normal(size=(count, FEATURES)).astype("float32")
    return x, random.normal(size=(count, 1)).astype("float32")


def compiled(steps_per_execution=1, is_built=True, resident=True):
    keras.utils.set_random_seed(3)
    with millrace.Strategy(devices=1).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
    if is_built:
        model.build((None, FEATURES))
    if not resident:
        model.set_infeed_queue_options(max_resident_bytes=0)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9), "mse", steps_per_execution=steps_per_execution
    )
    return model


def recorder(losses):
    """Returns a callback without a state that notes the loss after each execution."""
    epochs = [0]

    def begin(epoch, logs=None):
        epochs[0] = epoch

    def end(batch, logs=None):
        losses[epochs[0], batch] = logs["loss"]

    return keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_train_batch_end=end)


def trained(source, directory=None, *, epochs=3, callbacks=(), model=None, every=1, **options):
    """Trains a new model on a new source. Returns losses by epoch and batch, and the weights.

    Args:
        source: returns the arguments of `fit` that are the data.
        directory: of checkpoints.
    """
    model = compiled(**(model or {}))
    losses, checkpoint = {}, []
    if directory is not None:
        checkpoint = [
            millrace.callbacks.Checkpoint(directory, every_steps=every, keep=None, async_save=False)
        ]
    history = model.fit(
        **{"epochs": epochs, "verbose": 0, **source(), **options},
        callbacks=[*checkpoint, recorder(losses), *callbacks],
    )
    return losses, model.get_weights(), history.history["loss"]


def steps_in(directory):
    """Returns the steps that have a checkpoint."""
    return sorted(int(path.name.rsplit("-", 1)[-1]) for path in _checkpoints(directory))


def _checkpoints(directory):
    return [path for path in pathlib.Path(directory).iterdir() if path.name[-1].isdigit()]


def copied_up_to(directory, step, place):
    """Copies the checkpoints up to a step, as a process that ended there would leave them."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(directory, place)
    for path in _checkpoints(place):
        if int(path.name.rsplit("-", 1)[-1]) > step:
            shutil.rmtree(path)
    return place


def assert_goes_on(source, tmp_path, steps=None, **options):
    """Compares trainings that continue from checkpoints with one without a break, bit by bit.

    Args:
        steps: checkpoints to continue from; None takes every fifth, which are different
            steps of epochs of four and of six.
    """
    whole = trained(source, **options)
    saved = trained(source, tmp_path / "whole", **options)
    assert_same(saved, whole)
    for step in steps or steps_in(tmp_path / "whole")[2::5]:
        place = copied_up_to(tmp_path / "whole", step, tmp_path / "copy")
        assert steps_in(place)[-1] == step
        assert_same(trained(source, place, every=1000, **options), whole, f"after step {step}")


def assert_same(found, expected, where=""):
    for key, loss in found[0].items():
        assert loss == expected[0][key], f"{where}, epoch and batch {key}"
    for value, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_array_equal(value, other, err_msg=where)
    assert found[2] == expected[2], where
