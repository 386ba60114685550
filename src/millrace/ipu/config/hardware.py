"""The categories of `IPUConfig` about the devices and what surrounds them.

device_connection.type = PRE_COMPILE                -> `ahead`: programs are compiled, none runs
experimental.multi_replica_distribution             in its place millrace.distributed
everything else                                     of no effect: see `advice`
"""

from millrace.ipu.config.advice import FEEDS, XLA
from millrace.ipu.config.category import Category, Group
from millrace.ipu.config.enums import DeviceConnectionType
from millrace.ipu.config.option import Option


class DeviceConnection(Category):
    """Options of how a program takes hold of its devices."""

    version = Option(str, "", "The device to compile for where none is there.", advice=XLA)
    type = Option(DeviceConnectionType, DeviceConnectionType.ALWAYS, "When devices are taken.")
    enable_remote_buffers = Option(
        bool, False, "Whether host memory can be used where no device is there.", advice=XLA
    )


class IoTiles(Category):
    """Options of tiles that only move data."""

    num_io_tiles = Option(int, 0, "How many there are.", advice=FEEDS)
    place_ops_on_io_tiles = Option(bool, False, "Whether programs use them.", advice=FEEDS)
    available_memory_proportion = Option(float, 0.9, "Of their memory.", advice=FEEDS)


class IpuModel(Category):
    """Options of the software model of a device."""

    compile_ipu_code = Option(bool, True, "Whether code is made.", advice=XLA)
    tiles_per_ipu = Option(int, 0, "Tiles of one.", advice=XLA)
    version = Option(str, "ipu2", "Which device.", advice=XLA)


class MultiReplicaDistribution(Category):
    """Options of runs of several processes."""

    process_index = Option(int, 0, "Of this process.", advice="Call millrace.distributed.")
    process_count = Option(int, 0, "Of the run.", advice="Call millrace.distributed.")


class Experimental(Category):
    """Options that may change."""

    always_rearrange_copies_on_the_host = Option(bool, False, "Where copies lie.", advice=FEEDS)
    enable_remote_buffer_embedding = Option(bool, False, "Where embeddings lie.", advice=XLA)
    enable_prng_stability = Option(bool, False, "Whether seeds repeat.", advice="They always do.")
    multi_replica_distribution = Group(MultiReplicaDistribution, "Several processes.")
