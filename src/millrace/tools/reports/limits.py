"""The limits of a run: the time of its loops, in seven parts.

    wall time of fit, evaluate and predict
    |compile|planning|data|other|transfer|bubble|compute|

compile    tracing, lowering, compiling and reading of executables
planning   searches for what fits into the memory, with the executables that they compare
data       the loop waits for its infeed
bubble     device groups of a pipeline wait for one another, by the traced updates
transfer   device groups wait for a value that is on its way; exchange between replicas
other      the host: Keras and callbacks, before the first execution and between traced ones
compute    the rest: steps, and without traces what Keras and callbacks do between them
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.base.records.run import RunRecords
from millrace.base.records.table_text import TableRecord
from millrace.tools.reports.advice import advice
from millrace.tools.reports.loop_parts import PARTS, parts_of_loops

# Share of the wall time, from which on a part other than compute limited the run.
LIMITING = 0.2


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunLimits(TableRecord):
    """The wall time of a run's loops in parts, what limited it, and what to change."""

    wall_seconds: float  # of all loops of a process; of several processes, on average
    seconds: Mapping[str, float]  # of each of `PARTS`; their sum is `wall_seconds`
    limit: str  # one of `PARTS`; empty before anything has run
    advice: str  # one sentence
    steps: int = 0
    executions: int = 0

    @property
    def shares(self) -> Mapping[str, float]:
        """Of the wall time, from 0 to 1."""
        wall = self.wall_seconds
        return {name: value / wall if wall else 0.0 for name, value in self.seconds.items()}


def limits(run: RunRecords) -> RunLimits:
    """Returns what limited a run, also one that is still running.

    Loops within another one, such as `evaluate` in a callback of `fit`, are part of that one.
    """
    parts = parts_of_loops(run)
    by_process: dict[int, tuple[int, int]] = {}
    for each in parts:
        steps, executions = by_process.get(each.loop.process, (0, 0))
        counts = steps + each.steps, executions + each.executions
        by_process[each.loop.process] = counts
    processes = max(len(by_process), 1)
    seconds = {name: sum(each.seconds[name] for each in parts) / processes for name in PARTS}
    limit = _limit(seconds)
    # All processes take part in every step.
    steps, executions = max(by_process.values(), default=(0, 0))
    return RunLimits(
        wall_seconds=sum(seconds.values()),
        seconds=seconds,
        limit=limit,
        advice=advice(run, parts, limit),
        steps=steps,
        executions=executions,
    )


def _limit(seconds: Mapping[str, float]) -> str:
    """Returns the largest part that can be avoided, unless all of them are small."""
    wall = sum(seconds.values())
    if wall <= 0:
        return ""
    large = [
        name
        for name in PARTS
        if name != "compute"
        and seconds[name] >= LIMITING * wall
        # Every step needs some work of the host.
        and (name != "other" or seconds[name] > seconds["compute"])
    ]
    return max(large, key=lambda name: seconds[name], default="compute")
