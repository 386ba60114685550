"""The verdict whether a model waits for its data.

    the data set alone           |load|load|load|load|
    the model on one batch       |train--|train--|train--|train--|
    both, as fit runs them       |train--|train--|train--|train--|    + the time that it waits

Each runs for one epoch to warm up and compile, and for three epochs that count. The result is the
median of these three.
"""

import contextlib
import copy
import itertools
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.keras_loops import restore_state
from millrace.arguments import checked
from millrace.benchmark.show import say
from millrace.benchmark.sources import BatchSource, opened, restarts
from millrace.benchmark.throughput import measure_elements
from millrace.compiling.progress import search
from millrace.errors import DataError, ModelError, NotCompiledError
from millrace.fit.controller import controller_of
from millrace.options import truth, whole_number
from millrace.pytrees import ArrayTree
from millrace.records.feed_benchmark import FeedVerdict

ROUNDS = 3  # epochs that count


@checked
def feed_verdict(
    model: keras.Model, dataset: BatchSource, steps: int = 100, *, print_stats: bool = False
) -> FeedVerdict:
    """Measures whether the data set slows training down, and by how much.

    Trains the model, attached to a strategy or not, with its own `fit`, and restores its weights
    and the state of its optimizer afterwards. Metrics are reset.

        with strategy.scope():
            model = keras.Sequential([...])
        model.compile(..., steps_per_execution=10)
        print(millrace.feed_verdict(model, dataset, 100))

    Args:
        model: a compiled model; it is built if necessary.
        dataset: as in `dataset_benchmark`, with batches as `fit` takes them. It is read again from
            the beginning whenever it ends, as in training.
        steps: batches in an epoch. Loading alone, the model alone and both together run for four
            epochs each; the first one does not count.
        print_stats: whether to print the result as well.

    Returns:
        Seconds per step of the three. `str()` of it adds the verdict, and a change to make.

    Raises:
        ModelError: if `model` is no Keras model; NotCompiledError if it is not compiled.
        OptionError: if `steps` is below 1.
        DTypeError: if `dataset` cannot be iterated, or its elements contain no arrays.
        DataError: if `dataset` is empty, or a generator that ends too early.
    """
    _check_model(model)
    steps, prints = whole_number("steps", steps, 1), truth("print_stats", print_stats)
    epochs = 1 + ROUNDS
    with search("measuring") as tick:
        tick("loading")
        with contextlib.closing(_passes(dataset, steps)) as elements:
            sample = copy.deepcopy(next(elements))  # a generator may reuse its buffer
            begin = time.perf_counter()
            loading = measure_elements(elements, epochs, steps, begin)
        loader = [epoch.time_elapsed for epoch in loading.epochs[1:]]
        _build(model, sample)
        with _unchanged(model), _without_records(model):
            tick("the model")
            alone = _fit_seconds(model, itertools.repeat(sample), steps)
            tick("both")
            with contextlib.closing(_passes(dataset, steps)) as elements:
                both = _fit_seconds(model, elements, steps)
    per_step = (statistics.median(seconds) / steps for seconds in (loader, alone, both))
    verdict = FeedVerdict(steps, *per_step)
    if (controller := controller_of(model)) is not None:
        controller.totals.sinks.add(verdict)
    if prints:
        say(str(verdict))
    return verdict


def _check_model(model: object) -> None:
    if not isinstance(model, keras.Model):
        raise ModelError(
            f"feed_verdict() takes a keras.Model first. Received: {type(model).__name__}. Wrap "
            "layers in keras.Sequential([...])."
        )
    if not model.compiled:
        raise NotCompiledError(
            f"{type(model).__name__} {model.name!r} is not compiled, so its training cannot be "
            "timed. Call compile(optimizer, loss) first."
        )


def _passes(dataset: BatchSource, steps: int) -> Generator[Any]:
    """Yields the elements of a data set, in endless passes."""
    drawn = 0
    while True:
        before = drawn
        with opened(dataset) as elements:
            for element in elements:
                drawn += 1
                yield element
        if drawn == before or not restarts(dataset):
            raise DataError(
                f"The data set ended after {drawn} elements and cannot be read again. Loading and "
                f"training need {1 + ROUNDS} epochs of steps={steps} each. Set dataset to a "
                "function that returns a new generator, or to a data set that can be iterated "
                "more than once."
            )


def _build(model: keras.Model, batch: ArrayTree) -> None:
    """Creates the weights and the optimizer's state, so that they can be saved and restored."""

    def symbol(leaf: np.ndarray) -> keras.KerasTensor:
        return keras.KerasTensor(leaf.shape, str(jax.dtypes.canonicalize_dtype(leaf.dtype)))

    if not model.built:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(_for_fit(batch))
        model(keras.tree.map_structure(symbol, x))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


@contextlib.contextmanager
def _unchanged(model: keras.Model) -> Iterator[None]:
    """Restores the values that training changes, also if it fails."""
    saved = [model.trainable_variables, model.non_trainable_variables, model.optimizer.variables]
    # Copies: training donates the memory of the values themselves.
    state = [[np.array(variable.value) for variable in variables] for variables in saved]
    devices = {device for v in model.variables for device in v.value.devices()}
    try:
        yield
    finally:
        with jax.default_device(min(devices, key=lambda device: device.id, default=None)):
            # Metrics are read now: fit has created more in the meantime.
            zeros = [np.zeros(v.shape, v.dtype) for v in model.metrics_variables]
            restore_state(model, (*state, zeros))
            model.reset_metrics()


@contextlib.contextmanager
def _without_records(model: keras.Model) -> Iterator[None]:
    """Leaves no records of loops that only measure: the verdict is the record of them."""
    controller = controller_of(model)
    if controller is None:
        yield
        return
    controller.is_recorded = False
    try:
        yield
    finally:
        controller.is_recorded = True


class _EpochClock(keras.callbacks.Callback):
    """Times epochs up to the end of the device's work, not to the end of its dispatch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._begin = 0.0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self._wait()
        self._begin = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self._wait()
        self.seconds.append(time.perf_counter() - self._begin)

    def _wait(self) -> None:
        model: Any = self.model
        jax.block_until_ready([variable.value for variable in model.variables])


def _fit_seconds(model: keras.Model, elements: Iterator[ArrayTree], steps: int) -> list[float]:
    """Returns the seconds of each epoch that counts, with `steps` steps in each."""
    clock = _EpochClock()
    fit: Callable[..., object] = model.fit  # Keras's annotations make `verbose` a string
    fit(
        (_for_fit(element) for element in elements),
        epochs=1 + ROUNDS,
        steps_per_epoch=steps,
        shuffle=False,
        verbose=0,
        callbacks=[clock],
    )
    return clock.seconds[1:]


def _for_fit(element: ArrayTree) -> tuple[Any, ...]:
    """Returns a batch in the form that Keras takes from a generator."""
    return tuple(element) if isinstance(element, tuple | list) else (element,)
