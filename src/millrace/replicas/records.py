"""What the loops of several replicas leave: results of steps, and what steps have tapped.

taps    [rounds, 1, ...] within a replica,  [rounds, replicas, ...] outside
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from millrace.devices import REPLICA
from millrace.replicas.logs import ReplicaLogs
from millrace.steps.state import State
from millrace.taps.entries import record_at
from millrace.taps.taps import Tapped


class ReplicaRecords:
    """Carries logs or outputs, and taps, through the programs of one plan."""

    def __init__(self, logs: ReplicaLogs, tapped: Tapped, rounds: int, replicas: int):
        """Prepares room.

        Args:
            logs: what reports steps.
            tapped: specs of what one replica's step taps.
            rounds: of a call whose taps are returned, at most.
            replicas: that run them.
        """
        self._logs, self._tapped = logs, tapped
        self._lead = (rounds, replicas)
        # Under the mesh and outside of it.
        self.layout = (logs.layout, PartitionSpec(None, REPLICA))

    def first(self) -> tuple[Any, Tapped]:
        """Returns empty records."""
        taps = jax.tree.map(lambda s: jnp.zeros((*self._lead, *s.shape), s.dtype), self._tapped)
        return self._logs.first(), taps

    def record(
        self, records: Any, index: Any, metrics: Any, result: Any, tapped: Tapped, active: Any
    ) -> tuple[Any, Tapped]:
        """Adds round `index` of this replica; runs under the mesh's axis."""
        logs, taps = records
        logs = self._logs.record(logs, index, metrics, result, active)
        if tapped:
            taps = record_at(taps, index, jax.tree.map(lambda leaf: leaf[None], tapped))
        return logs, taps

    def result(self, state: State, records: Any) -> tuple[Any, Tapped]:
        """Returns the result of a call, and the taps of its steps."""
        logs, taps = records
        return self._logs.result(state, logs), taps
