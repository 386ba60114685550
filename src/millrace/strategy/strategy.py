"""A strategy: the devices to run on, and a scope in which models are attached to it."""

import collections
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import keras

from millrace.arguments import checked
from millrace.cache.use import Default, use_cache
from millrace.compiling.current import logging_to
from millrace.compiling.log import CompileLog
from millrace.compiling.phases import show_phases
from millrace.compiling.watch import call_watched
from millrace.devices import find_devices, home
from millrace.errors import DTypeError, ModelError, OptionError, PlanError
from millrace.graph.marks import stages_allowed
from millrace.options import RecompilePolicy, recompile_policy
from millrace.processes.facts import process_index
from millrace.records.compilation import CompileRecord, Origin
from millrace.records.memory_report import MemoryReport
from millrace.records.run import RunStatistics
from millrace.records.run_directory import RunDirectory
from millrace.strategy.attach import attach
from millrace.strategy.controller import Totals, controller_of
from millrace.strategy.memory_report import memory_report


class Strategy:
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
        policy = recompile_policy(on_recompile)
        self._devices = find_devices(devices)
        use_cache(cache_dir)
        show_phases()
        self._home = home(self._devices)
        directory = (
            None if report_dir is None else RunDirectory(os.fspath(report_dir), process_index())
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
        return self._totals.exports.write(directory)

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
        return self._totals.exports.loaded.load(directory, self._devices)

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
        if _scope.strategy is not None:
            raise PlanError(
                "A strategy scope is already active in this thread: a model belongs to one "
                "strategy. Leave the first `with strategy.scope()` before entering another."
            )
        _scope.strategy = self
        _attach_models_built_in_scopes()
        try:
            log = self._totals.compile_log
            with jax.default_device(self._home), stages_allowed(), logging_to(log):
                yield self
        finally:
            _scope.strategy = None

    @checked
    def attach(self, model: keras.Model) -> keras.Model:
        """Attaches a model that was built outside the scope, and returns it.

        Raises:
            ModelError: if it is not a Keras model.
        """
        if not isinstance(model, keras.Model):
            raise ModelError(
                f"attach() takes a keras.Model. Received: {type(model).__name__}. Wrap layers in "
                "keras.Sequential([...])."
            )
        if controller_of(model) is None or controller_of(model).totals is not self._totals:  # type: ignore[union-attr]
            attach(model, self._devices, self._totals)
            model.train_function = model.test_function = model.predict_function = None
        return model

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
        if controller is None or controller.totals is not self._totals:
            raise ModelError(
                f"memory_report() takes a model of this strategy. Received: {model!r}. Build it "
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
            OptionError: if `fn` is a plain Python function.
            RecompilationError: if it would be compiled, and that is to be refused.
            DTypeError: if an argument is float64.
        """
        if not hasattr(fn, "lower") and not isinstance(fn, jax.stages.Compiled):
            raise OptionError(
                f"run() takes a compiled function. Received: {fn!r}. Set fn=jax.jit(fn)."
            )
        for leaf in jax.tree.leaves((args, kwargs)):
            if str(getattr(leaf, "dtype", "")) == "float64":
                raise DTypeError(
                    f"An argument of run() is float64, of shape {leaf.shape}: devices compute in "
                    "32 bits or fewer. Cast it with .astype('float32')."
                )
        log = self._totals.compile_log
        before, _scope.running = _scope.running, self
        try:
            with jax.default_device(self._home), logging_to(log):
                return jax.block_until_ready(call_watched(fn, args, kwargs or {}, log))
        finally:
            _scope.running = before


class _Scope(threading.local):
    strategy: Strategy | None = None
    running: Strategy | None = None  # whose `run` is going on


_scope = _Scope()


def strategy_in_scope() -> Strategy | None:
    """Returns the strategy whose scope this thread is in, or whose `run` is going on."""
    return _scope.running or _scope.strategy


def _attach_models_built_in_scopes() -> None:
    """Lets `keras.Model.__init__`, which every kind of model reaches, attach inside a scope."""
    original = keras.Model.__init__
    if getattr(original, "attaches", False):
        return

    def __init__(self: keras.Model, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        is_for_scopes = not getattr(type(self), "attaches_itself", False)
        if is_for_scopes and _scope.strategy is not None and controller_of(self) is None:
            _scope.strategy.attach(self)

    __init__.attaches = True  # type: ignore[attr-defined]
    __init__.__wrapped__ = original  # type: ignore[attr-defined]
    keras.Model.__init__ = __init__
