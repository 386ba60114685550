"""Is `millrace.ipu.ops.cross_replica_ops`, by its shorter name."""

from millrace.ipu.ops.cross_replica_ops import (
    assume_equal_across_replicas as assume_equal_across_replicas,
)
from millrace.ipu.ops.cross_replica_ops import cross_replica_mean as cross_replica_mean
from millrace.ipu.ops.cross_replica_ops import cross_replica_sum as cross_replica_sum
