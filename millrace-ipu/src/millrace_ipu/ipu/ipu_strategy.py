"""The strategy of IPU programs.

IPUStrategy, IPUStrategyV1                  -> millrace.Strategy on the devices of the system
ipu_device="/device:IPU:k"                  -> on the devices of logical device k
enable_keras_extensions=False               -> models without the setters of IPU programs
IPUStrategy.run                             -> Strategy.run; optimizers add up gradients of replicas
"""

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import jax
import keras

from millrace import Strategy
from millrace.errors import ModelError, OptionError, PlanError, UnsupportedError
from millrace.extend import Controller, WrappingOptimizer, controller_of, move_values
from millrace_ipu._compat.keras_optimizers import let_gradients_change
from millrace_ipu.ipu import environment, program_reports
from millrace_ipu.ipu.config import System, current_system
from millrace_ipu.ipu.config.devices import checks, followers, processes_of
from millrace_ipu.ipu.keras.extensions.building import is_extended
from millrace_ipu.ipu.keras.extensions.extend import extend
from millrace_ipu.ipu.keras.extensions.native import put
from millrace_ipu.ipu.keras.extensions.saving import revive_from_configs
from millrace_ipu.ipu.keras.extensions.settings import settings_of
from millrace_ipu.ipu.pre_compile import functions_compiled_only
from millrace_ipu.ipu.replica_launches import added_up, launching
from millrace_ipu.tensorflow.distribute import strategy_of_scope
from millrace_ipu.tensorflow.iterators import device_iterators

logger = logging.getLogger("millrace")


class IPUStrategy(Strategy):
    """`millrace.Strategy` on the devices of the configured system.

    A system that is configured later gives it other devices: it may be made first.

    Args:
        ipu_device: the logical device.
        cpu_device: of the original API; ignored.
        enable_dataset_iterators: whether `iter(dataset)` in the scope gives an iterator for
            compiled functions only.
        enable_keras_extensions: whether models get the setters of IPU programs.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ):
        system = current_system()
        super().__init__(system.devices_of(ipu_device))
        self._ipu_device = ipu_device
        self._models: weakref.WeakSet[keras.Model] = weakref.WeakSet()
        self.enable_dataset_iterators = enable_dataset_iterators
        self.enable_keras_extensions = enable_keras_extensions
        _newest[:] = [(system, self)]
        _strategies.add(self)
        program_reports.watch(self._totals.sinks)

    @property
    def num_replicas_in_sync(self) -> int:
        """Always 1, since gradients are summed over replicas."""
        return 1

    def attach(self, model: keras.Model) -> keras.Model:
        """Attaches a model, and gives it the setters of IPU programs."""
        environment.read_variables()
        super().attach(model)
        self._models.add(model)
        if self.enable_keras_extensions and not is_extended(model):
            extend(model)
        return model

    def _controllers(self) -> list[Controller]:
        """Returns the controllers of the models that are attached."""
        found = [controller_of(model) for model in self._models if self._has(model)]
        return [controller for controller in found if controller is not None]

    def _devices_in(self, system: System) -> tuple[jax.Device, ...] | None:
        """Returns the devices of its logical device in a system; None if that has none."""
        try:
            return system.devices_of(self._ipu_device)
        except OptionError:
            return None

    def _follow(self, system: System) -> None:
        """Gets the devices of a new system, with all models, which keep their weights.

        A system without the logical device of this strategy leaves it as it was.
        """
        devices, controllers = self._devices_in(system), self._controllers()
        if devices is None:
            logger.warning(
                "The new system has no %s: a strategy of this name keeps its devices %s.",
                self._ipu_device,
                [device.id for device in self.devices],
            )
            return
        if devices != self.devices:
            self._use(devices)
            numbers = [device.id for device in devices]
            for controller in controllers:
                self._move(controller)
                name = controller.model.name
                logger.info("model %r has the devices of the new system: %s.", name, numbers)
        for controller in controllers:
            if is_extended(controller.model):
                put(controller, settings_of(controller))  # which depend on allow_recompute

    def _move(self, controller: Controller) -> None:
        """Moves a model to the devices of the strategy, with its optimizer's state."""
        check_movable(controller)
        move_values(controller.model, self._home)
        controller.setup = replace(controller.setup, devices=self.devices)
        controller.functions.clear()
        model = controller.model
        model.train_function = model.test_function = model.predict_function = None

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Attaches every model that is constructed, cloned or loaded inside."""
        with super().scope(), device_iterators(self.enable_dataset_iterators):
            revive_from_configs()
            with strategy_of_scope.bound_to(self):
                yield self

    def run(
        self,
        fn: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        options: object = None,
    ) -> Any:
        """Runs a compiled function as one replica on each device, and waits for its results.

        Each optimizer applies the sum of the gradients of all replicas, so that variables that are
        equal on them stay equal; one in a `CrossReplicaOptimizer` applies the mean. A call of
        `next(iterator)` takes one element for each replica.

        Args:
            fn: a compiled function, as for `millrace.Strategy.run`.
            args: its positional arguments.
            kwargs: its keyword arguments.
            options: of the original API; ignored.

        Raises:
            UnsupportedError: in a run of PopDist, whose processes feed different data.
        """
        environment.read_variables()
        processes = processes_of(current_system().config)
        if processes > 1:
            raise UnsupportedError(
                f"strategy.run() of a function in a run of {processes} processes that feed "
                "different data (PopDist) is not supported. Train with model.fit() in the "
                "strategy's scope, or start one process."
            )
        with launching(self.devices, adds_gradients=True), functions_compiled_only():
            return super().run(fn, args, kwargs)

    def experimental_run_v2(self, *args: object, **kwargs: object) -> NoReturn:
        """Raises an error: this is the old name of `run`."""
        raise PlanError("experimental_run_v2() was renamed. Call strategy.run() instead.")


IPUStrategyV1 = IPUStrategy


def check_movable(controller: Controller) -> None:
    """Refuses to move a model whose loop is going on.

    Raises:
        ModelError: while its fit, evaluate or predict runs, in any thread.
    """
    if controller.is_running:
        raise ModelError(
            f"{controller.model.name!r} cannot get other devices while its fit, evaluate or "
            "predict is going on, in a callback of it or in another thread. Configure the devices "
            "before the loop, or after it has returned."
        )


def _check_movable(system: System) -> None:
    for strategy in list(_strategies):
        if strategy._devices_in(system) not in (None, strategy.devices):
            for controller in strategy._controllers():
                check_movable(controller)


def _follow(system: System | None) -> None:
    if system is None:
        _newest.clear()  # it keeps its devices, and is no longer the one of the system
        return
    for strategy in list(_strategies):
        strategy._follow(system)
    _newest[:] = [(system, strategy) for _, strategy in _newest]


def current_strategy() -> IPUStrategy:
    """Returns the strategy of the current scope, else the newest, else a new one of the system."""
    entered: Any = strategy_of_scope.get()
    if entered is not None:
        return entered
    if _newest and _newest[-1][0] == current_system():
        return _newest[-1][1]
    return IPUStrategy()


_newest: list[tuple[System, IPUStrategy]] = []
_strategies: weakref.WeakSet[IPUStrategy] = weakref.WeakSet()
let_gradients_change(added_up)
WrappingOptimizer.applying = staticmethod(added_up)
checks.append(_check_movable)
followers.append(_follow)
