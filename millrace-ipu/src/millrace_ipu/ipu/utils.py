"""The module `utils` of IPU programs: seeds, devices, and names that have moved to `config`.

IPUConfig, configure_ipu_system         -> millrace_ipu.ipu.config
SelectionOrder, DeviceConnectionType, ...   -> the enums of millrace_ipu.ipu.config
get_num_of_ipus_in_device(ipu_device)   -> len(strategy.devices)
reset_ipu_seed(seed)                    -> keras.utils.set_random_seed
move_variable_initialization_to_cpu     without effect
running_on_ipu_model                    -> False
create_ipu_config, auto_select_ipus, select_ipus, set_*_options   -> old_configuration.py
"""

from collections.abc import Callable
from typing import NoReturn

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
from millrace_ipu.ipu.old_configuration import SETTERS as _SETTERS
from millrace_ipu.ipu.old_configuration import (  # noqa: F401 - names of this module
    ExecutionProfileType,
    auto_select_ipus,
    create_ipu_config,
    select_ipus,
    set_experimental_multi_replica_distribution_options,
    set_ipu_connection_type,
    set_recomputation_options,
)
from millrace_ipu.ipu.replacements import other_name as _other_name

globals().update(_SETTERS)


def __getattr__(name: str) -> Callable[..., NoReturn]:
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
