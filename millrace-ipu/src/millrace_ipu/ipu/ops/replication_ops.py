"""The number of the replica that computes.

replication_index() -> millrace.loops.replication.replication_index
"""

import jax

from millrace.loops import replication


def replication_index(name: str | None = None) -> jax.Array:
    """Returns the number of this replica, from 0, as an int32."""
    del name
    return replication.replication_index()
