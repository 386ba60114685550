"""The refusal to run a model on the devices of a target."""

from collections.abc import Mapping
from typing import Any

import keras

from millrace.errors import DeviceError
from millrace.run.fit.setup import Setup


class NotPresentError(DeviceError):
    """A loop was to run on devices that are described.

    Attributes:
        model: that was to run.
        name: of the method.
        arguments: of the call, by name.
    """

    def __init__(self, model: keras.Model, name: str, arguments: Mapping[str, Any]):
        super().__init__(
            f"{name}() of {model.name!r} cannot run: its strategy has a target, whose devices are "
            "described and not here. Programs can be compiled for them: call "
            "strategy.memory_report(model, batch), strategy.plan(model, batch) or "
            "model.precompile(batch). To train, give Strategy() devices and no target."
        )
        self.model, self.name, self.arguments = model, name, arguments


def refuse_described(setup: Setup, name: str, arguments: Mapping[str, Any]) -> None:
    """Refuses to run a model of a target.

    Args:
        setup: of the model.
        name: of the method that was called.
        arguments: of the call, by name.

    Raises:
        NotPresentError: if its devices are described.
    """
    if setup.is_described:
        raise NotPresentError(setup.model, name, arguments)
