"""The strategy of IPU programs.

IPUStrategy, IPUStrategyV1                  -> millrace.Strategy on the devices of the system
ipu_device="/device:IPU:k"                  -> on the devices of logical device k
enable_keras_extensions=False               -> models without the setters of IPU programs
IPUStrategy.run                             -> Strategy.run
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import keras

from millrace.errors import PlanError, UnsupportedError
from millrace.ipu.config import System, current_system
from millrace.ipu.keras.extensions.building import is_extended
from millrace.ipu.keras.extensions.extend import extend
from millrace.ipu.keras.extensions.saving import revive_from_configs
from millrace.loops.replication import launching
from millrace.processes.agreement import process_count, process_index
from millrace.strategy.strategy import Strategy
from millrace.tensorflow.iterators import device_iterators
from millrace.threads.scoped_value import ScopedValue


class IPUStrategy(Strategy):
    """`millrace.Strategy` on the devices of the configured system.

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
        self.enable_dataset_iterators = enable_dataset_iterators
        self.enable_keras_extensions = enable_keras_extensions
        _newest[:] = [(system, self)]

    @property
    def num_replicas_in_sync(self) -> int:
        """Always 1, since gradients are summed over replicas."""
        return 1

    def attach(self, model: keras.Model) -> keras.Model:
        """Attaches a model, and gives it the setters of IPU programs."""
        super().attach(model)
        if self.enable_keras_extensions and not is_extended(model):
            extend(model)
        return model

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Attaches every model that is constructed, cloned or loaded inside."""
        with super().scope(), device_iterators(self.enable_dataset_iterators):
            revive_from_configs()
            with _strategy.bound_to(self):
                yield self

    def run(
        self,
        fn: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        options: object = None,
    ) -> Any:
        """Runs a compiled function as one replica on each device, and waits for its results.

        Args:
            fn: a compiled function, as for `millrace.Strategy.run`.
            args: its positional arguments.
            kwargs: its keyword arguments.
            options: of the original API; ignored.

        Raises:
            UnsupportedError: if the devices are of several processes.
        """
        if any(device.process_index != process_index() for device in self.devices):
            raise UnsupportedError(
                f"strategy.run() of a function on the devices of {process_count()} processes is "
                "not supported. Train with model.fit() in the strategy's scope, or start one "
                "process."
            )
        with launching(len(self.devices)):
            return super().run(fn, args, kwargs)

    def experimental_run_v2(self, *args: object, **kwargs: object) -> NoReturn:
        """Is the old name of `run`.

        Raises:
            PlanError: always.
        """
        raise PlanError("experimental_run_v2() was renamed. Call strategy.run() instead.")


IPUStrategyV1 = IPUStrategy


def current_strategy() -> IPUStrategy:
    """Returns the strategy of the current scope, else the newest, else a new one of the system."""
    entered = _strategy.get()
    if entered is not None:
        return entered
    if _newest and _newest[-1][0] == current_system():
        return _newest[-1][1]
    return IPUStrategy()


_strategy = ScopedValue[IPUStrategy | None](None)  # of this thread's current scope
_newest: list[tuple[System, IPUStrategy]] = []
