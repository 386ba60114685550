"""The categories of options in an `IPUConfig`, and the enumerations of their values.

device_connection.type = PRE_COMPILE      `pre_compile.py`: programs are compiled, none runs
everything else                           no effect: each option has advice on what to use instead

XLA         the compiler decides it
FEEDS       how data reaches the device         -> set_infeed_queue_options
NUMBERS     stopping at infinities and NaN      -> jax_debug_nans, NaNWatch
"""

import enum

from millrace.ipu.config.option import Category, Group, Option


class SelectionOrder(enum.IntEnum):
    """The order in which a device group's chips are numbered."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class SchedulingAlgorithm(enum.IntEnum):
    """How the operations of a program are ordered."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class DeviceConnectionType(enum.Enum):
    """When a program takes hold of its devices."""

    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class MergeRemoteBuffersBehaviour(enum.Enum):
    """Whether values in remote memory share a buffer."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class StochasticRoundingBehaviour(enum.Enum):
    """Where float16 results are rounded at random."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2


XLA = "XLA decides this itself. Remove the line; XLA_FLAGS has options of XLA."
FEEDS = "Set model.set_infeed_queue_options() for how data reaches the device."
NUMBERS = "Set jax.config.update('jax_debug_nans', True), or give fit the callback NaNWatch."


class Scheduling(Category):
    """Options of the order of operations."""

    algorithm = Option(
        SchedulingAlgorithm, SchedulingAlgorithm.CHOOSE_BEST, "How to order.", advice=XLA
    )
    maximum_scheduler_lookahead_depth = Option(int, 5, "How far to look.", advice=XLA)
    maximum_scheduler_search_space_size = Option(int, 64, "How much to try.", advice=XLA)


class Math(Category):
    """Options of algebraic simplification."""

    fast = Option(bool, False, "Whether results may differ a little.", advice=XLA)
    dot_strength = Option(bool, True, "Whether dots become cheaper ones.", advice=XLA)


class Optimizations(Category):
    """Options of what the compiler improves."""

    math = Group(Math, "Algebraic simplification.")
    enable_fast_math = Option(bool, False, "Old name.", advice=XLA, deprecated="math.fast")
    prefetch_data_streams = Option(bool, True, "Fetch data ahead.", advice=FEEDS)
    combine_embedding_lookups = Option(bool, False, "Join look-ups.", advice=XLA)
    combine_matmuls = Option(bool, False, "Join matrix products.", advice=XLA)
    enable_graph_outlining = Option(bool, True, "Share equal code.", advice=XLA)
    merge_infeed_io_copies = Option(bool, True, "Join copies.", advice=FEEDS)
    maximum_cross_replica_sum_buffer_size = Option(int, 0, "Bytes to join.", advice=XLA)
    maximum_reduce_scatter_buffer_size = Option(int, 0, "Bytes to join.", advice=XLA)
    maximum_inter_ipu_copies_buffer_size = Option(int, 0, "Bytes to join.", advice=XLA)
    maximum_send_recv_cluster_size = Option(int, 0, "Bytes to join.", advice=XLA)
    minimum_remote_tensor_size = Option(
        int, 128, "Bytes from which values may rest in remote memory.", advice=XLA
    )
    merge_remote_buffers = Option(
        MergeRemoteBuffersBehaviour,
        MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
        "Whether values in remote memory share a buffer.",
        advice=XLA,
    )
    triangular_solve_expander_block_size = Option(int, 0, "Block size.", advice=XLA)
    cholesky_block_size = Option(int, 0, "Block size.", advice=XLA)


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


def _poplar(what: str) -> Option:
    return Option(dict, {}, f"Poplar options of {what}.", advice=XLA)


class Convolutions(Category):
    """Options of convolutions."""

    poplar_options = _poplar("convolutions")


class Matmuls(Category):
    """Options of matrix products."""

    clear_pass_type = Option(bool, False, "Whether passes share their plans.", advice=XLA)
    poplar_options = _poplar("matrix products")


class Slices(Category):
    """Options of slices."""

    poplar_options = _poplar("slices")


class Pooling(Category):
    """Options of pooling."""

    poplar_options = _poplar("pooling")


class NormsExperimental(Category):
    """Options of normalisation that may change."""

    distributed_batch_norm_replica_group_size = Option(
        int, 1, "Replicas that share batch statistics.", advice="All replicas follow one order."
    )


class Norms(Category):
    """Options of normalisation."""

    use_stable_statistics = Option(bool, False, "Whether means come first.", advice=XLA)
    experimental = Group(NormsExperimental, "Options that may change.")


class FloatingPointBehaviour(Category):
    """Options of floating-point exceptions and rounding."""

    inv = Option(bool, False, "Stop at invalid operations.", advice=NUMBERS)
    div0 = Option(bool, False, "Stop at divisions by zero.", advice=NUMBERS)
    oflo = Option(bool, False, "Stop at overflows.", advice=NUMBERS)
    esr = Option(
        (StochasticRoundingBehaviour, bool),
        StochasticRoundingBehaviour.OFF,
        "Stochastic rounding of float16.",
        advice="Set gradient_accumulation dtype 'float32', or use bfloat16.",
    )
    nanoo = Option(bool, False, "Overflow becomes NaN.", advice=NUMBERS)
    set_all = Option(bool, False, "Sets all of these.", advice=NUMBERS)
