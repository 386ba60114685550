"""Is `millrace.ipu.ops.replication_ops`, by its shorter name."""

from millrace.ipu.ops.replication_ops import replication_index as replication_index
