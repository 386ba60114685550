"""Whether a model waits for its data.

    the data set alone           |load|load|load|load|
    the model on one batch       |train--|train--|train--|train--|
    both, as fit runs them       |train--|train--|train--|train--|    + what it waits for

Each is run for one epoch to warm up and to compile, and for three that count, of which the median
is taken.
"""

import contextlib
import copy
import itertools
import statistics
import time
from collections.abc import Generator, Iterator
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.keras_loops import restore_state
from millrace.arguments import checked
from millrace.benchmark.show import Tick, progress, say
from millrace.benchmark.sources import opened, restarts
from millrace.benchmark.throughput import measure_elements
from millrace.errors import DataError, ModelError, NotCompiledError
from millrace.options import truth, whole_number
from millrace.records.feed_benchmark import FeedVerdict

ROUNDS = 3  # epochs that count


@checked
def feed_verdict(
    model: keras.Model, dataset: Any, steps: int = 100, *, print_stats: bool = False
) -> FeedVerdict:
    """Says to how much of the model's own speed the data set limits training.

    Trains the model, attached to a strategy or not, through its own `fit`, and gives it its
    weights and its optimizer's state back. Its metrics are reset.

        with strategy.scope():
            model = keras.Sequential([...])
        model.compile(..., steps_per_execution=10)
        print(millrace.feed_verdict(model, dataset, 100))

    Args:
        model: compiled; it is built if it is not.
        dataset: as in `dataset_benchmark`, of batches as `fit` takes them. It is read again from
            its beginning whenever it ends, as in training.
        steps: batches in an epoch. Loading alone, the model alone and both together run four
            epochs each, of which the first is not counted.
        print_stats: whether to print the result here, too.

    Returns:
        Seconds per step of the three. It prints as these with the verdict and what to change.

    Raises:
        ModelError: if `model` is none; NotCompiledError if it is not compiled.
        OptionError: if `steps` is below 1.
        DTypeError: if `dataset` cannot be iterated, or its elements hold no arrays.
        DataError: if it is empty, or a generator that ends too early.
    """
    _check_model(model)
    steps, prints = whole_number("steps", steps, 1), truth("print_stats", print_stats)
    epochs = 1 + ROUNDS
    with progress("loading", "the model", "both", each=epochs * steps) as (first, second, third):
        with contextlib.closing(_passes(dataset, steps)) as elements:
            sample = copy.deepcopy(next(elements))  # a generator may fill its buffer again
            begin = time.perf_counter()
            loading = measure_elements(elements, epochs, steps, begin, tick=first)
        loader = [epoch.time_elapsed for epoch in loading.epochs[1:]]
        _build(model, sample)
        with _unchanged(model):
            alone = _fit_seconds(model, itertools.repeat(sample), steps, second)
            with contextlib.closing(_passes(dataset, steps)) as elements:
                both = _fit_seconds(model, elements, steps, third)
    per_step = (statistics.median(seconds) / steps for seconds in (loader, alone, both))
    verdict = FeedVerdict(steps, *per_step)
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
            f"{type(model).__name__} {model.name!r} is not compiled, so it cannot be trained to "
            "see how fast it is. Call compile(optimizer, loss) first."
        )


def _passes(dataset: Any, steps: int) -> Generator[Any]:
    """Yields a data set's elements again and again."""
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
                f"training take {1 + ROUNDS} epochs of steps={steps} each. Set dataset to a "
                "function that returns a new generator, or to a data set that can be iterated "
                "more than once."
            )


def _build(model: Any, batch: Any) -> None:
    """Makes all weights, and the optimizer's state, so that they can be kept."""

    def symbol(leaf: np.ndarray) -> keras.KerasTensor:
        return keras.KerasTensor(leaf.shape, str(jax.dtypes.canonicalize_dtype(leaf.dtype)))

    if not model.built:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(_for_fit(batch))
        model(keras.tree.map_structure(symbol, x))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


@contextlib.contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Puts back what training changes, also where it fails."""
    kept = [model.trainable_variables, model.non_trainable_variables, model.optimizer.variables]
    # Copies: training gives the memory of the values themselves to their successors.
    state = [[np.array(variable.value) for variable in variables] for variables in kept]
    places = {device for v in model.variables for device in v.value.devices()}
    try:
        yield
    finally:
        with jax.default_device(min(places, key=lambda device: device.id, default=None)):
            # Of metrics, fit has made more in the meantime.
            zeros = [np.zeros(v.shape, v.dtype) for v in model.metrics_variables]
            restore_state(model, (*state, zeros))
            model.reset_metrics()


class _Clock(keras.callbacks.Callback):
    """Times epochs by what the device has done, not by what was handed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._begin = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._wait()
        self._begin = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._wait()
        self.seconds.append(time.perf_counter() - self._begin)

    def _wait(self) -> None:
        model: Any = self.model
        jax.block_until_ready([variable.value for variable in model.variables])


def _fit_seconds(model: Any, elements: Iterator[Any], steps: int, tick: Tick) -> list[float]:
    """Returns the seconds of each epoch of `steps` steps that counts."""

    def batches() -> Iterator[Any]:
        # The bar follows what is drawn: a callback for each step would make `fit` wait for it.
        for element in elements:
            tick(1)
            yield _for_fit(element)

    clock = _Clock()
    model.fit(
        batches(),
        epochs=1 + ROUNDS,
        steps_per_epoch=steps,
        shuffle=False,
        verbose=0,
        callbacks=[clock],
    )
    return clock.seconds[1:]


def _for_fit(element: Any) -> tuple[Any, ...]:
    """Returns a batch in the form that Keras takes from a generator."""
    return tuple(element) if isinstance(element, tuple | list) else (element,)
