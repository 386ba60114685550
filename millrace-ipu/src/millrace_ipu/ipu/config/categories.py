"""The categories of options in an `IPUConfig`, and the enumerations of their values.

device_connection.type = PRE_COMPILE      `pre_compile.py`: programs are compiled and not run
everything else                           no effect: each option has advice on what to use instead

XLA         decided by the compiler
FEEDS       how data reaches the device         -> set_infeed_queue_options
NUMBERS     stopping at infinities and NaN      -> jax_debug_nans, NaNWatch
"""

import enum

from millrace_ipu.ipu.config.option import Category, Option, Subcategory


class SelectionOrder(enum.IntEnum):
    """The numbering of the chips in a device group."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class SchedulingAlgorithm(enum.IntEnum):
    """The algorithm that orders the operations of a program."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class DeviceConnectionType(enum.Enum):
    """The time at which a program attaches to its devices."""

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
    """Stochastic rounding of float16 results: off, on, or alike on all replicas."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @classmethod
    def from_bool(cls, value: bool) -> "StochasticRoundingBehaviour":
        """Returns `ON` for True, `OFF` for False."""
        return cls.ON if value else cls.OFF


XLA = "XLA decides this itself. Remove the line; options of XLA are set in XLA_FLAGS."
FEEDS = "Call model.set_infeed_queue_options() to choose how data reaches the device."
NUMBERS = "Call jax.config.update('jax_debug_nans', True), or give fit the callback NaNWatch."
PROCESSES = "Call millrace.distributed.initialize() in each process."


class Scheduling(Category):
    """Options of the order of operations."""

    algorithm = Option(
        SchedulingAlgorithm, SchedulingAlgorithm.CHOOSE_BEST, "The algorithm.", advice=XLA
    )
    maximum_scheduler_lookahead_depth = Option(int, 5, "Depth of the look-ahead.", advice=XLA)
    maximum_scheduler_search_space_size = Option(int, 64, "Size of the search.", advice=XLA)


class Math(Category):
    """Options of algebraic simplification."""

    fast = Option(bool, False, "Whether results may differ slightly.", advice=XLA)
    dot_strength = Option(bool, True, "Whether to replace dots by cheaper ones.", advice=XLA)


class Optimizations(Category):
    """Options of the compiler's optimizations."""

    math = Subcategory(Math, "Algebraic simplification.")
    enable_fast_math = Option(bool, False, "Old name.", advice=XLA, deprecated="math.fast")
    prefetch_data_streams = Option(bool, True, "Whether to prefetch data.", advice=FEEDS)
    combine_embedding_lookups = Option(bool, False, "Whether to merge look-ups.", advice=XLA)
    combine_matmuls = Option(bool, False, "Whether to merge matrix products.", advice=XLA)
    enable_graph_outlining = Option(bool, True, "Whether to share equal code.", advice=XLA)
    merge_infeed_io_copies = Option(bool, True, "Whether to merge copies.", advice=FEEDS)
    maximum_cross_replica_sum_buffer_size = Option(int, 0, "Bytes to merge.", advice=XLA)
    maximum_reduce_many_buffer_size = Option(int, 0, "Bytes to merge.", advice=XLA)
    maximum_reduce_scatter_buffer_size = Option(int, 0, "Bytes to merge.", advice=XLA)
    maximum_inter_ipu_copies_buffer_size = Option(int, 0, "Bytes to merge.", advice=XLA)
    maximum_send_recv_cluster_size = Option(int, 0, "Bytes to merge.", advice=XLA)
    minimum_remote_tensor_size = Option(
        int, 128, "Smallest size of values in remote memory, in bytes.", advice=XLA
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
    """Options of a program's connection to its devices."""

    version = Option(str, "", "The device to compile for without one attached.", advice=XLA)
    type = Option(DeviceConnectionType, DeviceConnectionType.ALWAYS, "When to attach.")
    enable_remote_buffers = Option(
        bool, False, "Whether programs compiled without a device use host memory.", advice=XLA
    )


class IoTiles(Category):
    """Options of tiles that only move data."""

    num_io_tiles = Option(int, 0, "Number of tiles.", advice=FEEDS)
    place_ops_on_io_tiles = Option(bool, False, "Whether programs use them.", advice=FEEDS)
    available_memory_proportion = Option(float, 0.9, "Share of their memory.", advice=FEEDS)


class IpuModel(Category):
    """Options of the software model of a device."""

    compile_ipu_code = Option(bool, True, "Whether to generate code.", advice=XLA)
    tiles_per_ipu = Option(int, 0, "Tiles of a device.", advice=XLA)
    version = Option(str, "ipu2", "The version of the device.", advice=XLA)


class MultiReplicaDistribution(Category):
    """Options of runs of several processes."""

    process_index = Option(int, 0, "Index of this process.")
    process_count = Option(int, 0, "Processes of the run: each has its part of the data.")


class Experimental(Category):
    """Options that may change."""

    always_rearrange_copies_on_the_host = Option(
        bool, False, "Whether the host rearranges copies.", advice=FEEDS
    )
    enable_remote_buffer_embedding = Option(
        bool, False, "Whether embeddings use remote memory.", advice=XLA
    )
    enable_prng_stability = Option(
        bool, False, "Whether seeds repeat.", advice="Seeds always repeat."
    )
    multi_replica_distribution = Subcategory(MultiReplicaDistribution, "Several processes.")


def poplar_option(subject: str) -> Option:
    """Returns an option that holds a dict of Poplar's options."""
    return Option(dict, {}, f"Poplar options of {subject}.", advice=XLA)


class Convolutions(Category):
    """Options of convolutions."""

    poplar_options = poplar_option("convolutions")


class Matmuls(Category):
    """Options of matrix products."""

    clear_pass_type = Option(bool, False, "Whether passes share their plans.", advice=XLA)
    poplar_options = poplar_option("matrix products")


class Slices(Category):
    """Options of slices."""

    poplar_options = poplar_option("slices")


class Pooling(Category):
    """Options of pooling."""

    poplar_options = poplar_option("pooling")


class NormsExperimental(Category):
    """Options of normalization that may change."""

    distributed_batch_norm_replica_group_size = Option(
        int,
        1,
        "Replicas that share batch statistics.",
        advice="Each replica normalizes its own batch.",
    )


class Norms(Category):
    """Options of normalization."""

    use_stable_statistics = Option(bool, False, "Whether to compute means first.", advice=XLA)
    experimental = Subcategory(NormsExperimental, "Options that may change.")


class FloatingPointBehaviour(Category):
    """Options of floating-point exceptions and rounding."""

    inv = Option(bool, False, "Stop at invalid operations.", advice=NUMBERS)
    div0 = Option(bool, False, "Stop at divisions by zero.", advice=NUMBERS)
    oflo = Option(bool, False, "Stop at overflows.", advice=NUMBERS)
    esr = Option(
        (StochasticRoundingBehaviour, bool),
        StochasticRoundingBehaviour.OFF,
        "Stochastic rounding of float16.",
        advice="Accumulate gradients with dtype='float32', or use bfloat16.",
    )
    nanoo = Option(bool, False, "Overflow becomes NaN.", advice=NUMBERS)
    set_all = Option(bool, False, "Sets all of these.", advice=NUMBERS)
