"""The wall time of one loop, divided into parts by all records about it.

    |compile|planning|data| rest: executions, and the time before and between them |
                          |other|transfer|bubble|compute|    by the traced updates, where they are

A loop that still runs, or whose process was killed, lasts until the last record about it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millrace.base.records.loops import ExecutionSample, LoopRecord
from millrace.base.records.run import RunRecords
from millrace.base.records.trace import ExecutionTrace
from millrace.tools.reports.seen import as_seen
from millrace.tools.reports.trace_shares import TraceShares, trace_shares

_FEW_CALLS = 3  # traced ones, of which the longest says too little of all others
PARTS = ("compile", "planning", "data", "bubble", "transfer", "compute", "other")


@dataclass(frozen=True, slots=True)
class LoopParts:
    """The seconds of one loop."""

    loop: LoopRecord
    seconds: Mapping[str, float]  # of each of `PARTS`
    steps: int
    executions: int
    update: TraceShares | None = None  # of its traced update of median length

    @property
    def wall_seconds(self) -> float:
        return sum(self.seconds.values())


def parts_of_loops(run: RunRecords) -> list[LoopParts]:
    """Returns the parts of all loops of a run, but of those within another one."""
    return [_parts(run, loop) for loop in _outermost([as_seen(run, each) for each in run.loops])]


def lost_text(parts: Sequence[LoopParts], *names: str) -> str:
    """Returns seconds and share of some parts: "3.20 of 8.00 s (40 %)"."""
    processes = len({each.loop.process for each in parts})
    lost = sum(each.seconds[name] for each in parts for name in names) / processes
    wall = sum(each.wall_seconds for each in parts) / processes
    return f"{lost:.2f} of {wall:.2f} s ({100 * lost / wall:.0f} %)"


def _outermost(loops: Sequence[LoopRecord]) -> list[LoopRecord]:
    """Leaves out `evaluate` and `predict` within another loop, such as in a callback."""
    return [loop for loop in loops if not any(_contains(other, loop) for other in loops)]


def _contains(outer: LoopRecord, loop: LoopRecord) -> bool:
    if loop.mode not in ("test", "predict") or outer.process != loop.process:
        return False
    goes_on = outer.outcome == "running" or loop.ended <= outer.ended
    return outer.number < loop.number and outer.began <= loop.began <= outer.ended and goes_on


def _parts(run: RunRecords, loop: LoopRecord) -> LoopParts:
    samples = [
        each
        for each in run.executions
        if (each.loop, each.process) == (loop.number, loop.process)
        and loop.began <= each.began <= loop.ended
    ]
    wall = loop.seconds
    compiling = min(loop.compile_seconds, wall)
    planning = min(loop.planning_seconds, compiling)
    waiting = min(max(loop.wait_seconds, 0.0), wall - compiling)
    rest = wall - compiling - waiting
    steps = loop.steps or sum(each.steps for each in samples)
    executions = loop.executions or sum(each.executions for each in samples)
    modes = _modes(loop, samples, rest, steps)
    scale = min(rest / total, 1.0) if (total := sum(each for each, _ in modes.values())) else 0.0
    seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    by_mode = {mode: _median_shares(run, loop, mode) for mode in {*modes, loop.mode}}
    for mode, (running, steps_of_mode) in modes.items():
        within = running * scale
        shares = by_mode[mode]
        if shares is None:
            transfer = _exchange_share(run, loop, mode) * within
            seconds["transfer"] += transfer
            seconds["compute"] += within - transfer
            continue
        replicas = max(loop.replicas, 1) if shares.is_pipelined else 1
        traced = steps_of_mode / (shares.steps * replicas) * shares.seconds
        within = min(within, traced) if steps_of_mode else within
        exchange = 0.0 if shares.is_pipelined else _exchange_share(run, loop, mode)
        seconds["bubble"] += shares.bubble * within
        seconds["transfer"] += (shares.transfer + exchange) * within
        seconds["compute"] += (shares.compute - exchange) * within
    seconds |= {"compile": compiling - planning, "planning": planning, "data": waiting}
    seconds["other"] = max(wall - sum(seconds.values()), 0.0)
    return LoopParts(loop, seconds, steps, executions, by_mode[loop.mode])


def _modes(
    loop: LoopRecord, samples: Iterable[ExecutionSample], rest: float, steps: int
) -> dict[str, tuple[float, int]]:
    """Returns the seconds and the steps of executions, by mode: fit may evaluate, too."""
    modes: dict[str, tuple[float, int]] = {}
    for each in samples:
        seconds, counted = modes.get(each.mode, (0.0, 0))
        seconds += max(each.seconds - each.compile_seconds - each.wait_seconds, 0.0)
        modes[each.mode] = seconds, counted + each.steps
    return modes or {loop.mode: (rest, steps)}


def _median_shares(run: RunRecords, loop: LoopRecord, mode: str) -> TraceShares | None:
    """Returns the shares of the traced update of median length: of this loop, or one like it."""
    traces = traces_of(run, loop, mode)
    shares = [each for trace in traces if (each := trace_shares(trace)) is not None]
    shares.sort(key=lambda each: each.seconds / each.steps)
    if shares and not shares[0].is_pipelined:
        # A call that is short may be over before its begin is seen: the longest one is nearest.
        return shares[-1] if len(shares) >= _FEW_CALLS else None
    return shares[len(shares) // 2] if shares else None


def traces_of(run: RunRecords, loop: LoopRecord, mode: str) -> list[ExecutionTrace]:
    """Returns the traces of a loop; without any, those of other loops of its model."""
    traces = [trace for trace in run.traces if (trace.model, trace.mode) == (loop.model, mode)]
    return [trace for trace in traces if trace.loop == loop.number] or traces


def _exchange_share(run: RunRecords, loop: LoopRecord, mode: str) -> float:
    """Returns the share of exchange between replicas in the time of traced operations."""
    seconds = {True: 0.0, False: 0.0}
    for program in run.operations:
        if program.model == loop.model and program.program.startswith(mode):
            for group in program.groups:
                seconds[group.role == "transfer"] += group.seconds or 0.0
    return seconds[True] / total if (total := sum(seconds.values())) else 0.0
