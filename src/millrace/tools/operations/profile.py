"""The times of operations, from what JAX's profiler has recorded.

    plane /host:CPU        a line for each thread; events with `hlo_op`, `hlo_module`, `run_id`
    plane /device:GPU:0    a line "XLA Ops", or one for each stream; the same

A loop's event lasts as long as those of its body, so its own time is what these leave of it. The
lines of GPUs are read as XLA's sources describe them, and were not tried on one.
"""

import pathlib
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jax.profiler import ProfileData

_CONTAINER = re.compile(r"(while|call|conditional|async)\b")
_OPERATIONS = "XLA Ops"
_OTHER_LINES = ("XLA Modules", "Steps", "XLA TraceMe", "Framework Ops", "Source code")


@dataclass(frozen=True, slots=True)
class _Event:
    name: str
    run: object
    begin: float  # nanoseconds
    end: float


@dataclass(slots=True)
class ProgramTimes:
    """The operations of one executable in a profile."""

    module: str  # the name of XLA's module
    program: int  # the profiler's number
    seconds: dict[str, float] = field(
        default_factory=dict[str, float]
    )  # by operation, of all calls
    calls: int = 0
    call_seconds: float = 0.0  # from the begin of each call to its end


def newest_profile(directory: pathlib.Path) -> pathlib.Path | None:
    """Returns the file that the profiler wrote last below a directory."""
    files = list(directory.glob("plugins/profile/*/*.xplane.pb"))
    return max(files, key=lambda file: file.stat().st_mtime_ns, default=None)


def read_times(path: pathlib.Path) -> list[ProgramTimes]:
    """Returns the times in a profile, by executable, in the order of their numbers."""
    with warnings.catch_warnings():
        # Of jax 0.12: `event_stats` of ProfileData "has no __module__ attribute".
        warnings.simplefilter("ignore", DeprecationWarning)
        return times_of(ProfileData.from_file(str(path)).planes)


def times_of(planes: Iterable[Any]) -> list[ProgramTimes]:
    """Returns the times in the planes of a profile, by executable."""
    events: dict[tuple[str, int], list[_Event]] = {}
    for plane in planes:
        for event, stats in _operation_events(plane):
            key = str(stats.get("hlo_module", "")), int(stats.get("program_id", 0))
            run = (plane.name, stats.get("run_id", stats.get("group_id", 0)))
            end = event.start_ns + event.duration_ns
            found = _Event(str(stats["hlo_op"]), run, event.start_ns, end)
            events.setdefault(key, []).append(found)
    return [_times(*key, events[key]) for key in sorted(events)]


def _operation_events(plane: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    lines = [line for line in plane.lines if line.name not in _OTHER_LINES]
    # The same operations are on lines of streams, too.
    for line in [line for line in lines if line.name == _OPERATIONS] or lines:
        for event in line.events:
            stats = {key: value for key, value in event.stats if key is not None}
            if line.name == _OPERATIONS:
                stats.setdefault("hlo_op", event.name)
            if "hlo_op" in stats:
                yield event, stats


def _times(module: str, program: int, events: list[_Event]) -> ProgramTimes:
    times = ProgramTimes(module, program)
    by_run: dict[object, list[_Event]] = {}
    for event in events:
        by_run.setdefault(event.run, []).append(event)
    for of_run in by_run.values():
        of_run.sort(key=lambda event: (event.begin, -event.end))
        times.calls += 1
        times.call_seconds += (max(e.end for e in of_run) - of_run[0].begin) / 1e9
        for number, event in enumerate(of_run):
            own = event.end - event.begin
            if _CONTAINER.match(event.name):
                own -= _covered(event, of_run[number + 1 :])
            times.seconds[event.name] = times.seconds.get(event.name, 0.0) + own / 1e9
    return times


def _covered(container: _Event, later: Iterable[_Event]) -> float:
    """Returns the time in a container during which operations of its body run, in any thread."""
    covered, until = 0.0, container.begin
    for event in later:  # in the order of their begin
        if event.begin >= container.end:
            break
        begin, end = max(event.begin, until), min(event.end, container.end)
        if end > begin:
            covered, until = covered + end - begin, end
    return covered
