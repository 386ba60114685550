"""The strategy of IPU programs.

IPUStrategy, IPUStrategyV1                  -> millrace.Strategy on the devices of the system
ipu_device="/device:IPU:k"                  -> those of the k-th logical device
enable_keras_extensions=False               -> models have no setters
IPUStrategy.run                             -> Strategy.run
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from millrace.errors import PlanError
from millrace.ipu.config import System, current_system
from millrace.ipu.keras.extensions.building import is_extended
from millrace.ipu.keras.extensions.extend import extend
from millrace.ipu.keras.extensions.saving import revive_from_configs
from millrace.loops.replication import launching
from millrace.strategy.strategy import Strategy
from millrace.tensorflow.iterators import device_iterators
from millrace.threads.scoped_value import ScopedValue


class IPUStrategy(Strategy):
    """`millrace.Strategy` on the devices of the configured system.

    Args:
        ipu_device: which logical device of it.
        cpu_device: of the original API; any is taken.
        enable_dataset_iterators: whether `iter(dataset)` in the scope yields to compiled
            functions only.
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
        """1, whatever runs: gradients are added up over replicas."""
        return 1

    def attach(self, model: keras.Model) -> keras.Model:
        """Attaches a model, and gives it the setters of IPU programs."""
        super().attach(model)
        if self.enable_keras_extensions and not is_extended(model):
            extend(model)
        return model

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Attaches every model that is built, cloned or loaded inside."""
        with super().scope(), device_iterators(self.enable_dataset_iterators):
            revive_from_configs()
            with _strategy.bound_to(self):
                yield self

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Runs a compiled function, once as a replica for each device, and waits until it is done.

        No options exist.
        """
        with launching(len(self.devices)):
            return super().run(fn, args, kwargs)

    def experimental_run_v2(self, *args: Any, **kwargs: Any) -> Any:
        """Was renamed.

        Raises:
            PlanError: naming `run`.
        """
        raise PlanError("experimental_run_v2() was renamed. Call strategy.run() instead.")


IPUStrategyV1 = IPUStrategy


def current_strategy() -> IPUStrategy:
    """Returns the strategy whose scope is entered, else the newest, else one of the system."""
    entered = _strategy.get()
    if entered is not None:
        return entered
    if _newest and _newest[-1][0] == current_system():
        return _newest[-1][1]
    return IPUStrategy()


_strategy = ScopedValue[IPUStrategy | None](None)  # whose scope this thread is in
_newest: list[tuple[System, IPUStrategy]] = []
