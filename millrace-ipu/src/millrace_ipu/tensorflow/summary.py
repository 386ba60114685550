"""`tf.summary`: event files for TensorBoard, which the package `tensorboard` writes.

writer = tf.summary.create_file_writer("logs")
with writer.as_default():
    tf.summary.scalar("loss", 0.5, step=1)       histogram, image, text: the same

Values in compiled functions go into no file; take them out with an outfeed queue.
"""

import contextlib
import importlib
import io
import os
import pathlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import OptionError
from millrace.extend import ScopedValue, is_traced
from millrace_ipu.tensorflow.no_operation import say_once


def _module(name: str) -> Any:
    """Returns a module of the package `tensorboard`; none that are used need TensorFlow.

    Raises:
        OptionError: if the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(
            f"Event files for TensorBoard need the package tensorboard ({error}). Run python -m "
            'pip install "millrace-ipu[tensorboard]", or remove tf.summary and '
            "keras.callbacks.TensorBoard."
        ) from error


class SummaryWriter:
    """Writes the values of a program into one event file of a directory.

    The file is open only while events are written, so a program that fails leaves no open file.
    """

    def __init__(self, directory: str | os.PathLike[str], suffix: str = ".v2"):
        self._directory, self._suffix = pathlib.Path(directory), suffix
        self._path: pathlib.Path | None = None
        self._waiting: list[Any] = []
        self._events = _module("tensorboard.compat.proto.event_pb2")
        self._records = _module("tensorboard.summary.writer.record_writer")

    @contextlib.contextmanager
    def as_default(self, step: Any = None) -> Iterator["SummaryWriter"]:
        """Makes this the writer for the functions of `tf.summary` in a block."""
        number = experimental.get_step() if step is None else step
        with _writer.bound_to(self), _step.bound_to(number):
            try:
                yield self
            finally:
                self.flush()

    def set_as_default(self, step: Any = None) -> None:
        """Makes this the writer from now on."""
        _State.writer = self
        if step is not None:
            _State.step = step

    def add(self, step: int, summary: Any) -> None:
        """Adds an event, which the next `flush` writes."""
        if self._path is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            # TensorBoard recognizes its files by this part of the name.
            name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
            self._path = self._directory / f"{name}{self._suffix}"
            self._waiting.append(self._events.Event(file_version="brain.Event:2"))
        event = self._events.Event(wall_time=time.time(), step=step, summary=summary)
        self._waiting.append(event)

    def init(self) -> None:
        """Has no effect: the file is made with the first value."""

    def flush(self) -> None:
        """Writes what is waiting to the file."""
        if self._path is not None and self._waiting:
            waiting, self._waiting = self._waiting, []
            with self._path.open("ab") as file:
                writer = self._records.RecordWriter(file)
                for event in waiting:
                    writer.write(event.SerializeToString())

    close = flush


class _State:
    writer: SummaryWriter | None = None
    step: Any = None


_writer = ScopedValue[SummaryWriter | None](None)
_step = ScopedValue[Any](None)
_records = ScopedValue[Any](None)


def create_file_writer(
    logdir: str | os.PathLike[str],
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    **_: object,
) -> SummaryWriter:
    """Returns a writer for a directory, which is made with the first value."""
    return SummaryWriter(logdir, filename_suffix or ".v2")


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Writes a number; returns whether it was recorded."""
    plugin = "tensorboard.plugins.scalar.summary_v2"
    return _record("scalar", name, data, step, lambda value: _module(plugin).scalar_pb(
        name, value.reshape(()), description
    ))  # fmt: skip


def histogram(
    name: str,
    data: Any,
    step: Any = None,
    buckets: int | None = None,
    description: str | None = None,
) -> bool:
    """Writes the histogram of an array; returns whether it was recorded."""
    plugin = "tensorboard.plugins.histogram.summary_v2"
    return _record("histogram", name, data, step, lambda value: _module(plugin).histogram_pb(
        name, value, buckets, description
    ))  # fmt: skip


def image(
    name: str, data: Any, step: Any = None, max_outputs: int = 3, description: str | None = None
) -> bool:
    """Writes images `[n, height, width, channels]`; returns whether they were recorded."""

    def summary(images: np.ndarray) -> Any:
        if images.dtype.kind == "f":  # from 0 to 1
            images = np.clip(images, 0, 1) * 255 + 0.5
        sizes = [str(images.shape[2]), str(images.shape[1])]
        files = [_png(each) for each in images[:max_outputs].astype("uint8")]
        return _texts(name, [*sizes, *files], "image", description)

    return _record("image", name, data, step, summary)


def _png(image: np.ndarray) -> bytes:
    pixels = image[..., 0] if image.shape[-1] == 1 else image
    file = io.BytesIO()
    _module("PIL.Image").fromarray(pixels).save(file, "png")
    return file.getvalue()


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Writes a text, or a list of texts; returns whether it was recorded."""
    return _record("text", name, data, step, lambda value: _texts(
        name, value.tolist(), "text", description
    ))  # fmt: skip


def keras_model(json: str) -> bool:
    """Writes the structure of a Keras model; returns whether it was recorded."""

    def summary(_: Any) -> Any:
        summary = _texts("keras", json, "text", None)
        data = summary.value[0].metadata.plugin_data
        data.plugin_name, data.content = "graph_keras_model", b"1"
        return summary

    return _record("write", "keras", json, 0, summary)


def _texts(tag: str, texts: Any, kind: str, description: str | None) -> Any:
    """Returns texts, or files, as a summary for a plugin."""
    tensor = _module("tensorboard.util.tensor_util").make_tensor_proto(texts, dtype=np.object_)
    plugin = _module(f"tensorboard.plugins.{kind}.metadata")
    summary = _module("tensorboard.compat.proto.summary_pb2").Summary()
    metadata = plugin.create_summary_metadata(None, description)
    summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
    return summary


def _record(kind: str, name: str, data: Any, step: Any, summary: Callable[[Any], Any]) -> bool:
    writer = _writer.get() or _State.writer
    if writer is None or not should_record_summaries():
        return False
    if any(map(is_traced, jax.tree.leaves(data))):
        say_once(
            f"tf.summary.{kind}({name!r}) in a compiled function writes nothing: take the value "
            "out with an outfeed queue, and write it outside."
        )
        return False
    step = experimental.get_step() if step is None else step
    if step is None:
        raise OptionError(
            f"tf.summary.{kind}({name!r}) has no step. Pass step=, or call "
            "tf.summary.experimental.set_step(number) before."
        )
    value = data.value if isinstance(data, keras.Variable) else data
    number: Any = keras.ops.convert_to_numpy(step)
    writer.add(int(number), summary(np.asarray(value)))
    return True


def flush(writer: SummaryWriter | None = None, name: str | None = None) -> None:
    """Writes what is waiting to the file of a writer; None is the default one."""
    writer = writer or _writer.get() or _State.writer
    if writer is not None:
        writer.flush()


@contextlib.contextmanager
def record_if(condition: Any) -> Iterator[None]:
    """Records values in a block only where a condition, or what a function returns, is true."""
    with _records.bound_to(condition):
        yield


def should_record_summaries() -> bool:
    """Returns whether values are recorded here."""
    condition = _records.get()
    condition = True if condition is None else condition
    return bool(condition() if callable(condition) else condition)


def trace_on(*_: object, **__: object) -> None:
    """Has no effect, and says what has one."""
    say_once("tf.summary.trace_on has no effect: jax.profiler.trace(directory) records programs.")


def trace_export(*_: object, **__: object) -> None:
    """Has no effect, as `trace_on`."""


trace_off = trace_export


class experimental:  # noqa: N801  # TensorFlow's name
    """`tf.summary.experimental`: the step that values get without one of their own."""

    @staticmethod
    def set_step(step: Any) -> None:
        """Sets the step."""
        _State.step = step

    @staticmethod
    def get_step() -> Any:
        """Returns the step; None without one."""
        step = _step.get()
        return _State.step if step is None else step
