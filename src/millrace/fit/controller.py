"""What a strategy knows of one model: its options, its functions, its open feeds."""

import contextlib
import copy
import functools
import itertools
import operator
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import keras

from millrace._compat.keras_build import compilation_of
from millrace._compat.keras_scope import sync_state
from millrace._compat.patches import hold, new_holder, release
from millrace.compiling.log import CompileLog
from millrace.compiling.lowering import MODEL_OBJECT
from millrace.devices import DeviceGroup, share_out
from millrace.errors import OptionError
from millrace.export.exporting import Exports
from millrace.feeds.block import Destination
from millrace.feeds.blocks import STEPS_TOGETHER, BlockShape
from millrace.fit.checks import check_model
from millrace.fit.loop_arguments import check_steps_per_execution
from millrace.fit.offloading import bring_back, check_offload, offload_in_force
from millrace.fit.rules import Rules
from millrace.fit.stages import Stages, check_pipeline
from millrace.fit.uncompiled import check_watched
from millrace.interrupts import held_back
from millrace.options import NO_TAPS, Accumulation, MetricReduction, Offload, Options, Taps
from millrace.plan import BatchSpec, Mode
from millrace.processes.facts import process_index
from millrace.records.run import FeedStatistics, PipelineStatistics
from millrace.taps.delivery import Delivery, Listener

if TYPE_CHECKING:
    from millrace.fit.functions import LoopFunction

ATTRIBUTE = "_millrace"  # of a model: its controller


_numbers = itertools.count(1)  # of strategies and models, in this process


class Totals:
    """Counters of everything that ran under one strategy."""

    def __init__(self, compile_log: CompileLog | None = None) -> None:
        self.number = next(_numbers)  # of the strategy
        self.compile_log = compile_log or CompileLog(is_rehearsal=True)
        self.exports = Exports()
        self.infeed = FeedStatistics()
        self.pipeline = PipelineStatistics()
        self.executions = 0
        self.dispatches = 0
        self.loop_seconds = 0.0
        self.loop_compile_seconds = 0.0
        self.noted: set[str] = set()  # what is logged once

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Surrounds fit, evaluate or predict, and adds the time that it takes."""
        begin, compiled = time.perf_counter(), self.compile_log.seconds
        try:
            yield
        finally:
            self.loop_seconds += time.perf_counter() - begin
            self.loop_compile_seconds += self.compile_log.seconds - compiled


class Controller:
    """One per attached model, as the attribute `_millrace`."""

    def __init__(self, model: keras.Model, devices: Sequence[jax.Device], totals: Totals):
        # A cycle, as Keras models have many: a bound method must keep its model alive.
        self.model = model
        self._number = next(_numbers)
        self._compiled_as: tuple[Any, ...] = ()  # what the newest compile() of the model has made
        self._compile_calls = 0
        self.devices = tuple(devices)
        self.totals = totals
        self.options = Options()
        self.rules = Rules()
        self.stages = Stages(model)
        self.functions: dict[Mode, LoopFunction] = {}
        self.uncompiled: dict[Mode, tuple[Any, Any]] = {}  # functions of Keras, and made for what
        self.running_function: LoopFunction | None = None  # whose state Keras keeps
        self.outfeed = Delivery()
        self._taps: dict[Any, Taps] = {}  # by who wants them
        self._watching: list[Listener] = []  # since the running call began, until it ends
        self._capacities: dict[tuple[Mode, bool], dict[BatchSpec, int]] = {}
        self._settled: dict[tuple[Mode, bool], set[BatchSpec]] = {}
        self._iterators: list[Any] = []  # with feeds that the running call has opened
        self.is_built_ahead = False  # of a fit that would have drawn a batch for it
        self._running = 0  # nesting of fit, evaluate and predict
        self._bound: dict[str, tuple[Any, Any]] = {}  # attributes: the model's own, and ours
        # Ends with the model, too: who has forgotten it need not detach it.
        holder = new_holder()
        hold(holder)
        self.release_patches = weakref.finalize(model, release, holder)
        self.release_patches.atexit = False

    @property
    def groups(self) -> tuple[DeviceGroup, ...]:
        """The groups of devices that the model runs on: one, or as many as its pipeline takes.

        Raises:
            PlanError: if the devices are not a whole number of replicas.
        """
        assignment = self.stages.assignment()
        size = 1
        if assignment is not None:
            mapping = self.options.pipelining.devices_of(assignment.num_stages)
            size = self.rules.devices_of_replica(assignment.num_stages, mapping, len(self.devices))
        return share_out(self.devices, size)

    @property
    def replicas(self) -> int:
        """Copies of the model, each with a batch of its own in every step."""
        return self.groups[0].replicas

    @property
    def destination(self) -> Destination:
        """Where blocks of batches go: those of a pipeline are cut up in host memory."""
        is_pipelined = self.stages.assignment() is not None
        return Destination(self.groups[0], stays_on_host=is_pipelined)

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """Which strategy and which model programs belong to, for their keys."""
        made = compilation_of(self.model)
        if list(map(id, made)) != list(map(id, self._compiled_as)):
            self._compiled_as = made
            self._compile_calls += 1
        return (
            ("strategy", f"number {self.totals.number}"),
            (MODEL_OBJECT, f"number {self._number}"),
            ("compile() calls", str(self._compile_calls)),
        )

    def window(self, mode: Mode) -> int:
        """Steps that belong together: those of one update; outside of training, one a replica."""
        return self.replicas * (self.accumulation.steps if mode is Mode.TRAIN else 1)

    @property
    def accumulation(self) -> Accumulation:
        """What one update of the model accumulates; a pipeline has options of its own."""
        own = self.options.pipelining.accumulation
        if own is None or (self.stages.assignment() is None and self.model.built):
            return self.options.accumulation
        return own

    @property
    def offload(self) -> Offload:
        """What of training rests in host memory, each True or False."""
        return offload_in_force(
            self.options.offload,
            self.accumulation,
            self.stages.assignment() is not None,
            self.devices,
            self.totals.noted,
        )

    @property
    def reports_each_replica(self) -> bool:
        """Whether logs are of the replicas, not of the metrics over all batches."""
        return self.options.replication.metrics is not MetricReduction.MEAN and self.replicas > 1

    def gather(self, role: str, values: Any) -> Any:
        """Returns values of a running loop as variables of the model can hold them."""
        if self.running_function is not None:
            values = self.running_function.gather(role, values)
        return values

    def check(self, mode: Mode) -> None:
        """Refuses what the model cannot run, before anything is compiled."""
        check_steps_per_execution(self.model)
        assignment = self.stages.assignment()
        replicas = self.replicas
        self.rules.check(self, mode)
        check_model(self.model, mode, self.accumulation, assignment is not None, replicas)
        if mode is Mode.TRAIN:
            check_offload(self.options.offload, self.options.replication, self.devices)
        if assignment is None and self.options.pipelining.steps is not None:
            self.stages.check_readable()
        if assignment is not None:
            check_pipeline(self.model, assignment, self.options.pipelining, len(self.groups), mode)

    @property
    def taps(self) -> Taps:
        """Tensors whose statistics somebody wants."""
        wanted = list(self._taps.values())  # not with NO_TAPS: that is one of every update
        return functools.reduce(operator.or_, wanted) if wanted else NO_TAPS

    def watch(self, listener: Listener, taps: Taps) -> None:
        """Lets a listener have statistics of tensors, from the next execution on.

        Until `unwatch`; within `fit` until that ends, so that nothing is left of one that fails.

        Raises:
            ModelError: if the model is not compiled.
            OptionError: if it has them already: every number would be counted twice.
        """
        check_watched(self)
        if listener in self._taps:
            raise OptionError(
                f"callbacks holds the same {type(listener).__name__} twice, and each value would "
                "be counted twice. List it once, or make another one."
            )
        self._taps[listener] = taps
        self.outfeed.listeners.append(listener)
        if self.is_running:
            self._watching.append(listener)

    def unwatch(self, listener: Listener) -> None:
        """Ends what `watch` began, once all is delivered."""
        try:
            if listener in self._taps:
                self.outfeed.flush()
        finally:
            self._forget(listener)

    def _forget(self, listener: Listener) -> None:
        if self._taps.pop(listener, None) is not None:
            self.outfeed.listeners.remove(listener)

    def replace_options(self, options: Options, keep_functions: bool = False) -> None:
        """Puts other options in force, from the next fit, evaluate or predict on."""
        self.options = options
        if not keep_functions:
            self.functions.clear()
            self.model.train_function = None

    def variant(self, options: Options) -> "Controller":
        """Returns a controller of the same model with other options, of which it knows nothing."""
        other = copy.copy(self)
        other.options, other.totals = options, Totals()
        other.functions, other._capacities, other._settled = {}, {}, {}
        return other

    def block_shape(
        self, mode: Mode, steps_per_execution: int, on_batch: bool = False
    ) -> BlockShape:
        """Returns the bounds of blocks for one mode.

        Args:
            mode: blocks of the three modes run in different executables.
            steps_per_execution: after truncation to the epoch.
            on_batch: for `train_on_batch` and its kind, whose one step should not be padded.
        """
        feed = self.options.feed
        return BlockShape(
            max_bytes=feed.max_block_bytes,
            units=(steps_per_execution, self.window(mode)),
            known=self._capacities.setdefault((mode, on_batch), {}),
            together=1 if on_batch else STEPS_TOGETHER,
            replicas=self.replicas,
            settled=self._settled.get((mode, on_batch), frozenset()),
        )

    def settle(self, mode: Mode, spec: BatchSpec) -> None:
        """Keeps the capacity of blocks that executables are there for, however long the data is."""
        self._settled.setdefault((mode, False), set()).add(spec)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Surrounds fit, evaluate and predict: whichever way they end, their threads end.

        Somebody who interrupts does not wait for the batch that a slow data set is making, and
        finds the variables with their newest values.
        """
        with held_back(), self._threads_ended():
            yield

    @contextmanager
    def _threads_ended(self) -> Iterator[None]:
        self._running += 1
        is_interrupted = False
        try:
            with contextlib.nullcontext() if self._running > 1 else self.totals.timed():
                yield
        except BaseException as error:
            is_interrupted = isinstance(error, KeyboardInterrupt)
            if self._running == 1 and not self.spans_processes:
                sync_state(self.model)  # evaluate and predict leave that out
            raise
        finally:
            self._running -= 1
            if not self._running:
                for iterator in self._iterators:
                    iterator.close(wait=not is_interrupted)
                self._iterators.clear()
                for function in self.functions.values():
                    function.release()
                self.totals.compile_log.close()
                if any(function.offloads for function in self.functions.values()):
                    bring_back(self.model.variables)  # which the optimizer's do not belong to
                try:
                    self.outfeed.close()
                finally:
                    for listener in self._watching:
                        self._forget(listener)
                    self._watching.clear()

    @property
    def spans_processes(self) -> bool:
        """Whether some devices of the strategy belong to other processes."""
        return any(device.process_index != process_index() for device in self.devices)

    @property
    def is_running(self) -> bool:
        """Whether fit, evaluate or predict is going on."""
        return self._running > 0

    def bind(self, name: str, value: Any) -> None:
        """Gives the model an attribute, until `unbind`."""
        own, _ = self._bound.get(name, (vars(self.model).get(name), None))
        self._bound[name] = own, value
        # Past Keras's own __setattr__, which would track it as a part of the model.
        object.__setattr__(self.model, name, value)

    def unbind(self) -> None:
        """Takes from the model what `bind` gave it, unless someone has put something over it."""
        attributes = vars(self.model)
        for name, (own, value) in self._bound.items():
            if attributes.get(name) is not value:
                continue
            if own is None:
                object.__delattr__(self.model, name)
            else:
                object.__setattr__(self.model, name, own)
        self._bound.clear()
        self.release_patches()

    def opened(self, iterator: Any) -> None:
        """Takes note of an epoch iterator to close at the end."""
        self._iterators.append(iterator)


def controller_of(model: Any) -> Controller | None:
    """Returns the controller of an attached model, None for any other."""
    return getattr(model, "__dict__", {}).get(ATTRIBUTE)
