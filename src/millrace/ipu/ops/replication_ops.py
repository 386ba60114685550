"""Which replica it is.

replication_index() -> millrace.loops.replication.replication_index
"""

from typing import Any

from millrace.loops import replication


def replication_index(name: str | None = None) -> Any:
    """Returns the number of this replica, from 0."""
    del name
    return replication.replication_index()
