"""`popdist.tensorflow`: sets an `IPUConfig` for the processes of a run."""

from millrace.errors import OptionError
from millrace.extend import whole_number
from millrace_ipu.ipu import popdist
from millrace_ipu.ipu.config import IPUConfig


def set_ipu_config(
    config: IPUConfig, ipus_per_replica: int | None = None, configure_device: bool = True
) -> IPUConfig:
    """Returns the configuration, after it was told processes and devices.

    Args:
        config: the configuration.
        ipus_per_replica: devices of a replica; None takes the number of the command line, or 1.
        configure_device: whether to set `auto_select_ipus`, too.

    Raises:
        OptionError: if the run was started with another number of devices for a replica.
    """
    if not isinstance(config, IPUConfig):
        raise OptionError(
            f"set_ipu_config() takes an IPUConfig. Received: {config!r}. Create one with "
            "ipu.config.IPUConfig()."
        )
    if ipus_per_replica is not None:
        popdist.checkNumIpusPerReplica(whole_number("ipus_per_replica", ipus_per_replica, 1))
        popdist.set_ipus_per_replica(ipus_per_replica)
    if popdist.getNumInstances() > 1:
        popdist.set_processes(config)
    if configure_device:
        config.auto_select_ipus = popdist.getNumLocalReplicas() * popdist.getNumIpusPerReplica()
    return config
