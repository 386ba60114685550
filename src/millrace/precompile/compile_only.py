"""A process in which fit, evaluate and predict compile what they would run, and run nothing.

    fit                                              Keras's own, without callbacks
      for begin, end, execution in epoch_iterator    one execution stands for all of an epoch
          train_function(state, execution)           takes note of it; zeros, and the same state
    compile all that was noted, at the same time     training and validation, all stages

The loops, the batches that Keras's data adapters make, the lengths of executions and the requests
of millrace's callbacks decide what is compiled, as in a real run.

The switch is of the process, not of a thread: a script may train in threads of its own, and none
of them is to train. What a loop would run is kept by the thread that runs the loop.
"""

import contextlib
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

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
from millrace.own_code import is_own_module
from millrace.plan import Mode
from millrace.precompile.described_epochs import (
    DescribedEpochIterator,
    DescribedExecution,
    DescribedSteps,
    streamed,
)
from millrace.precompile.precompile import at_once, state_specs
from millrace.pytrees import ArrayTree, SpecTree
from millrace.steps.state import State
from millrace.steps.step import logs_follow_from_metrics
from millrace.threads.scoped_value import ScopedValue

logger = logging.getLogger("millrace")
LoopResult = TypeVar("LoopResult")


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a train, test or predict function, to be compiled."""

    runner: Runner  # which knows what is watched while the call goes on
    steps: DescribedSteps

    @property
    def key(self) -> Hashable:
        return id(self.runner), self.steps.executions, self.steps.longest


_Jobs = dict["DescribedFunction", list[_Call]]
_jobs = ScopedValue[_Jobs | None](None)  # of the loop that this thread runs


class _Switch:
    """The blocks of `compiling_only` that are open, in all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.blocks = 0
        self.of_functions = 0  # those in which functions of millrace.compile run nothing, either

    def switch_on(self, functions: bool) -> None:
        with self._lock:
            if not self.blocks:
                set_epoch_iterators(_make_described)
            self.blocks += 1
            self.of_functions += functions

    def switch_off(self, functions: bool) -> None:
        with self._lock:
            self.blocks -= 1
            self.of_functions -= functions
            if not self.blocks:
                set_epoch_iterators(make_epoch_iterator)


_switch = _Switch()


def is_on() -> bool:
    """Whether this process only compiles."""
    return _switch.blocks > 0


def is_on_for_functions() -> bool:
    """Whether functions of `millrace.compile` are only compiled, too."""
    return _switch.of_functions > 0


@contextlib.contextmanager
def compiling_only(*, functions: bool = False) -> Iterator[None]:
    """Surrounds code during which the loops of all attached models compile and run nothing.

    It holds in all threads. Where blocks overlap, it holds until the last one ends.

    Args:
        functions: whether functions of `millrace.compile` are only compiled, too: they return
            zeros, and leave variables as they are. Code that waits for a result may wait forever.
    """
    _switch.switch_on(functions)
    try:
        yield
    finally:
        _switch.switch_off(functions)


def _make_described(
    model: keras.Model, loop: str, arguments: dict[str, Any]
) -> DescribedEpochIterator | None:
    controller = controller_of(model)
    if controller is None:
        return None
    return DescribedEpochIterator(controller, Mode(loop), **arguments)


def compile_loop(
    controller: Controller, stock: Callable[..., LoopResult], bound: inspect.BoundArguments
) -> LoopResult:
    """Calls Keras's fit, evaluate or predict for the structure of its result, and compiles.

    Args:
        controller: of the model.
        stock: Keras's method.
        bound: its arguments, all defaults included.

    Returns:
        What `stock` returns, with zeros for all values.

    Raises:
        OptionError: if this process has no cache of executables.
    """
    check_cache()
    if controller.is_running:  # the validation of a fit, which compiles both
        return stock(*bound.args, **bound.kwargs)
    arguments = bound.arguments
    arguments["verbose"] = 0
    arguments["callbacks"] = _watching(arguments["callbacks"])
    jobs: _Jobs = {}
    with _jobs.bound_to(jobs), controller.running():
        result = stock(*bound.args, **bound.kwargs)
    _compile(jobs)
    return result


def check_cache() -> None:
    """Refuses to compile where no cache would keep the executables.

    Raises:
        OptionError: if this process has no cache of executables.
    """
    if not is_enabled() or cache_statistics().directory is None:
        raise OptionError(
            "What is compiled would be lost: this process has no cache of executables. Set "
            "MILLRACE_CACHE_DIR or Strategy(cache_dir=...) to a directory."
        )


def sparing(write: Callable[..., LoopResult]) -> Callable[..., LoopResult | None]:
    """Wraps `save` or `save_weights`: files that exist keep their trained weights."""

    @functools.wraps(write)
    def spare(*args: object, **kwargs: object) -> LoopResult | None:
        path = args[0] if args else kwargs.get("filepath")
        if not is_on() or not isinstance(path, str | os.PathLike) or not os.path.exists(path):
            return write(*args, **kwargs)
        logger.warning("%s is left as it is: nothing is trained while only compiling.", path)
        return None

    return spare


def _compile(jobs: _Jobs) -> None:
    if jobs:
        controller = next(iter(jobs)).controller
        at_once(controller, [functools.partial(each.compile, jobs[each]) for each in jobs])


class _Watching(keras.callbacks.Callback):
    """Lets a callback of millrace's ask for values as in a real run, and passes it none."""

    def __init__(self, callback: keras.callbacks.Callback):
        super().__init__()
        self._callback = callback

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._callback.set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._callback.on_train_begin(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._callback.on_train_end(logs)


def _watching(callbacks: object) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that decide which values programs return; others could write files."""
    callbacks = getattr(callbacks, "callbacks", callbacks)  # of a CallbackList
    several = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return [_Watching(each) for each in several if _is_ours(each)]


def _is_ours(callback: object) -> TypeGuard[keras.callbacks.Callback]:
    return any(is_own_module(each.__module__) for each in type(callback).__mro__)


class DescribedFunction(LoopFunction):
    """Train, test or predict function that compiles what the real one would run."""

    def __init__(self, controller: Controller, mode: Mode):
        super().__init__(controller, mode)
        self.controller = controller
        # By runner. What it has compiled decides what it compiles next, as in a real run.
        self._dry_runs: dict[int, DryRun[Any]] = {}

    def __call__(self, state: State, iterator: Iterator[ArrayTree]) -> tuple[ArrayTree, State]:
        """Keeps a description of the call, to be compiled when the loop ends, and returns zeros.

        Args:
            state: values of the model's variables; returned as they are.
            iterator: a `DescribedExecution`, or any iterator of batches, such as `train_on_batch`
                makes.

        Raises:
            StopIteration: if the data has no batch.
            OptionError: if this process has no cache of executables.
        """
        if not is_on():
            return super().__call__(state, iterator)
        check_cache()
        described = isinstance(iterator, DescribedExecution)
        steps = iterator.describe() if described else self._on_batch(iterator)
        self.begin(batch_spec(steps.batch))
        # The runner of now: callbacks end what they watch before anything is compiled.
        call = _Call(self.runner(), steps)
        result = self._zeros(state, steps)
        jobs = _jobs.get()
        if jobs is None or not self._controller.is_running:  # a single batch, outside of fit
            _compile({self: [call]})
            return result, state
        calls = jobs.setdefault(self, [])
        if not calls or calls[-1].key != call.key:  # not for every epoch
            calls.append(call)
        return result, state

    def compile(self, calls: Sequence[_Call]) -> None:
        """Compiles what some calls would run, in their order."""
        for each in calls:
            dry_run = self._dry_runs.get(id(each.runner))
            if dry_run is None:
                dry_run = self._dry_runs[id(each.runner)] = each.runner.dry_run()
            state = state_specs(self._controller.model, self.mode)
            for slices in each.steps.executions:
                dry_run.compile(state, ExecutionSteps(slices, each.steps.longest))

    def _on_batch(self, iterator: Iterator[ArrayTree]) -> DescribedSteps:
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

    def _zeros(self, state: State, steps: DescribedSteps) -> ArrayTree:
        if self.mode is Mode.PREDICT:
            return self._zero_outputs(state, steps)
        model = self._controller.model
        if logs_follow_from_metrics(model, self.mode):
            with tracing(model):
                logs = jax.eval_shape(functools.partial(metric_logs, model), list(state[-1]))
        else:
            logs = self._result(state, steps.batch)
        lead = ()
        if self._controller.setup.reports_each_replica:
            reduction = self._controller.setup.options.replication.metrics
            lead = (self._controller.setup.replicas,) if reduction is MetricReduction.LIST else ()
        return jax.tree.map(lambda leaf: np.zeros((*lead, *leaf.shape), leaf.dtype), logs)

    def _zero_outputs(self, state: State, steps: DescribedSteps) -> ArrayTree:
        """Returns outputs `[rows, ...]` of all steps; the rows of a batch may be any number."""
        leaves = jax.tree.leaves(steps.batch)
        outputs, rows = None, None
        for spec, count in steps.counts.items():
            shapes = zip(leaves, spec.shapes, strict=True)
            batch = [jax.ShapeDtypeStruct(shape, leaf.dtype) for leaf, shape in shapes]
            outputs = self._result(state, jax.tree.unflatten(spec.treedef, batch))
            more = jax.tree.map(lambda leaf, count=count: leaf.shape[0] * count, outputs)
            rows = more if rows is None else jax.tree.map(int.__add__, rows, more)
        return jax.tree.map(
            lambda leaf, length: np.zeros((length, *leaf.shape[1:]), leaf.dtype), outputs, rows
        )

    def _result(self, state: State, batch: "ArrayTree | SpecTree") -> SpecTree:
        """Returns the specs of the logs or the predictions of a step."""
        step = getattr(self._controller.model, f"{self.mode.value}_step")
        with tracing(self._controller.model):
            return jax.eval_shape(step, tuple(map(list, state)), batch)[0]
