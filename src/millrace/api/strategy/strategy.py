"""The strategy: devices to run on, and a scope in which models are attached."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import jax
import keras

from millrace._compat.jax_targets import is_described
from millrace._compat.keras_build import after_construction, raise_own_errors
from millrace._compat.keras_variables import described_variables
from millrace._compat.patches import held
from millrace.api.strategy.attach import attach, builds_inner_graph, detach
from millrace.api.strategy.attached import Attached
from millrace.api.strategy.run_arguments import check_run
from millrace.base.devices import devices_of, find_devices, home
from millrace.base.options import RecompilePolicy, directory_path, member
from millrace.base.records.compilation import CompileRecord, Origin, compile_totals
from millrace.base.records.memory_report import MemoryReport
from millrace.base.records.sinks import RecordSinks
from millrace.base.records.statistics import RunStatistics
from millrace.base.targets.target import find_target
from millrace.base.threads.scoped_value import ScopedValue
from millrace.compilation.cache.use import Default, use_cache
from millrace.compilation.executables.call_description import name_of
from millrace.compilation.executables.log import CompileLog, logging_to
from millrace.compilation.executables.phases import show_phases
from millrace.compilation.executables.watch import call_watched
from millrace.errors import DeviceError, ModelError, OptionError, PlanError
from millrace.run.fit.controller import Controller, controller_of
from millrace.run.fit.totals import Totals
from millrace.run.pipelines.assignment.marks import stages_allowed
from millrace.run.precompile.described_batch import BatchDescription
from millrace.tools.memory_report.report import memory_report
from millrace.tools.planning.plan import make_plan, memory_of
from millrace.tools.planning.training_plan import TrainingPlan
from millrace.tools.recording.functions import (
    FunctionRecorder,
    functions_recorded_by,
    recorded_call,
)
from millrace.tools.recording.operation_trace import OperationTrace, traced_executions
from millrace.tools.recording.programs import ProgramRecorder
from millrace.tools.recording.recorders import StrategyRecorders
from millrace.tools.recording.run import open_run, run_of_environment
from millrace.tools.reports.summary import Run, load

T = TypeVar("T")


class Strategy:
    """Runs the loops of stock Keras models as compiled programs.

        strategy = millrace.Strategy()
        with strategy.scope():
            model = keras.Sequential([...])
        model.compile(..., steps_per_execution=100)
        model.fit(x, y)

    Args:
        devices: None for the default platform's, a number of them, `"cpu:8"` for eight virtual
            CPU devices, or a sequence of JAX devices. A model runs as many replicas as the devices
            hold: one on each, or on as many as its pipeline takes.
        target: devices that are not here, and are described: `"h100:8"`, `"v5e:2x4"`. Models are
            built without values; `memory_report`, `plan` and `precompile` work on programs that
            the target's own compiler makes, and `fit` refuses to run.
        cache_dir: the directory in which this process keeps its executables for others, or None
            for no such cache. The default is `MILLRACE_CACHE_DIR`, or else a directory in the
            user's cache.
        report_dir: a directory for the records of this run and their page, made if it is missing;
            strategies and later runs that use it, too, add theirs. None for one below the
            directory that `MILLRACE_REPORT_DIR` names, or for no records.
        on_recompile: `"log"`, `"warn"` or `"error"` when a program that a model has run must be
            compiled again, for batches of another shape, say. Each gives the reason.
        memory: bytes of one device, text such as `"12GB"`, or `"auto"` for what the devices
            report. The first `fit` of a model whose options are at their defaults then plans how
            to stay within it, and it is a limit of `micro_batch="auto"`. None leaves training as
            it is.

    Raises:
        DeviceError: if there are no such devices, or those of JAX are in use already; or without
            the compiler of a target.
        OptionError: for an invalid argument, or both devices and a target, if `report_dir` cannot
            be made, or if `memory` is `"auto"` and a device reports none.
    """

    def __init__(
        self,
        devices: int | str | Sequence[jax.Device] | None = None,
        *,
        target: str | None = None,
        cache_dir: str | os.PathLike[str] | Default | None = Default.DIRECTORY,
        report_dir: str | os.PathLike[str] | None = None,
        on_recompile: Literal["log", "warn", "error"] | RecompilePolicy = "log",
        memory: int | str | None = None,
    ):
        policy = member(RecompilePolicy, "on_recompile", on_recompile)
        if target is not None and devices is not None:
            raise OptionError(
                "devices are here, and a target's are described. Received both: "
                f"devices={devices!r}, target={target!r}. Leave one of them out."
            )
        forced = forced_target.get()
        if forced is not None:
            forced.strategies.append(self)
            target = forced.target
        self._use(find_devices(devices) if target is None else find_target(target))
        use_cache(cache_dir)
        show_phases()
        if report_dir is None:
            run = run_of_environment()
        else:
            run = open_run(directory_path("report_dir", report_dir))
        limit = None if memory is None else memory_of(self.devices, memory)
        sinks = RecordSinks() if run is None else RecordSinks(run.directory)
        self._totals = Totals(CompileLog(policy, sinks), sinks, limit)
        programs = ProgramRecorder(sinks)
        self._totals.compile_log.observers.append(programs)
        if run is not None and (executions := traced_executions()):
            self._totals.operation_trace = OperationTrace(programs, run.directory, executions)
        self._totals.recorders = StrategyRecorders(self._totals, run)
        self._functions = FunctionRecorder(self._totals, run, self.devices)
        self._run = run
        if run is not None:
            run.take_part(self.devices)

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The strategy's devices."""
        return self._described or devices_of(self._ids)

    @property
    def _home(self) -> jax.Device:
        return jax.devices("cpu")[0] if self._described else home(self.devices)

    @contextmanager
    def _at_home(self) -> Iterator[None]:
        """Has arrays made on the first device; for a target in host memory, and few of them."""
        with contextlib.ExitStack() as stack:
            if self._described:
                stack.enter_context(described_variables())
            stack.enter_context(jax.default_device(self._home))
            yield

    @property
    def compile_log(self) -> tuple[CompileRecord, ...]:
        """Records of all programs compiled, read from the cache or shared so far, with reasons.

        Two functions that take turns have one record with the `origin` `SWITCH`.
        """
        return self._totals.compile_log.records

    def statistics(self) -> RunStatistics:
        """Returns counts and times so far, over all models of the strategy."""
        log = self._totals.compile_log
        totals = compile_totals(log.records)
        return RunStatistics(
            executions=self._totals.executions,
            dispatches=self._totals.dispatches,
            compilations=totals.by_origin[Origin.COMPILED],
            compile_seconds=log.seconds,
            infeed=self._totals.infeed,
            pipeline=self._totals.pipeline,
            cache_hits=totals.by_origin[Origin.CACHE],
            shared=totals.by_origin[Origin.SHARED],
            loaded=totals.by_origin[Origin.LOADED],
            switches=log.switches,
            loop_seconds=self._totals.loop_seconds,
            loop_compile_seconds=self._totals.loop_compile_seconds,
            recompilations=totals.recompilations,
            recompile_seconds=totals.recompilation_seconds,
            budgets=tuple(log.budgets),
        )

    def records(self) -> Run:
        """Reads what this strategy's run has written so far.

        In a notebook it is a summary, and its traces and memory profiles are pictures.

            strategy.records().timeline
            strategy.records().memory["train"]

        Raises:
            OptionError: if the strategy has no report directory.
            DataError: if nothing was written yet, or the records are gone.
        """
        if self._run is None:
            raise OptionError(
                "records() reads what a run has written, and this strategy writes nothing. Set "
                "Strategy(report_dir=...) or MILLRACE_REPORT_DIR to a directory."
            )
        return load(self._run.directory.path)

    def export_executables(self, directory: str | os.PathLike[str]) -> int:
        """Writes the executables of this strategy's models for other processes to load.

        Of models that are in use: the executables that fit, evaluate and predict have run or
        `precompile` has compiled, all stages of pipelines included, one file each. The log names
        those that cannot be used elsewhere, with the reason, at level INFO.

        Args:
            directory: made if it is missing. Files of equal programs in it are replaced.

        Returns:
            The number of executables written.

        Raises:
            OptionError: if the directory cannot be written.
        """
        return self._totals.exports.write(directory_path("directory", directory))

    def load_executables(self, directory: str | os.PathLike[str]) -> int:
        """Lets this strategy's models use executables that another process has exported.

        An executable is used if all that decides it is equal: model, options, the user's code,
        data, devices, versions. Otherwise, or if a file is damaged, a warning gives the reason and
        the program is compiled. Call this before fit; files are read when their program is needed.

        Loading runs code from the files: anyone who can write into the directory can run any code
        in this process.

        Args:
            directory: written by `export_executables`.

        Returns:
            The number of executables for this environment.

        Raises:
            OptionError: if there is no such directory.
        """
        return self._totals.exports.loaded.load(
            directory_path("directory", directory), self.devices
        )

    @contextmanager
    def no_recompile(self) -> Iterator[None]:
        """Refuses to compile in the code inside, such as the measured part of a benchmark.

        A program that would be compiled raises a `RecompilationError` with the reason.
        """
        log = self._totals.compile_log
        with log.no_recompile(), logging_to(log):
            yield

    @contextmanager
    def scope(self) -> Iterator["Strategy"]:
        """Attaches every model that is built, cloned or loaded inside.

        Raises:
            PlanError: if another scope is active in this thread.
        """
        if _in_scope.get() is not None and forced_target.get() is None:
            raise PlanError(
                "A strategy scope is already active in this thread: a model belongs to one "
                "strategy. Leave the first `with strategy.scope()` before entering another."
            )
        with (
            _in_scope.bound_to(self),
            held(),
            self._at_home(),
            stages_allowed(),
            logging_to(self._totals.compile_log),
            functions_recorded_by(self._functions),
        ):
            after_construction(_attach_in_scope)
            raise_own_errors()
            yield self

    def attach(self, model: keras.Model) -> Attached:
        """Attaches a model, unless it was built in the scope, and returns it: the same object.

        A model of another strategy is detached from it first. It keeps its options and its stages;
        training it checks whether they fit the devices of this strategy.

        Raises:
            ModelError: if it is no Keras model, or is running under another strategy.
        """
        if not isinstance(model, keras.Model):
            raise ModelError(
                f"attach() takes a keras.Model. Received: {type(model).__name__}. Wrap layers in "
                "keras.Sequential([...])."
            )
        if not self._has(model):
            before = controller_of(model)
            detach(model)
            controller = attach(model, self.devices, self._totals)
            if before is not None:
                controller.setup = replace(
                    controller.setup, options=before.setup.options, stages=before.setup.stages
                )
            model.train_function = model.test_function = model.predict_function = None
        return model

    def detach(self, model: keras.Model) -> keras.Model:
        """Makes a model of this strategy a stock Keras model again, and returns it.

        Its weights, its optimizer with its state, its metrics and the arguments of `compile` stay,
        so training can continue. The methods and options of millrace are gone, and Keras makes its
        own functions. Keras itself is stock again when no model is attached any more, where one
        that nothing refers to counts until Python's garbage collector has freed it: docs/patches.md
        lists the functions that are restored.

        Raises:
            ModelError: if the model is not attached to this strategy, or while it runs.
        """
        if not isinstance(model, keras.Model):
            raise ModelError(f"detach() takes a keras.Model. Received: {type(model).__name__}.")
        if not self._has(model):
            other = "Call detach() of that one." if controller_of(model) else "It is a stock model."
            raise ModelError(
                f"detach() takes a model of this strategy. Received: {model!r}, which is attached "
                f"to {'another one' if controller_of(model) else 'none'}. {other}"
            )
        detach(model)
        return model

    def _use(self, devices: Sequence[jax.Device]) -> None:
        """Runs on other devices from now on; models that are attached stay on theirs."""
        home(devices)  # refuses those of other processes
        self._described = tuple(devices) if is_described(devices[0]) else ()
        self._ids = [(device.platform, device.id) for device in devices]

    def _has(self, model: object) -> bool:
        controller = controller_of(model)
        return controller is not None and controller.totals is self._totals

    def memory_report(
        self,
        model: keras.Model,
        batch_spec: BatchDescription,
        budget: int | str | None = None,
        *,
        steps_per_epoch: int | None = None,
    ) -> MemoryReport:
        """Compiles the programs of `fit`, and returns the memory that they need on each device.

        Nothing runs, and `fit` then finds the executables. If training does not fit, the report
        has up to three changes that would make it fit, each compiled to measure its peak. The
        model gets the variables that `fit` would give it: of its metrics and its optimizer.

        Args:
            model: a compiled model of this strategy.
            batch_spec: one micro-batch as `fit` sees it, `(x, y)` or `(x, y, sample_weight)`, of
                arrays, `jax.ShapeDtypeStruct`s or pairs of shape and dtype. Values do not matter.
            budget: bytes of one device, or text such as `"1.5GB"`; the memory that a device reports
                is a limit, too. None: the strategy's `memory`, if it has one.
            steps_per_epoch: batches in an epoch, the longest block of arrays that stay on the
                device. None for the steps of one execution.

        Raises:
            ModelError: if the model is not attached to this strategy.
            NotCompiledError: if it is not compiled.
            OptionError: for an invalid batch or budget.
            PlanError: if options and stages do not fit together, as in `fit`.
        """
        controller = self._own(model, "memory_report()")
        with self._at_home():
            report = memory_report(controller, batch_spec, budget, steps_per_epoch)
        self._totals.sinks.add(report)
        return report

    def plan(
        self,
        model: keras.Model,
        batch_spec: BatchDescription,
        memory: int | str | None = None,
        *,
        measure: bool = False,
    ) -> TrainingPlan:
        """Chooses how the model is to be trained, so that each device stays within its memory.

        Compares micro-batches, recomputation, offloading and sharding, replicas and stages, and
        schedules, by compiled memory and counted or measured costs. Nothing of the model changes
        before `plan.apply()`; it only gets the variables that `fit` would give it.

            plan = strategy.plan(model, (x[:512], y[:512]), memory="12GB")
            print(plan)
            plan.apply()
            model.fit(x, y, batch_size=plan.batch_size)

        Args:
            model: a compiled model of this strategy.
            batch_spec: all rows of one weight update, `(x, y)` or `(x, y, sample_weight)`, of
                arrays, `jax.ShapeDtypeStruct`s or pairs of shape and dtype. Values do not matter.
            memory: bytes of one device, or text such as `"12GB"`; the memory that a device reports
                is a limit, too. None or `"auto"`: what the strategy was given, or the devices
                report.
            measure: True runs compiled updates on zeros, a few times each, and balances stages by
                time. This needs memory for another copy of the model's state.

        Raises:
            ModelError: if the model is not attached to this strategy.
            NotCompiledError: if it is not compiled.
            OptionError: for an invalid batch or memory, or if no memory is known.
            PlanError: if nothing fits; with the smallest peak of all that was compiled.
            UnsupportedError: if devices belong to other processes.
        """
        controller = self._own(model, "plan()")
        with self._at_home():
            return make_plan(controller, batch_spec, memory, measure)

    def _own(self, model: keras.Model, caller: str) -> Controller:
        """Returns the controller of a model of this strategy.

        Raises:
            ModelError: if it is none.
        """
        controller = controller_of(model)
        if controller is None or not self._has(model):
            is_model = isinstance(model, keras.Model)
            shown = repr(model) if is_model else f"an object of type {type(model).__name__}"
            raise ModelError(
                f"{caller} takes a model of this strategy. Received: {shown}. Build it "
                "in `with strategy.scope()`, or call strategy.attach(model)."
            )
        return controller

    def run(
        self,
        fn: Callable[..., T],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> T:
        """Runs a compiled function on the strategy's device and waits until it is done.

        Args:
            fn: made by `jax.jit` or `millrace.compile`; its programs are in `compile_log`.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Raises:
            OptionError: if `fn` is a plain Python function, or `args` is not a sequence.
            DeviceError: if the strategy has a target.
            RecompilationError: if it would be compiled within `no_recompile`.
            DTypeError: if an argument is float64.
        """
        check_run(fn, args, kwargs)
        if self._described:
            raise DeviceError(
                f"run() cannot run {name_of(fn)!r}: the devices of a target are described and not "
                "here. Give Strategy() devices and no target."
            )
        log = self._totals.compile_log
        with (
            _running.bound_to(self),
            self._at_home(),
            logging_to(log),
            functions_recorded_by(self._functions),
            recorded_call(name_of(fn)),
        ):
            return jax.block_until_ready(call_watched(fn, args, kwargs or {}, log))


@dataclass(frozen=True, slots=True)
class ForcedTarget:
    """A target that each strategy has in place of its devices, as in `millrace plan`."""

    target: str
    strategies: list[Strategy] = field(default_factory=list[Strategy])  # that were made

    def owner(self, model: keras.Model) -> Strategy:
        """Returns the strategy that has a model."""
        return next(each for each in self.strategies if each._has(model))


forced_target = ScopedValue[ForcedTarget | None](None)
_in_scope = ScopedValue[Strategy | None](None)
_running = ScopedValue[Strategy | None](None)  # the one whose `run` is active


def strategy_in_scope() -> Strategy | None:
    """Returns the strategy of this thread: the one in `run`, or else in whose scope it is."""
    return _running.get() or _in_scope.get()


def _attach_in_scope(model: keras.Model) -> None:
    """Attaches a model that has been constructed, if this thread is in a scope."""
    is_for_scopes = not (getattr(type(model), "attaches_itself", False) or builds_inner_graph())
    strategy = _in_scope.get()
    if is_for_scopes and strategy is not None and controller_of(model) is None:
        strategy.attach(model)
