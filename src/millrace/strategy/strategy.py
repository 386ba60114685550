"""A strategy: the devices to run on, and a scope in which models are attached to it."""

import collections
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import keras

from millrace._compat.keras_build import after_construction
from millrace._compat.patches import held
from millrace.arguments import checked
from millrace.cache.use import Default, use_cache
from millrace.compiling.log import CompileLog, logging_to
from millrace.compiling.phases import show_phases
from millrace.compiling.watch import call_watched
from millrace.devices import find_devices, home
from millrace.errors import ModelError, PlanError
from millrace.fit.controller import controller_of
from millrace.fit.totals import Totals
from millrace.memory_report.report import memory_report
from millrace.options import RecompilePolicy, directory_path, member
from millrace.pipelines.assignment.marks import stages_allowed
from millrace.processes.facts import process_index
from millrace.records.compilation import CompileRecord, Origin
from millrace.records.memory_report import MemoryReport
from millrace.records.run import RunStatistics
from millrace.records.run_directory import RunDirectory
from millrace.strategy.attach import attach, detach, is_making_graph
from millrace.strategy.misused import Misused
from millrace.strategy.run_arguments import check_run
from millrace.threads.scoped_value import ScopedValue


class Strategy(Misused):
    """Runs the loops of stock Keras models as compiled programs.

        strategy = millrace.Strategy()
        with strategy.scope():
            model = keras.Sequential([...])
        model.compile(..., steps_per_execution=100)
        model.fit(x, y)

    Args:
        devices: None for the default platform's, a number of them, `"cpu:8"` for eight virtual
            CPU devices, or a sequence of JAX devices. A model runs as many replicas as there are
            devices for: one on each, or on as many as its pipeline takes.
        cache_dir: the directory in which this process keeps its executables for others, or None
            for no such cache. The default is what `MILLRACE_CACHE_DIR` says, or a directory of
            the user's own.
        report_dir: a directory for the records of this run, made if it is missing; each is
            written as it comes. `millrace compile-log DIRECTORY` shows them.
        on_recompile: what is done when a program that a model has run must be compiled again, for
            batches of another shape, say: `"log"` it, `"warn"`, or `"error"`. Each says why.

    Raises:
        DeviceError: if there are no such devices, or JAX started too early to make them.
        OptionError: if an argument is none of the above, or `report_dir` cannot be made.
    """

    @checked
    def __init__(
        self,
        devices: int | str | Sequence[jax.Device] | None = None,
        *,
        cache_dir: str | os.PathLike[str] | Default | None = Default.DIRECTORY,
        report_dir: str | os.PathLike[str] | None = None,
        on_recompile: str | RecompilePolicy = "log",
    ):
        policy = member(RecompilePolicy, "on_recompile", on_recompile)
        self._devices = find_devices(devices)
        use_cache(cache_dir)
        show_phases()
        self._home = home(self._devices)
        directory = (
            None
            if report_dir is None
            else RunDirectory(directory_path("report_dir", report_dir), process_index())
        )
        self._totals = Totals(CompileLog(policy, directory))

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The strategy's devices."""
        return self._devices

    @property
    def compile_log(self) -> tuple[CompileRecord, ...]:
        """What has been compiled so far, read from the cache or shared, and why; in order.

        Where functions take turns, there is a record for each such pair: `origin` is `SWITCH`.
        """
        return self._totals.compile_log.records

    def statistics(self) -> RunStatistics:
        """Returns where the time went so far, over all models of the strategy."""
        log = self._totals.compile_log
        origins = collections.Counter(record.origin for record in log.executables)
        again = [record for record in log.executables if record.is_recompilation]
        return RunStatistics(
            executions=self._totals.executions,
            dispatches=self._totals.dispatches,
            compilations=origins[Origin.COMPILED],
            compile_seconds=sum(record.seconds for record in log.executables),
            infeed=self._totals.infeed,
            pipeline=self._totals.pipeline,
            cache_hits=origins[Origin.CACHE],
            shared=origins[Origin.SHARED],
            loaded=origins[Origin.LOADED],
            switches=log.switches,
            loop_seconds=self._totals.loop_seconds,
            loop_compile_seconds=self._totals.loop_compile_seconds,
            recompilations=len(again),
            recompile_seconds=sum(record.seconds for record in again),
            budgets=tuple(log.budgets),
        )

    @checked
    def export_executables(self, directory: str | os.PathLike[str]) -> int:
        """Writes what this strategy's models have made, so that others need not even trace it.

        Of models that are in use: what fit, evaluate and predict have run or `precompile` has
        made, all stages of pipelines included, one file each. What cannot be used elsewhere is
        left out, and the log says why at level INFO.

        Args:
            directory: made if it is missing. Files of equal programs in it are replaced.

        Returns:
            How many executables were written.

        Raises:
            OptionError: if the directory cannot be written.
        """
        return self._totals.exports.write(directory_path("directory", directory))

    @checked
    def load_executables(self, directory: str | os.PathLike[str]) -> int:
        """Lets this strategy's models use what another process has exported.

        An executable is used where all that decides it is equal: model, options, code of the
        user's, data, devices, versions. Otherwise, or if a file is damaged, a warning says why and
        the program is compiled. Call this before fit; files are read when their program is wanted.

        Loading runs code of the files: whoever can write into the directory can run any code in
        this process.

        Args:
            directory: that `export_executables` has written.

        Returns:
            How many executables are there for this environment.

        Raises:
            OptionError: if it is no directory.
        """
        return self._totals.exports.loaded.load(
            directory_path("directory", directory), self._devices
        )

    @contextmanager
    def no_recompile(self) -> Iterator[None]:
        """Surrounds code that is warm, such as what a benchmark measures: nothing is compiled.

        Whatever would be compiled inside raises a `RecompilationError` that says why.
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
        if _in_scope.get() is not None:
            raise PlanError(
                "A strategy scope is already active in this thread: a model belongs to one "
                "strategy. Leave the first `with strategy.scope()` before entering another."
            )
        with (
            _in_scope.bound_to(self),
            held(),
            jax.default_device(self._home),
            stages_allowed(),
            logging_to(self._totals.compile_log),
        ):
            after_construction(_attach_in_scope)
            yield self

    @checked
    def attach(self, model: keras.Model) -> keras.Model:
        """Attaches a model that was built outside the scope, and returns it.

        A model of another strategy is detached from it first. Its options and its stages stay with
        it; whether they fit the devices of this strategy is found out when it is trained.

        Raises:
            ModelError: if it is not a Keras model, or if it is running under another strategy.
        """
        if not isinstance(model, keras.Model):
            raise ModelError(
                f"attach() takes a keras.Model. Received: {type(model).__name__}. Wrap layers in "
                "keras.Sequential([...])."
            )
        if not self._has(model):
            before = controller_of(model)
            detach(model)
            controller = attach(model, self._devices, self._totals)
            if before is not None:
                controller.setup = replace(
                    controller.setup, options=before.setup.options, stages=before.setup.stages
                )
            model.train_function = model.test_function = model.predict_function = None
        return model

    def detach(self, model: keras.Model) -> keras.Model:
        """Makes a model of this strategy a stock Keras model again, and returns it.

        Its weights, its optimizer with its state, its metrics and what `compile` was given stay;
        training goes on where it was. The methods and options of millrace are gone, and Keras
        makes its own functions. With the last attached model Keras itself is stock again:
        docs/patches.md lists what is restored.

        Raises:
            ModelError: if the model is not one of this strategy, or while it runs.
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
        gc.collect()  # models that nobody has any more are cycles, and keep Keras patched till then
        return model

    def _has(self, model: Any) -> bool:
        controller = controller_of(model)
        return controller is not None and controller.totals is self._totals

    @checked
    def memory_report(
        self,
        model: keras.Model,
        batch_spec: Any,
        budget: int | str | None = None,
        *,
        steps_per_epoch: int | None = None,
    ) -> MemoryReport:
        """Compiles what `fit` would run, and returns what that needs on each device. Runs nothing.

        The executables are those that `fit` then finds. Where training does not fit, the report
        has up to three changes that would make it fit, each compiled to know its peak. The model
        gets the variables that `fit` would give it: of its metrics and its optimizer.

        Args:
            model: a compiled model of this strategy.
            batch_spec: one micro-batch as `fit` sees it, `(x, y)` or `(x, y, sample_weight)`, of
                arrays, `jax.ShapeDtypeStruct`s or pairs of shape and dtype. Numbers do not matter.
            budget: bytes of one device, or text such as `"1.5GB"`; what a device says of itself
                is a limit, too.
            steps_per_epoch: batches in an epoch. Arrays that stay on the device are cut into
                blocks of up to so many; None counts those of one execution.

        Raises:
            ModelError: if the model is not one of this strategy; NotCompiledError if not compiled.
            OptionError: for a batch or a budget that is none of these.
            PlanError: if options and stages do not fit together, as `fit` would say.
        """
        controller = controller_of(model)
        if controller is None or not self._has(model):
            is_model = isinstance(model, keras.Model)
            shown = repr(model) if is_model else f"an object of type {type(model).__name__}"
            raise ModelError(
                f"memory_report() takes a model of this strategy. Received: {shown}. Build it "
                "in `with strategy.scope()`, or call strategy.attach(model)."
            )
        with jax.default_device(self._home):
            return memory_report(controller, batch_spec, budget, steps_per_epoch)

    @checked
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs a compiled function on the strategy's device and waits until it is done.

        Args:
            fn: made by `jax.jit` or `millrace.compile`. What it compiles is in `compile_log`.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Raises:
            OptionError: if `fn` is a plain Python function, or `args` is not a sequence.
            RecompilationError: if it would be compiled, and that is to be refused.
            DTypeError: if an argument is float64.
        """
        check_run(fn, args, kwargs)
        log = self._totals.compile_log
        with _running.bound_to(self), jax.default_device(self._home), logging_to(log):
            return jax.block_until_ready(call_watched(fn, args, kwargs or {}, log))


_in_scope = ScopedValue[Strategy | None](None)
_running = ScopedValue[Strategy | None](None)  # whose `run` is going on


def strategy_in_scope() -> Strategy | None:
    """Returns the strategy whose scope this thread is in, or whose `run` is going on."""
    return _running.get() or _in_scope.get()


def _attach_in_scope(model: Any) -> None:
    """Attaches a model that has been constructed, if this thread is in a scope."""
    is_for_scopes = not (getattr(type(model), "attaches_itself", False) or is_making_graph())
    strategy = _in_scope.get()
    if is_for_scopes and strategy is not None and controller_of(model) is None:
        strategy.attach(model)
