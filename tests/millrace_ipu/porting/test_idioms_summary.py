"""Idioms of TensorBoard: `tf.summary` and the callback, without TensorFlow."""

import io
import logging
import sys

import numpy as np
import pytest
from idioms import idiom
from PIL import Image
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.util.tensor_util import make_ndarray

from millrace.errors import OptionError
from millrace_ipu.tensorflow import summary

SETUP = """
import numpy as np
import tensorflow as tf
from tensorflow.python import ipu

tf.random.set_seed(3)
x = np.random.default_rng(1).normal(size=(8, 4)).astype("float32")
y = x.sum(1, keepdims=True)
"""


def events(directory):
    """(tag, plugin, step, tensor) of each value in the event files of a directory."""
    values = []
    for path in sorted(directory.glob("*tfevents*")):
        for event in event_file_loader.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                plugin = value.metadata.plugin_data.plugin_name
                values.append((value.tag, plugin, event.step, make_ndarray(value.tensor)))
    return values


def scalars(directory):
    return {
        (tag, step): tensor.item()
        for tag, plugin, step, tensor in events(directory)
        if plugin == "scalars"
    }


@idiom("Inspection", "`tf.summary.create_file_writer(path)`, `with writer.as_default():`")
@idiom("Inspection", "`tf.summary.scalar`, `histogram`, `image` and `text`")
@idiom("Inspection", "`tf.summary.experimental.set_step`, `tf.summary.record_if`, `flush`")
def test_summaries(program, tmp_path):
    printed = program(
        SETUP
        + """
writer = tf.summary.create_file_writer("logs")
with writer.as_default():
    for step in range(3):
        tf.summary.scalar("loss", tf.constant(1.5) * step, step=step)
    tf.summary.histogram("weights", x, step=1, buckets=10)
    tf.summary.image("picture", np.ones((1, 2, 3, 1), "float32") * 0.5, step=2)
    tf.summary.text("note", "hello", step=3)
    tf.summary.experimental.set_step(7)
    tf.summary.scalar("from_the_step", 2)
    with tf.summary.record_if(lambda: False):
        print(tf.summary.scalar("never", 1.0, step=1))
    tf.summary.experimental.set_step(None)
print(tf.summary.scalar("without_a_writer", 1.0, step=0))
with tf.summary.create_file_writer("other").as_default(step=5):
    tf.summary.scalar("a", 0.25)
    tf.summary.flush()
"""
    )
    assert printed == "False\nFalse\n"
    assert scalars(tmp_path / "logs") == {
        ("loss", 0): 0.0,
        ("loss", 1): 1.5,
        ("loss", 2): 3.0,
        ("from_the_step", 7): 2.0,
    }
    assert scalars(tmp_path / "other") == {("a", 5): 0.25}
    by_plugin = {plugin: tensor for _, plugin, _, tensor in events(tmp_path / "logs")}
    assert by_plugin["histograms"].shape == (10, 3)
    assert by_plugin["histograms"][:, 2].sum() == 32
    assert by_plugin["text"].item() == b"hello"
    width, height, picture = by_plugin["images"]
    assert (width, height) == (b"3", b"2")
    pixels = np.asarray(Image.open(io.BytesIO(picture)))
    assert (pixels == 128).all()
    assert pixels.shape == (2, 3)


def test_a_summary_without_a_step_says_what_to_write(program):
    with pytest.raises(OptionError, match=r"scalar\('loss'\) has no step. Pass step=, or call tf"):
        program("""
        import tensorflow as tf
        with tf.summary.create_file_writer("logs").as_default():
            tf.summary.scalar("loss", 1.0)
        """)


@idiom("Inspection", "`tf.summary.trace_on`, `tf.summary.scalar` in a `tf.function`: one line")
def test_what_has_no_effect_says_so(program, tmp_path, caplog):
    from millrace_ipu.tensorflow.no_operation import notes

    notes.clear()
    program("""
        import tensorflow as tf

        @tf.function(jit_compile=True)
        def step(x):
            tf.summary.scalar("inside", x, step=0)
            return x + 1

        with tf.summary.create_file_writer("logs").as_default():
            for _ in range(2):
                tf.summary.trace_on(graph=True)
                print(step(tf.constant(1.0)))
                tf.summary.trace_export("graph", step=0)
    """)
    warned = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 2
    assert "trace_on has no effect: jax.profiler.trace" in warned[0]
    assert "'inside') in a compiled function writes nothing: take the value out" in warned[1]
    assert not (tmp_path / "logs").exists()


@idiom("Training", "`TensorBoard(log_dir, histogram_freq=1, update_freq='batch')`")
@idiom("Training", "a callback of one's own that writes to `tf.summary` and evaluates")
def test_the_callback(program, tmp_path):
    program(
        SETUP
        + """
class Evaluates(tf.keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.writer = tf.summary.create_file_writer(path)

    def on_epoch_end(self, epoch, logs=None):
        with self.writer.as_default():
            tf.summary.scalar("own", logs["loss"], step=epoch)


with ipu.ipu_strategy.IPUStrategy().scope():
    model = tf.keras.Sequential([tf.keras.Input(4), tf.keras.layers.Dense(1, name="out")])
    model.compile(tf.keras.optimizers.SGD(0.125), "mse", steps_per_execution=2)
    board = tf.keras.callbacks.TensorBoard(
        "logs", histogram_freq=2, update_freq="batch", write_images=True, profile_batch=0
    )
    history = model.fit(
        x, y, batch_size=2, epochs=3, verbose=0, validation_data=(x, y), validation_freq=2,
        callbacks=[board, Evaluates("own")],
    )
np.save("losses.npy", history.history["loss"])
"""
    )
    losses = np.load(tmp_path / "losses.npy").astype("float32").tolist()
    train, validation = scalars(tmp_path / "logs/train"), scalars(tmp_path / "logs/validation")
    assert [train["epoch_loss", i] for i in range(3)] == losses
    assert train["epoch_learning_rate", 0] == 0.125
    assert [step for tag, step in train if tag == "batch_loss"] == [1, 2, 3, 4, 5, 6]
    assert ("epoch_loss", 1) in validation
    assert ("evaluation_loss_vs_iterations", 8) in validation
    assert scalars(tmp_path / "own")["own", 2] == losses[2]
    kinds = {(tag, plugin, step) for tag, plugin, step, _ in events(tmp_path / "logs/train")}
    histograms = {(tag, step) for tag, plugin, step in kinds if plugin == "histograms"}
    kernel = "kernel/histogram"  # after the name of the layer, where Keras gives it
    assert {step for tag, step in histograms if tag.endswith(kernel)} == {0, 2}
    assert any(plugin == "graph_keras_model" for _, plugin, _ in kinds)
    assert any(plugin == "images" for _, plugin, _ in kinds)


def test_the_package_is_asked_for_where_it_is_absent(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(OptionError, match=r'pip install "millrace-ipu\[tensorboard\]"'):
        summary.create_file_writer(tmp_path / "logs")


def test_no_file_without_a_value(tmp_path):
    summary.create_file_writer(tmp_path / "logs").flush()
    assert list(tmp_path.iterdir()) == []
    assert "tensorflow" not in sys.modules
