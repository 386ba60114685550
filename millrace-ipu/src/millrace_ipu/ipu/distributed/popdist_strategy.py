"""The strategy of a run of several processes: replicas on the devices of all of them.

PopDistStrategy, IPUMultiReplicaStrategy, IPUHorovodStrategy   -> IPUStrategy

Each process gives its part of the data to `fit`, `evaluate` and `predict`.
"""

from millrace.extend import process_count
from millrace_ipu.ipu import popdist
from millrace_ipu.ipu.config import IPUConfig
from millrace_ipu.ipu.ipu_strategy import IPUStrategy


class PopDistStrategy(IPUStrategy):
    """Runs replicas on the devices of all processes.

    Args:
        ipu_device: the logical device.
        add_ipu_cross_replica_reductions: of the original API; `fit` always adds up gradients.
        enable_dataset_iterators: as for `IPUStrategy`.
        enable_keras_extensions: as for `IPUStrategy`.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        add_ipu_cross_replica_reductions: bool = True,
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ):
        super().__init__(
            ipu_device,
            enable_dataset_iterators=enable_dataset_iterators,
            enable_keras_extensions=enable_keras_extensions,
        )

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of processes."""
        return process_count()

    def update_ipu_config(self, config: IPUConfig) -> IPUConfig:
        """Returns the configuration, after it was told the processes of the run."""
        return popdist.set_processes(config)


IPUMultiReplicaStrategy = IPUMultiReplicaStrategyV1 = PopDistStrategy
IPUHorovodStrategy = IPUHorovodStrategyV1 = PopDistStrategy
