"""`IPUConfig`: the choice of devices, and advice about every other option.

IPUConfig.auto_select_ipus = n       -> the first n of `jax.devices()`
IPUConfig.select_ipus = k            -> `jax.devices()[k]`
IPUConfig.allow_recompute            -> `set_recomputation_options` of every model of a strategy
IPUConfig.device_connection.type     -> PRE_COMPILE compiles programs without running them
IPUConfig.configure_ipu_system()     -> the devices of strategies made afterwards

option.py       typed, documented attributes in categories
categories.py   the table of attributes, nearly all of them without effect here
devices.py      the choice of devices, and the configured system
"""

import copy
import json
from collections.abc import Mapping

from millrace.errors import OptionError
from millrace_ipu.ipu.config import devices, option
from millrace_ipu.ipu.config.categories import (  # noqa: F401 - names of this module
    OPTIONS,
    DeviceConnectionType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from millrace_ipu.ipu.config.devices import System, current_system, reset_system  # noqa: F401
from millrace_ipu.ipu.config.option import AttributeMetadata as AttributeMetadata
from millrace_ipu.ipu.config.option import Category, Option, with_options


@with_options(
    {
        "auto_select_ipus": Option(devices.MANY, [], "Number of devices in each logical device."),
        "select_ipus": devices.Selected(devices.MANY, [], "Number of each logical device."),
        **OPTIONS,
    }
)
class IPUConfig(Category):
    """The options of a system of devices. They take effect with `configure_ipu_system`."""

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Puts the options in force; see the function of this name."""
        configure_ipu_system(self, device)

    def to_dict(self) -> dict[str, object]:
        """Returns all options as nested dicts; enums by name."""
        return copy.deepcopy(option.as_dict(self))

    def from_dict(self, data: Mapping[str, object]) -> None:
        """Sets options from the result of `to_dict`, or from some of its entries."""
        option.put(self, data)

    def to_json(self) -> str:
        """Returns `to_dict` as text."""
        return json.dumps(option.as_dict(self))

    def from_json(self, text: str) -> None:
        """Sets options from the result of `to_json`."""
        option.put(self, json.loads(text))

    def get_attribute_metadata(self, path: str) -> AttributeMetadata:
        """Returns types, default and meaning of one attribute.

        Args:
            path: its name with those of its categories, such as `matmuls.poplar_options`.

        Raises:
            OptionError: if no attribute has this path.
        """
        return option.metadata(type(self), path)

    def __repr__(self) -> str:
        lines = [
            f"\n    {path} = {value!r}"
            for path, each, value in option.options(self)
            if value != each.default
        ]
        return f"IPUConfig with{''.join(lines) or ' its defaults'}"


def reset_ipu_configuration() -> None:
    """Removes the configuration, so that another one may follow; strategies keep their devices."""
    reset_system()


def configure_ipu_system(
    config: IPUConfig, device: str = "cpu", reset_configuration: bool = True
) -> None:
    """Puts a configuration in force. Later changes of `config` have no effect.

    Args:
        config: the options.
        device: of the original API; ignored.
        reset_configuration: whether to drop programs compiled under a different configuration.

    Raises:
        OptionError: if both options choose devices, or one is out of range.
        DeviceError: if JAX has fewer devices.
        PlanError: for PRE_COMPILE without a directory for compiled programs.
    """
    if not isinstance(config, IPUConfig):
        raise OptionError(
            f"configure_ipu_system() takes an IPUConfig. Received: {config!r}. Create one with "
            "ipu.config.IPUConfig()."
        )
    devices.configure(config, reset_configuration)
