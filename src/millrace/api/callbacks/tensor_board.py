"""Statistics of tensors as scalars and histograms for TensorBoard, in an event file.

    tag     activation/encoder/dense/mean, gradient/dense/kernel/norm; histograms: no last part
    step    the micro-batch; for gradients that are about to be applied, the update

The file is open only while events are written, so failed training leaves no open file.
"""

import importlib
import os
import pathlib
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.api.callbacks.tensor_history import Entries
from millrace.base.records.tensors import STATISTICS, Tensor
from millrace.errors import OptionError

_MEAN, _LEAST, _MOST, _NORM = (STATISTICS.index(name) for name in ("mean", "min", "max", "norm"))
_SECONDS = 2.0  # between two writes: often enough for people who watch


class EventFile:
    """Writes one event file.

    Args:
        directory: of the file, which is created with the first event.

    Raises:
        OptionError: if the package `tensorboard`, which knows the format, is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        try:
            # Optional; none of these modules needs TensorFlow.
            self._events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
            self._summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
            records: Any = importlib.import_module("tensorboard.summary.writer.record_writer")
        except ImportError as error:
            raise OptionError(
                f"tensorboard={str(directory)!r} needs the package tensorboard ({error}). Run "
                'python -m pip install "millrace[tensorboard]", or read .history instead.'
            ) from error
        self._record_writer = records.RecordWriter
        self._directory = pathlib.Path(directory)
        self._path: pathlib.Path | None = None
        self._waiting: list[Any] = []
        self._written = 0.0

    def add(self, entries: Entries) -> None:
        """Adds an event for each entry, and writes events every few seconds."""
        numbers = entries.updates if entries.of_updates else entries.steps
        tags = [f"{t.kind}/{t.name}/{name}" for t in entries.tensors for name in STATISTICS]
        scalar = self._summaries.Summary.Value
        for index, (number, values) in enumerate(
            zip(numbers.tolist(), entries.values, strict=True)
        ):
            scalars = [
                scalar(tag=tag, simple_value=value)
                for tag, value in zip(tags, values.ravel().tolist(), strict=True)
            ]
            if entries.histograms is not None:
                scalars += self._histograms(entries.tensors, values, entries.histograms[index])
            summary = self._summaries.Summary(value=scalars)
            self._waiting.append(
                self._events.Event(wall_time=time.time(), step=number, summary=summary)
            )
        if time.monotonic() - self._written > _SECONDS:
            self.flush()

    def _histograms(
        self, tensors: Sequence[Tensor], values: np.ndarray, counts: np.ndarray
    ) -> list[Any]:
        """Returns the histograms of one entry; tensors without counts have none."""
        histograms = []
        for tensor, row, count in zip(tensors, values, counts, strict=True):
            least, most = float(row[_LEAST]), float(row[_MOST])
            if not count.any():
                continue
            number = float(count.sum())
            ends = np.linspace(least, most, len(count) + 1)[1:] if most > least else [least]
            value = self._summaries.Summary.Value(tag=f"{tensor.kind}/{tensor.name}")
            histogram = value.histo
            histogram.min, histogram.max, histogram.num = least, most, number
            histogram.sum = float(row[_MEAN]) * number
            histogram.sum_squares = float(row[_NORM]) ** 2
            histogram.bucket_limit.extend(ends)
            histogram.bucket.extend(count.tolist() if most > least else [number])
            histograms.append(value)
        return histograms

    def flush(self) -> None:
        """Writes the events that are still waiting."""
        self._written = time.monotonic()
        if not self._waiting:
            return
        if self._path is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            # TensorBoard recognizes its files by this part of the name.
            name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.millrace"
            self._path = self._directory / name
            first = self._events.Event(wall_time=time.time(), file_version="brain.Event:2")
            self._waiting.insert(0, first)
        with self._path.open("ab") as file:
            writer = self._record_writer(file)
            for event in self._waiting:
                writer.write(event.SerializeToString())
        self._waiting.clear()
