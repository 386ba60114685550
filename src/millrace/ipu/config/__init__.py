"""`IPUConfig`: which devices programs run on, and what is known of every other option.

IPUConfig.auto_select_ipus = n       -> the first n of `jax.devices()`
IPUConfig.select_ipus = k            -> `jax.devices()[k]`
IPUConfig.allow_recompute            -> `set_recomputation_options` of every model of a strategy
IPUConfig.device_connection.type     -> PRE_COMPILE compiles programs, and runs none
IPUConfig.configure_ipu_system()     -> the devices of strategies made afterwards

option.py       what an attribute is: typed, documented, in a category
categories.py   the categories of attributes, nearly all of which do nothing here
devices.py      the devices that are chosen, and the system that is in force
"""

import copy
import json
from collections.abc import Mapping
from typing import Any

from millrace.errors import OptionError
from millrace.ipu.config import categories, devices, option
from millrace.ipu.config.categories import XLA
from millrace.ipu.config.categories import DeviceConnectionType as DeviceConnectionType
from millrace.ipu.config.categories import (
    MergeRemoteBuffersBehaviour as MergeRemoteBuffersBehaviour,
)
from millrace.ipu.config.categories import SchedulingAlgorithm as SchedulingAlgorithm
from millrace.ipu.config.categories import SelectionOrder as SelectionOrder
from millrace.ipu.config.categories import (
    StochasticRoundingBehaviour as StochasticRoundingBehaviour,
)
from millrace.ipu.config.devices import System as System
from millrace.ipu.config.devices import current_system as current_system
from millrace.ipu.config.devices import reset_system as reset_system
from millrace.ipu.config.option import AttributeMetadata as AttributeMetadata
from millrace.ipu.config.option import Category, Group, Option


class IPUConfig(Category):
    """The options of a system of devices. Nothing takes effect before `configure_ipu_system`."""

    auto_select_ipus = Option(devices.MANY, [], "How many devices, of each logical device.")
    select_ipus = devices.Selected(devices.MANY, [], "Which device, of each logical device.")
    allow_recompute = Option(bool, False, "Whether models may compute activations again.")
    selection_order = Option(
        SelectionOrder, SelectionOrder.AUTO, "How chips are numbered.", advice=XLA
    )
    serialization_output_folder = Option(
        str, "", "Where programs are written.", advice="Call strategy.export_executables()."
    )
    compilation_poplar_options = Option(dict, {}, "Of the compiler.", advice=XLA)
    gcl_poplar_options = Option(dict, {}, "Of collectives.", advice=XLA)
    convolutions = Group(categories.Convolutions, "Convolutions.")
    device_connection = Group(categories.DeviceConnection, "Taking hold of devices.")
    experimental = Group(categories.Experimental, "Options that may change.")
    floating_point_behaviour = Group(categories.FloatingPointBehaviour, "Floating point.")
    io_tiles = Group(categories.IoTiles, "Tiles that only move data.")
    ipu_model = Group(categories.IpuModel, "The software model of a device.")
    matmuls = Group(categories.Matmuls, "Matrix products.")
    norms = Group(categories.Norms, "Normalisation.")
    optimizations = Group(categories.Optimizations, "What the compiler improves.")
    pooling = Group(categories.Pooling, "Pooling.")
    scheduling = Group(categories.Scheduling, "The order of operations.")
    slices = Group(categories.Slices, "Slices.")

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Puts the options in force; see the function of this name."""
        configure_ipu_system(self, device)

    def to_dict(self) -> dict[str, Any]:
        """Returns all options as nested dicts; enums by name."""
        return copy.deepcopy(option.as_dict(self))

    def from_dict(self, data: Mapping[str, Any]) -> None:
        """Sets what `to_dict` has returned, or a part of it."""
        option.put(self, data)

    def to_json(self) -> str:
        """Returns `to_dict` as text."""
        return json.dumps(option.as_dict(self))

    def from_json(self, text: str) -> None:
        """Sets what `to_json` has returned."""
        option.put(self, json.loads(text))

    def get_attribute_metadata(self, path: str) -> AttributeMetadata:
        """Returns types, default and meaning of the attribute at a path."""
        return option.metadata(type(self), path)

    def __repr__(self) -> str:
        lines = [f"\n    {line}" for line in option.lines(self)]
        return f"IPUConfig with{''.join(lines) or ' its defaults'}"


def configure_ipu_system(
    config: IPUConfig, device: str = "cpu", reset_configuration: bool = True
) -> None:
    """Puts a configuration in force. The object can be changed afterwards without effect.

    Args:
        config: the options.
        device: of the original API; any is taken.
        reset_configuration: whether another configuration before gives up its compiled programs.

    Raises:
        OptionError: if two options choose devices, or one is out of range.
        DeviceError: if there are fewer devices.
        PlanError: for PRE_COMPILE without a directory for what is compiled.
    """
    if not isinstance(config, IPUConfig):
        raise OptionError(
            f"configure_ipu_system() takes an IPUConfig. Received: {config!r}. Make one by "
            "ipu.config.IPUConfig()."
        )
    devices.configure(config, reset_configuration)
