"""`keras.callbacks.TensorBoard` without TensorFlow: Keras's tags and directories.

log_dir/train           epoch_loss, epoch_learning_rate, batch_loss, .../histogram, .../image
log_dir/validation      epoch_loss, evaluation_loss_vs_iterations
log_dir/plugins         what jax.profiler records
"""

import functools
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import OptionError
from millrace.extend import patches_in, put_in
from millrace_ipu._compat.patch_table import TENSOR_BOARD
from millrace_ipu.tensorflow.dispatch import is_installed
from millrace_ipu.tensorflow.event_file import (
    EventWriter,
    histogram_value,
    image_value,
    model_value,
    scalar_value,
)
from millrace_ipu.tensorflow.no_operation import say_once

_PROJECTOR = "embeddings/.ATTRIBUTES/VARIABLE_VALUE"


class TensorBoard(keras.callbacks.Callback):
    """Writes the metrics, weights and structure of a model into event files for TensorBoard.

    Args:
        log_dir: directory of the files.
        histogram_freq: epochs between two histograms of the weights; 0 for none.
        write_graph: whether the structure of a Sequential or functional model is written.
        write_images: whether weights are also written as images, with their histograms.
        write_steps_per_second: whether the speed of epochs and batches is written.
        update_freq: `"epoch"`, or a number of batches between two entries of batches; `"batch"` is
            one batch.
        profile_batch: a batch, or a pair of the first and the last one, that `jax.profiler`
            records; 0 for none.
        embeddings_freq: epochs between two files with the weights; 0 for none.
        embeddings_metadata: files that describe the rows of embeddings, by the layer's name.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: str | int = "epoch",
        profile_batch: int | str | Sequence[int] | None = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: str | Mapping[str, str] | None = None,
        **without_effect: object,
    ):
        super().__init__()
        for name in without_effect:
            say_once(f"TensorBoard({name}=) has no effect since Keras 2.")
        self.log_dir = os.fspath(log_dir)
        self.histogram_freq, self.write_graph = histogram_freq, write_graph
        self.write_images, self.write_steps_per_second = write_images, write_steps_per_second
        self.update_freq: Any = 1 if update_freq == "batch" else update_freq
        self.embeddings_freq, self.embeddings_metadata = embeddings_freq, embeddings_metadata
        self._profiled = profiled_batches(profile_batch)
        self._is_tracing = False
        self._batches = 0
        self._epoch_began = self._batch_began = (0.0, 0)
        self._writers: dict[str, EventWriter] = {}

    def _writer(self, name: str) -> EventWriter:
        path = os.path.join(self.log_dir, name)
        return self._writers.setdefault(name, EventWriter(path))

    def set_model(self, model: Any) -> None:
        """Takes the model, and writes its structure."""
        super().set_model(model)
        self._writers = {}
        is_graph = isinstance(model, keras.Sequential) or hasattr(model, "operations")
        if self.write_graph and is_graph:
            self._writer("train").add(0, model_value(model.to_json()))
        if self.embeddings_freq:
            self._describe_embeddings()

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts batches from here."""
        self._batches = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts a recording, and the clock of the batch."""
        first, last = self._profiled
        if not self._is_tracing and first <= batch + 1 <= last and self._batches < last:
            jax.profiler.start_trace(self.log_dir)
            self._is_tracing = True
        self._batch_began = (time.perf_counter(), batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes the metrics of a batch, where `update_freq` says so."""
        began, first = self._batch_began
        steps = batch - first + 1  # several in one execution
        before, self._batches = self._batches, self._batches + steps
        if self._is_tracing and self._batches >= self._profiled[1]:
            self._stop_trace()
        if self.update_freq == "epoch" or before // self.update_freq == (
            self._batches // self.update_freq
        ):
            return
        values = dict(logs or {})
        self._add_scalars("train", "batch_{}", values, self._batches)
        if self.write_steps_per_second:
            rate = steps / max(time.perf_counter() - began, 1e-9)
            self._add_scalars("train", "batch_{}", {"steps_per_second": rate}, self._batches)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock of the epoch."""
        self._epoch_began = (time.perf_counter(), self._batches)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes metrics, and weights where their number of epochs has passed."""
        values = dict(logs or {})
        train = {name: value for name, value in values.items() if not name.startswith("val_")}
        train.update(self._rates())
        if self.write_steps_per_second:
            began, before = self._epoch_began
            seconds = max(time.perf_counter() - began, 1e-9)
            train["steps_per_second"] = (self._batches - before) / seconds
        self._add_scalars("train", "epoch_{}", train, epoch)
        other = {name[4:]: value for name, value in values.items() if name.startswith("val_")}
        self._add_scalars("validation", "epoch_{}", other, epoch)
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            self._add_weights(epoch)
        if self.embeddings_freq and epoch % self.embeddings_freq == 0:
            name = f"keras_embedding.ckpt-{epoch}.weights.h5"
            os.makedirs(os.path.join(self.log_dir, "train"), exist_ok=True)
            self._trained.save_weights(os.path.join(self.log_dir, "train", name))
        self._flush()

    def on_test_end(self, logs: Any = None) -> None:
        """Writes the metrics of an evaluation, by the number of updates."""
        optimizer = getattr(self._trained, "optimizer", None)
        if optimizer is not None:
            updates = int(np.asarray(optimizer.iterations.value))
            values = dict(logs or {})
            self._add_scalars("validation", "evaluation_{}_vs_iterations", values, updates)
            self._flush()

    def on_train_end(self, logs: Any = None) -> None:
        """Ends a recording, and writes what is waiting."""
        if self._is_tracing:
            self._stop_trace()
        self._flush()

    @property
    def _trained(self) -> Any:
        return self.model

    def _stop_trace(self) -> None:
        jax.profiler.stop_trace()
        self._is_tracing = False

    def _flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def _rates(self) -> dict[str, float]:
        optimizer = getattr(self._trained, "optimizer", None)
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        return {} if optimizer is None else {"learning_rate": float(optimizer.learning_rate)}

    def _add_scalars(self, where: str, tag: str, values: Mapping[str, Any], step: int) -> None:
        for name, value in values.items():
            array = np.asarray(value)
            if array.size == 1 and array.dtype.kind in "fiub":
                number = scalar_value(tag.format(name), float(array.reshape(())))
                self._writer(where).add(step, number)

    def _add_weights(self, epoch: int) -> None:
        writer = self._writer("train")
        for layer in self._trained.layers:
            for weight in layer.weights:
                values = np.asarray(weight.value, np.float32)
                writer.add(epoch, histogram_value(f"{weight.path}/histogram", values))
                pictures = _pictures(values) if self.write_images else None
                if pictures is not None:
                    writer.add(epoch, image_value(f"{weight.path}/image", pictures))

    def _describe_embeddings(self) -> None:
        """Writes the file by which TensorBoard's projector finds the embeddings."""
        files = self.embeddings_metadata
        layers = [x for x in self._trained.layers if isinstance(x, keras.layers.Embedding)]
        unknown = {} if files is None or isinstance(files, str) else dict(files)
        lines = []
        for layer in layers:
            path = files if isinstance(files, str) else unknown.pop(layer.name, None)
            lines += ["embeddings {", f'  tensor_name: "{layer.name}/{_PROJECTOR}"']
            lines += [f'  metadata_path: "{path}"'] if path else []
            lines.append("}")
        if unknown:
            raise OptionError(
                f"embeddings_metadata of TensorBoard has {', '.join(map(repr, unknown))}, but the "
                f"embeddings of the model are {', '.join(x.name for x in layers) or 'none'}."
            )
        os.makedirs(self.log_dir, exist_ok=True)
        with open(os.path.join(self.log_dir, "projector_config.pbtxt"), "w") as file:
            file.write("\n".join([*lines, ""]))


def profiled_batches(value: int | str | Sequence[int] | None) -> tuple[int, int]:
    """Returns the first and the last batch, from 1, of a `profile_batch`; (0, -1) for none.

    Raises:
        OptionError: for a value of another form.
    """
    if not value:
        return 0, -1
    parts = value.split(",") if isinstance(value, str) else value
    try:
        numbers = [int(part) for part in parts] if not isinstance(parts, int) else [parts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 2) or numbers[0] < 0 or numbers[-1] < numbers[0]:
        raise OptionError(
            f"profile_batch={value!r} of TensorBoard is not a batch or a pair of batches. Set a "
            "number, such as 10, or (10, 20) for the batches 10 to 20."
        )
    return numbers[0], numbers[-1]


def _pictures(weight: np.ndarray) -> np.ndarray | None:
    """Returns a weight as grey images of 0 to 1, as Keras lays them out; None for other ranks."""
    array = np.squeeze(weight)
    span = float(np.ptp(array)) if array.size else 0.0
    array = (array - array.min()) / span if span else np.zeros_like(array)
    if array.ndim == 1:
        return array.reshape(1, -1, 1, 1)
    if array.ndim == 2:
        array = array.T if array.shape[0] > array.shape[1] else array
        return array[None, :, :, None]
    return array.transpose(2, 0, 1)[..., None] if array.ndim == 3 else None


def let_tensor_board_be_written() -> None:
    """Puts this callback in place of Keras's own, which needs TensorFlow, where there is none."""
    if is_installed() or TENSOR_BOARD in patches_in():
        return
    module: Any = keras.callbacks
    put_in(TENSOR_BOARD, functools.partial(setattr, module, "TensorBoard", module.TensorBoard))
    module.TensorBoard = TensorBoard
