"""`tf.summary`: event files for TensorBoard, which are written without TensorFlow.

writer = tf.summary.create_file_writer("logs")
with writer.as_default():
    tf.summary.scalar("loss", 0.5, step=1)       histogram, image, text, write: the same

Values in compiled functions go into no file; take them out with an outfeed queue.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from millrace.errors import OptionError
from millrace.extend import ScopedValue, is_traced
from millrace_ipu.tensorflow.event_file import (
    EventWriter,
    histogram_value,
    image_value,
    scalar_value,
    text_value,
)
from millrace_ipu.tensorflow.no_operation import say_once

_PROFILE = "jax.profiler.trace(directory) records programs"


class SummaryWriter:
    """Writes the values of a program into one event file of a directory."""

    def __init__(self, directory: str | os.PathLike[str] | None, suffix: str = ".v2"):
        self._file = None if directory is None else EventWriter(directory, suffix)

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

    def add(self, step: int, value: bytes) -> None:
        """Adds a value to the file."""
        if self._file is not None:
            self._file.add(step, value)

    def init(self) -> None:
        """Has no effect: the file is made with the first value."""

    def flush(self) -> None:
        """Writes what is waiting to the file."""
        if self._file is not None:
            self._file.flush()

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
    name: str | None = None,
    experimental_trackable: bool = False,
) -> SummaryWriter:
    """Returns a writer for a directory, which is made with the first value."""
    del max_queue, flush_millis, name, experimental_trackable
    return SummaryWriter(logdir, filename_suffix or ".v2")


def create_noop_writer() -> SummaryWriter:
    """Returns a writer that writes nothing."""
    return SummaryWriter(None)


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Writes a number; returns whether it was recorded."""
    return _record("scalar", name, data, step, lambda value: scalar_value(
        name, float(np.asarray(value).reshape(())), description or ""
    ))  # fmt: skip


def histogram(
    name: str,
    data: Any,
    step: Any = None,
    buckets: int | None = None,
    description: str | None = None,
) -> bool:
    """Writes the histogram of an array; returns whether it was recorded."""
    return _record(
        "histogram", name, data, step,
        lambda value: histogram_value(name, np.asarray(value), buckets, description or ""),
    )  # fmt: skip


def image(
    name: str, data: Any, step: Any = None, max_outputs: int = 3, description: str | None = None
) -> bool:
    """Writes images `[n, height, width, channels]`; returns whether they were recorded."""
    return _record(
        "image", name, data, step,
        lambda value: image_value(name, np.asarray(value), max_outputs, description or ""),
    )  # fmt: skip


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Writes a text, or a list of texts; returns whether it was recorded."""
    return _record(
        "text", name, data, step, lambda value: text_value(name, _texts(value), description or "")
    )


def _texts(value: Any) -> str | list[str]:
    array = np.asarray(value)
    texts = [each.decode() if isinstance(each, bytes) else str(each) for each in array.ravel()]
    return texts if array.ndim else texts[0]


def _record(kind: str, name: str, data: Any, step: Any, value: Callable[[Any], bytes]) -> bool:
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
    writer.add(int(np.asarray(step)), value(data))
    return True


def flush(writer: SummaryWriter | None = None, name: str | None = None) -> None:
    """Writes what is waiting to the file of a writer; None is the default one."""
    del name
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
    say_once(f"tf.summary.trace_on has no effect: {_PROFILE}.")


def trace_export(*_: object, **__: object) -> None:
    """Has no effect, and says what has one."""
    say_once(f"tf.summary.trace_export has no effect: {_PROFILE}.")


def trace_off(*_: object) -> None:
    """Has no effect."""


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
