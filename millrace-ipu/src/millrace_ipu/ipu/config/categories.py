"""The options of an `IPUConfig`: one table, and the enumerations of their values.

auto_select_ipus, select_ipus, allow_recompute, device_connection.type      have an effect
everything else                             each has advice on what to use instead

XLA         decided by the compiler
FEEDS       how data reaches the device         -> set_infeed_queue_options
NUMBERS     stopping at infinities and NaN      -> jax_debug_nans, NaNWatch
"""

import enum

from millrace_ipu.ipu.config.option import Option

# The numbering of the chips in a device group, and the order of a program's operations.
SelectionOrder = enum.IntEnum("SelectionOrder", "AUTO ZIGZAG SNAKE HOOF", start=0)
SchedulingAlgorithm = enum.IntEnum(
    "SchedulingAlgorithm", "CHOOSE_BEST CLUSTERING POST_ORDER LOOK_AHEAD SHORTEST_PATH", start=0
)
# Whether values in remote memory share a buffer.
MergeRemoteBuffersBehaviour = enum.Enum(
    "MergeRemoteBuffersBehaviour", "NO_MERGING MERGE IF_BENEFICIAL", start=0
)


class DeviceConnectionType(enum.Enum):
    """The time at which a program attaches to its devices."""

    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


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
ROUNDING = "Accumulate gradients with dtype='float32', or use bfloat16."

# Without effect, by their paths: the initial value, whose type is that of all values; the advice.
_WITHOUT_EFFECT: dict[str, tuple[object, str]] = {
    "selection_order": (SelectionOrder.AUTO, XLA),
    "serialization_output_folder": ("", "Call strategy.export_executables()."),
    "compilation_poplar_options": ({}, XLA),
    "gcl_poplar_options": ({}, XLA),
    "convolutions.poplar_options": ({}, XLA),
    "device_connection.version": ("", XLA),
    "device_connection.enable_remote_buffers": (False, XLA),
    "experimental.always_rearrange_copies_on_the_host": (False, FEEDS),
    "experimental.enable_remote_buffer_embedding": (False, XLA),
    "experimental.enable_prng_stability": (False, "Seeds always repeat."),
    "floating_point_behaviour.inv": (False, NUMBERS),
    "floating_point_behaviour.div0": (False, NUMBERS),
    "floating_point_behaviour.oflo": (False, NUMBERS),
    "floating_point_behaviour.nanoo": (False, NUMBERS),
    "floating_point_behaviour.set_all": (False, NUMBERS),
    "io_tiles.num_io_tiles": (0, FEEDS),
    "io_tiles.place_ops_on_io_tiles": (False, FEEDS),
    "io_tiles.available_memory_proportion": (0.9, FEEDS),
    "ipu_model.compile_ipu_code": (True, XLA),
    "ipu_model.tiles_per_ipu": (0, XLA),
    "ipu_model.version": ("ipu2", XLA),
    "matmuls.clear_pass_type": (False, XLA),
    "matmuls.poplar_options": ({}, XLA),
    "norms.use_stable_statistics": (False, XLA),
    "norms.experimental.distributed_batch_norm_replica_group_size": (
        1, "Each replica normalizes its own batch."
    ),
    "optimizations.math.fast": (False, XLA),
    "optimizations.math.dot_strength": (True, XLA),
    "optimizations.prefetch_data_streams": (True, FEEDS),
    "optimizations.combine_embedding_lookups": (False, XLA),
    "optimizations.combine_matmuls": (False, XLA),
    "optimizations.enable_graph_outlining": (True, XLA),
    "optimizations.merge_infeed_io_copies": (True, FEEDS),
    "optimizations.maximum_cross_replica_sum_buffer_size": (0, XLA),
    "optimizations.maximum_reduce_many_buffer_size": (0, XLA),
    "optimizations.maximum_reduce_scatter_buffer_size": (0, XLA),
    "optimizations.maximum_inter_ipu_copies_buffer_size": (0, XLA),
    "optimizations.maximum_send_recv_cluster_size": (0, XLA),
    "optimizations.minimum_remote_tensor_size": (128, XLA),
    "optimizations.merge_remote_buffers": (MergeRemoteBuffersBehaviour.IF_BENEFICIAL, XLA),
    "optimizations.triangular_solve_expander_block_size": (0, XLA),
    "optimizations.cholesky_block_size": (0, XLA),
    "pooling.poplar_options": ({}, XLA),
    "scheduling.algorithm": (SchedulingAlgorithm.CHOOSE_BEST, XLA),
    "scheduling.maximum_scheduler_lookahead_depth": (5, XLA),
    "scheduling.maximum_scheduler_search_space_size": (64, XLA),
    "slices.poplar_options": ({}, XLA),
}  # fmt: skip
_PROCESSES = "experimental.multi_replica_distribution"
OPTIONS: dict[str, Option] = {
    "allow_recompute": Option(bool, False, "Whether models may recompute activations."),
    "device_connection.type": Option(
        DeviceConnectionType, DeviceConnectionType.ALWAYS, "When to attach."
    ),
    f"{_PROCESSES}.process_index": Option(int, 0, "Index of this process."),
    f"{_PROCESSES}.process_count": Option(
        int, 0, "Processes of the run: each has its part of the data."
    ),
    **{
        path: Option(type(default), default, f"Without effect. {advice}", advice=advice)
        for path, (default, advice) in _WITHOUT_EFFECT.items()
    },
    "floating_point_behaviour.esr": Option(
        (StochasticRoundingBehaviour, bool),
        StochasticRoundingBehaviour.OFF,
        "Stochastic rounding of float16.",
        advice=ROUNDING,
    ),
    "optimizations.enable_fast_math": Option(
        bool, False, "Old name.", advice=XLA, deprecated="math.fast"
    ),
}
