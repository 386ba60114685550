"""The module `utils` of IPU programs: seeds, devices, and names that have moved to `config`.

IPUConfig, configure_ipu_system         -> millrace_ipu.ipu.config
SelectionOrder, DeviceConnectionType, ...   -> the enums of millrace_ipu.ipu.config
get_num_of_ipus_in_device(ipu_device)   -> len(strategy.devices)
reset_ipu_seed(seed)                    -> keras.utils.set_random_seed
move_variable_initialization_to_cpu     without effect
running_on_ipu_model                    -> False

Releases up to 2.3 made a configuration by functions:

opts = create_ipu_config()              -> IPUConfig()
opts = auto_select_ipus(opts, 2)        -> opts.auto_select_ipus = 2, and so on: _SETTERS
set_matmul_options(opts, ...)           without effect, as all options of Poplar
"""

import enum
import operator
from collections.abc import Callable
from typing import Any

import keras

from millrace_ipu.ipu.config import DeviceConnectionType as DeviceConnectionType
from millrace_ipu.ipu.config import IPUConfig as IPUConfig
from millrace_ipu.ipu.config import MergeRemoteBuffersBehaviour as MergeRemoteBuffersBehaviour
from millrace_ipu.ipu.config import SchedulingAlgorithm as SchedulingAlgorithm
from millrace_ipu.ipu.config import SelectionOrder as SelectionOrder
from millrace_ipu.ipu.config import StochasticRoundingBehaviour as StochasticRoundingBehaviour
from millrace_ipu.ipu.config import configure_ipu_system as configure_ipu_system
from millrace_ipu.ipu.config import current_system
from millrace_ipu.ipu.config import reset_ipu_configuration as reset_ipu_configuration
from millrace_ipu.ipu.release import uses_old_names
from millrace_ipu.ipu.replacements import other_name as _other_name
from millrace_ipu.tensorflow.no_operation import warn_no_effect

# The parts of an execution's profile.
ExecutionProfileType = enum.IntEnum(
    "ExecutionProfileType", "NO_PROFILE DEVICE_PROFILE IPU_PROFILE TILE_PROFILE", start=0
)
_ADVICE = "Remove it: XLA decides this itself, and POPLAR_ENGINE_OPTIONS asks for reports."
_SETTERS = {  # the option of an IPUConfig that each sets, the argument with its value, the default
    "auto_select_ipus": ("auto_select_ipus", "num_ipus", None),
    "select_ipus": ("select_ipus", "indices", None),
    "set_ipu_connection_type": ("device_connection.type", "connection_type", None),
    "set_recomputation_options": ("allow_recompute", "allow_recompute", True),
}
_WITHOUT_EFFECT = (
    "compilation", "convolution", "floating_point_behaviour", "gcl", "io_tile", "ipu_model",
    "matmul", "norm", "optimization", "pooling", "report", "serialization",
)  # fmt: skip


def create_ipu_config(profiling: bool = False, **options: object) -> IPUConfig:
    """Returns a configuration; all options are without effect."""
    uses_old_names()
    for name, value in {"profiling": profiling, **options}.items():
        if value:
            warn_no_effect(f"create_ipu_config({name}=...)", _ADVICE)
    return IPUConfig()


def _setter(path: str, argument: str, default: object) -> Callable[..., IPUConfig]:
    category, _, name = path.rpartition(".")

    def set_option(opts: IPUConfig, *args: Any, **kwargs: Any) -> IPUConfig:
        value = args[0] if args else kwargs.get(argument, default)
        if value is not None:
            setattr(operator.attrgetter(category)(opts) if category else opts, name, value)
        return opts

    set_option.__doc__ = f"Sets the option `{path}` of a configuration, and returns it."
    return set_option


def _without_effect(name: str) -> Callable[..., IPUConfig]:
    def set_options(opts: IPUConfig, *_: object, **__: object) -> IPUConfig:
        """Has no effect: warns, and returns the configuration."""
        warn_no_effect(name, _ADVICE)
        return opts

    return set_options


globals().update(
    {name: _setter(*row) for name, row in _SETTERS.items()},
    **{f"set_{kind}_options": _without_effect(f"set_{kind}_options") for kind in _WITHOUT_EFFECT},
)


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental: bool = False,
    experimental_identical_replicas: bool = False,
) -> None:
    """Sets the random seeds of Keras, NumPy and Python."""
    keras.utils.set_random_seed(seed)


def move_variable_initialization_to_cpu(graph: object = None) -> None:
    """Has no effect: variables are initialized outside of compiled programs anyway."""


def running_on_ipu_model() -> bool:
    """Returns whether the device is IPU Model, the simulator: always False."""
    return False


def get_num_of_ipus_in_device(ipu_device: str = "/device:IPU:0", device: str = "cpu") -> int:
    """Returns the number of devices in a logical device of the configured system."""
    return len(current_system().devices_of(ipu_device))
