"""The number of the replica that computes.

replication_index() -> millrace.extend.replication_index
"""

import jax

from millrace.extend import replication_index as _replication_index


def replication_index(name: str | None = None) -> jax.Array:
    """Returns the number of this replica, from 0, as an int32."""
    del name
    return _replication_index()
