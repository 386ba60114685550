"""The categories of `IPUConfig` about what the compiler does with a program.

everything here     of no effect: see `advice`
"""

from millrace.ipu.config.advice import FEEDS, XLA
from millrace.ipu.config.category import Category, Group
from millrace.ipu.config.enums import MergeRemoteBuffersBehaviour, SchedulingAlgorithm
from millrace.ipu.config.option import Option


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
