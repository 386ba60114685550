"""A process in which fit, evaluate and predict compile what they would run, and run nothing.

    fit                                              Keras's own, without callbacks
      for begin, end, execution in epoch_iterator    one execution stands for all of an epoch
          train_function(state, execution)           takes note of it; zeros, and the same state
    compile all that was noted, at the same time     training and validation, all stages

What decides what is compiled is as in a real run: which loops there are, what Keras's data
adapters make of the data, how long executions are, what millrace's callbacks watch.
"""

import contextlib
import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.jax_cache import is_enabled
from millrace._compat.keras_loops import set_epoch_iterators
from millrace._compat.keras_steps import metric_logs
from millrace.cache.use import cache_statistics
from millrace.compiled_loop.protocol import DryRun, ExecutionSteps, Runner
from millrace.compiling.lowering import tracing
from millrace.errors import OptionError
from millrace.feeds.block import batch_spec
from millrace.fit.controller import Controller, controller_of
from millrace.fit.epochs import make_epoch_iterator
from millrace.fit.functions import LoopFunction
from millrace.options import MetricReduction
from millrace.plan import Mode
from millrace.precompile.described_epochs import (
    DescribedEpochIterator,
    DescribedExecution,
    DescribedSteps,
    streamed,
)
from millrace.precompile.precompile import at_once
from millrace.precompile.rehearse import state_specs
from millrace.steps.state import State
from millrace.steps.step import logs_follow_from_metrics

logger = logging.getLogger("millrace")


@dataclass(frozen=True, slots=True)
class _Noted:
    """What is to be compiled for one call."""

    runner: Runner  # which knows what is watched while the call goes on
    steps: DescribedSteps

    @property
    def key(self) -> Any:
        return id(self.runner), self.steps.executions, self.steps.longest


class _Process:
    """Whether this process only compiles, and what is to be compiled."""

    is_on = False
    has_functions = False  # whether functions of millrace.compile run nothing, either

    def __init__(self) -> None:
        self.jobs: dict[DescribedFunction, list[_Noted]] = {}


_process = _Process()


def is_on() -> bool:
    """Whether this process only compiles."""
    return _process.is_on


def is_on_for_functions() -> bool:
    """Whether functions of `millrace.compile` are only compiled, too."""
    return _process.has_functions


@contextlib.contextmanager
def compiling_only(*, functions: bool = False) -> Iterator[None]:
    """Surrounds code in which the loops of all attached models compile and run nothing.

    Args:
        functions: whether that goes for functions of `millrace.compile`, too: they return zeros,
            and leave variables as they are. Code that waits for a result may wait forever.
    """
    set_epoch_iterators(_make_described)
    _process.is_on = True
    _process.has_functions = functions
    try:
        yield
    finally:
        _process.is_on = _process.has_functions = False
        _process.jobs.clear()
        set_epoch_iterators(make_epoch_iterator)


def _make_described(model: keras.Model, loop: str, arguments: Any) -> Any | None:
    controller = controller_of(model)
    if controller is None:
        return None
    return DescribedEpochIterator(controller, Mode(loop), **arguments)


def compile_loop(
    controller: Controller, stock: Callable[..., Any], bound: inspect.BoundArguments
) -> Any:
    """Calls Keras's fit, evaluate or predict for its results' structure, and compiles what it ran.

    Args:
        controller: of the model.
        stock: Keras's method.
        bound: what it is given, all defaults included.

    Raises:
        OptionError: if nothing would keep what is compiled.
    """
    check_cache()
    if controller.is_running:  # the validation of a fit, which has done what follows
        return stock(*bound.args, **bound.kwargs)
    arguments = bound.arguments
    arguments["verbose"] = 0
    arguments["callbacks"] = _watching(arguments["callbacks"])
    try:
        with controller.running():
            result = stock(*bound.args, **bound.kwargs)
        _compile_jobs()
    finally:
        _process.jobs.clear()
    return result


def check_cache() -> None:
    """Refuses to compile for a cache that is not there.

    Raises:
        OptionError: saying how to have one.
    """
    if not is_enabled() or cache_statistics().directory is None:
        raise OptionError(
            "What is compiled would be lost: this process has no cache of executables. Set "
            "MILLRACE_CACHE_DIR or Strategy(cache_dir=...) to a directory."
        )


def sparing(write: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `save` or `save_weights` that spares files where weights are not the trained ones."""

    @functools.wraps(write)
    def spare(*args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.get("filepath")
        if not is_on() or not isinstance(path, str | os.PathLike) or not os.path.exists(path):
            return write(*args, **kwargs)
        logger.warning("%s is left as it is: nothing is trained while only compiling.", path)
        return None

    return spare


def _compile_jobs() -> None:
    jobs = dict(_process.jobs)
    _process.jobs.clear()
    if jobs:
        controller = next(iter(jobs)).controller
        at_once(controller, [functools.partial(each.compile, jobs[each]) for each in jobs])


class _Watching(keras.callbacks.Callback):
    """Begins and ends what a callback of millrace's watches, and shows it nothing."""

    def __init__(self, callback: Any):
        super().__init__()
        self._callback = callback

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._callback.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self._callback.on_train_begin(logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._callback.on_train_end(logs)


def _watching(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Returns what decides what programs carry out; other callbacks could write files."""
    callbacks = getattr(callbacks, "callbacks", callbacks)  # of a CallbackList
    given = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return [_Watching(each) for each in given if _is_ours(each)]


def _is_ours(callback: Any) -> bool:
    return any(each.__module__.startswith("millrace.") for each in type(callback).__mro__)


class DescribedFunction(LoopFunction):
    """Train, test or predict function that compiles what the real one would run."""

    def __init__(self, controller: Controller, mode: Mode):
        """Knows nothing yet."""
        super().__init__(controller, mode)
        self.controller = controller
        # By runner. What one has compiled decides on what it compiles next, as in a real run.
        self._dry_runs: dict[int, DryRun[Any]] = {}

    def __call__(self, state: State, iterator: Iterator[Any]) -> tuple[Any, State]:
        """Takes note of what is to be compiled, and returns zeros.

        Args:
            state: values of the model's variables; returned as they are.
            iterator: a `DescribedExecution`, or any iterator of batches, such as `train_on_batch`
                makes.

        Raises:
            StopIteration: if the data has no batch.
            OptionError: if nothing would keep what is compiled.
        """
        if not is_on():
            return super().__call__(state, iterator)
        check_cache()
        described = isinstance(iterator, DescribedExecution)
        steps = iterator.describe() if described else self._on_batch(iterator)
        controller = self._controller
        # By what is watched now: the callbacks end that before anything is compiled.
        noted, jobs = _Noted(self.runner(), steps), _process.jobs.setdefault(self, [])
        if not jobs or jobs[-1].key != noted.key:  # not for every epoch
            jobs.append(noted)
        result = self._zeros(state, steps)
        if not controller.is_running:  # of a single batch
            _compile_jobs()
        return result, state

    def compile(self, noted: Sequence[_Noted]) -> None:
        """Compiles what some calls would run, in their order."""
        for each in noted:
            dry_run = self._dry_runs.get(id(each.runner))
            if dry_run is None:
                dry_run = self._dry_runs[id(each.runner)] = each.runner.dry_run()
            state = state_specs(self._controller.model, self.mode)
            for slices in each.steps.executions:
                dry_run.compile(state, ExecutionSteps(slices, each.steps.longest))

    def _on_batch(self, iterator: Iterator[Any]) -> DescribedSteps:
        controller = self._controller
        longest = max(
            controller.model.steps_per_execution, controller.setup.update_steps(self.mode)
        )
        batches = [batch for batch, _ in zip(iterator, range(longest), strict=False)]
        specs = [batch_spec(batch) for batch in batches]
        shape = controller.feeds.block_shape(
            controller.setup, self.mode, len(batches) or 1, on_batch=True
        )
        executions = streamed(specs, [len(batches)], shape)
        counts = {spec: specs.count(spec) for spec in specs}
        return DescribedSteps(tuple(executions), len(batches), batches[0], counts)

    def _zeros(self, state: State, steps: DescribedSteps) -> Any:
        if self.mode is Mode.PREDICT:
            return self._zero_outputs(state, steps)
        model = self._controller.model
        if logs_follow_from_metrics(model, self.mode):
            with tracing:
                logs = jax.eval_shape(functools.partial(metric_logs, model), list(state[-1]))
        else:
            logs = self._result(state, steps.batch)
        lead = ()
        if self._controller.setup.reports_each_replica:
            reduction = self._controller.setup.options.replication.metrics
            lead = (self._controller.setup.replicas,) if reduction is MetricReduction.LIST else ()
        return jax.tree.map(lambda leaf: np.zeros((*lead, *leaf.shape), leaf.dtype), logs)

    def _zero_outputs(self, state: State, steps: DescribedSteps) -> Any:
        """Returns outputs `[rows, ...]` of all steps; the rows of a batch may be any number."""
        leaves = jax.tree.leaves(steps.batch)
        outputs, rows = None, None
        for spec, count in steps.counts.items():
            shapes = zip(leaves, spec.shapes, strict=True)
            batch = [jax.ShapeDtypeStruct(shape, leaf.dtype) for leaf, shape in shapes]
            outputs = self._result(state, jax.tree.unflatten(spec.treedef, batch))
            found = jax.tree.map(lambda leaf, count=count: leaf.shape[0] * count, outputs)
            rows = found if rows is None else jax.tree.map(int.__add__, rows, found)
        return jax.tree.map(
            lambda leaf, length: np.zeros((length, *leaf.shape[1:]), leaf.dtype), outputs, rows
        )

    def _result(self, state: State, batch: Any) -> Any:
        """Returns the specs of what a step gives."""
        step = getattr(self._controller.model, f"{self.mode.value}_step")
        with tracing:
            return jax.eval_shape(step, tuple(map(list, state)), batch)[0]
