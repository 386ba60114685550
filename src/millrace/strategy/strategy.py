"""A strategy: the devices to run on, and a scope in which models are attached to it."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import keras

from millrace.devices import find_devices, home
from millrace.errors import DTypeError, ModelError, OptionError, PlanError
from millrace.graph.marks import stages_allowed
from millrace.records.compilation import CompileRecord
from millrace.records.memory_report import MemoryReport
from millrace.records.run import RunStatistics
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

    Raises:
        DeviceError: if there are no such devices, or JAX started too early to make them.
        OptionError: if `devices` is none of the above.
    """

    def __init__(self, devices: int | str | Sequence[jax.Device] | None = None):
        self._devices = find_devices(devices)
        self._home = home(self._devices)
        self._totals = Totals()

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The strategy's devices."""
        return self._devices

    @property
    def compile_log(self) -> tuple[CompileRecord, ...]:
        """What has been compiled so far, in order."""
        return tuple(self._totals.compile_log)

    def statistics(self) -> RunStatistics:
        """Returns where the time went so far, over all models of the strategy."""
        log = self._totals.compile_log
        return RunStatistics(
            executions=self._totals.executions,
            dispatches=self._totals.dispatches,
            compilations=len(log),
            compile_seconds=sum(record.seconds for record in log),
            infeed=self._totals.infeed,
            pipeline=self._totals.pipeline,
        )

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
            with jax.default_device(self._home), stages_allowed():
                yield self
        finally:
            _scope.strategy = None

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
            ModelError: if the model is not one of this strategy, or not compiled.
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

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs a compiled function on the strategy's device and waits until it is done.

        Args:
            fn: made by `jax.jit`.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Raises:
            OptionError: if `fn` is a plain Python function.
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
        with jax.default_device(self._home):
            return jax.block_until_ready(fn(*args, **(kwargs or {})))


class _Scope(threading.local):
    strategy: Strategy | None = None


_scope = _Scope()


def _attach_models_built_in_scopes() -> None:
    """Lets `keras.Model.__init__`, which every kind of model reaches, attach inside a scope."""
    original = keras.Model.__init__
    if getattr(original, "attaches", False):
        return

    def __init__(self: keras.Model, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if _scope.strategy is not None and controller_of(self) is None:
            _scope.strategy.attach(self)

    __init__.attaches = True  # type: ignore[attr-defined]
    __init__.__wrapped__ = original  # type: ignore[attr-defined]
    keras.Model.__init__ = __init__
