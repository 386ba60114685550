"""Times the operations of a few executions, by JAX's profiler.

    execution   0          1               2, 3, ...        after them
                compiles   for comparison  traced           nothing

Off unless it is asked for: an execution that is traced takes up to a tenth longer, reading the
profile takes a second for some hundred thousand operations, and the profile of one takes tens of
megabytes. What an execution will record is estimated first, and one with too much is not traced.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jax

from millrace.base.records.directory import RunDirectory
from millrace.base.records.operations import ProgramOperations
from millrace.base.threads.scoped_value import Notes
from millrace.errors import OptionError
from millrace.tools.operations.groups import ProgramCount
from millrace.tools.operations.profile import ProgramTimes, newest_profile, read_times
from millrace.tools.recording.programs import ProgramRecorder

VARIABLE = "MILLRACE_REPORT_TRACE"
MOST_OPERATIONS = 200_000  # of a traced execution; about 300 bytes each
_FIRST = 2  # execution that is traced

logger = logging.getLogger("millrace")
_Counted = tuple[ProgramOperations, ProgramCount]


def traced_executions() -> int:
    """Returns how many executions of each mode to trace, as `MILLRACE_REPORT_TRACE` says.

    Raises:
        OptionError: if it is no number from 0.
    """
    given = os.environ.get(VARIABLE, "0")
    try:
        number = int(given)
    except ValueError:
        number = -1
    if number < 0:
        raise OptionError(
            f"{VARIABLE}={given!r} is not a number of executions. Set 2 to time the operations of "
            "two executions of each loop, or 0 for none."
        )
    return number


class OperationTrace:
    """Traces executions of the loops of a strategy, and writes the times of their operations."""

    def __init__(self, recorder: ProgramRecorder, records: RunDirectory, executions: int):
        """Starts nothing.

        Args:
            recorder: knows the operations of the executables.
            records: directory of the run, which gets the profiles, too.
            executions: of each mode of each model, to be traced.
        """
        self._recorder, self._records, self._wanted = recorder, records, executions
        self._seen: dict[tuple[str, str], int] = {}  # executions, by model and mode
        self._untraced: dict[tuple[str, str], tuple[int, float]] = {}  # steps, seconds
        self._sums: dict[int, list[tuple[ProgramTimes, int, float | None]]] = {}
        self._notes = Notes()
        self._begin = 0.0
        self._traces = False

    def begin(self, model: str, mode: str, steps: int, state: object) -> None:
        """Is called before an execution, which is waited for if it is timed.

        Args:
            model: its name.
            mode: "train", "test" or "predict".
            steps: of the execution.
            state: values that it begins with.
        """
        key = (model, mode)
        number = self._seen[key] = self._seen.get(key, -1) + 1
        self._begin, self._traces = 0.0, False
        if not _FIRST - 1 <= number < _FIRST + self._wanted or self._records.process:
            return
        with contextlib.suppress(Exception):  # of the execution before, which shows it itself
            jax.block_until_ready(state)
        self._traces = number >= _FIRST and self._start(model, mode, steps)
        self._begin = time.perf_counter()

    def end(self, model: str, mode: str, steps: int, results: object) -> None:
        """Is called after an execution, also one that failed, whose results are None."""
        if not self._begin:
            return
        with contextlib.suppress(Exception):  # errors of the execution have their own way
            jax.block_until_ready(results)  # else its events are lost
        seconds = time.perf_counter() - self._begin
        if not self._traces:
            self._untraced[model, mode] = (steps, seconds)
            return
        self._traces = False
        try:
            jax.profiler.stop_trace()
            path = newest_profile(self._records.path)
            if results is not None and path is not None:
                self._add(model, mode, steps, seconds, read_times(path))
        except Exception as error:
            self._say(f"The operations were not timed: {type(error).__name__}: {error}.")

    def _start(self, model: str, mode: str, steps: int) -> bool:
        counted = self._counted(model, mode)
        expected = sum(round(count.runs * steps / record.steps) for record, count in counted)
        if expected > MOST_OPERATIONS:
            per_step = max(expected // steps, 1)
            fitting = max(MOST_OPERATIONS // per_step, 1)
            self._say(
                f"An execution of {steps:,} steps of {model!r} runs about {expected:,} operations, "
                f"and is not traced: more than {MOST_OPERATIONS:,} would be recorded. Set "
                f"steps_per_execution={fitting} in model.compile() for a run with a trace."
            )
            return False
        options: Any = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = 2
        try:
            jax.profiler.start_trace(str(self._records.path), profiler_options=options)
        except Exception as error:
            self._say(f"The operations are not timed: {error}")
            return False
        return True

    def _counted(self, model: str, mode: str) -> list[_Counted]:
        return [
            each
            for counted in self._recorder.counts.values()
            for each in counted
            if each[0].model == model and each[0].program.startswith(f"{mode}_")
        ]

    def _add(
        self, model: str, mode: str, steps: int, seconds: float, profile: Iterable[ProgramTimes]
    ) -> None:
        before_steps, before = self._untraced.get((model, mode), (0, 0.0))
        overhead = seconds / before - 1 if before_steps == steps and before else None
        candidates = self._counted(model, mode)
        for times in profile:
            counted = _best(times, candidates)
            if counted is None:
                continue
            candidates.remove(counted)
            iterations = times.calls
            if counted[0].program.endswith("_run"):
                iterations = max(round(steps / counted[0].steps), 1)
            sums = self._sums.setdefault(id(counted[1]), [])
            sums.append((times, iterations, overhead))
            self._records.add(_with_times(counted, sums))

    def _say(self, line: str) -> None:
        if self._notes.is_new(line):
            logger.warning("%s The run continues.", line)


def _best(times: ProgramTimes, candidates: list[_Counted]) -> _Counted | None:
    """Returns the program whose operations have the names in a profile.

    XLA's modules are called alike; of two programs with the same operations the one that was made
    first comes first, as in the profiler's numbers.
    """
    alike = [each for each in candidates if each[1].name == times.module]
    known = {id(each): sum(name in each[1].owners for name in times.seconds) for each in alike}
    best = max(alike, key=lambda each: known[id(each)], default=None)
    return best if best is not None and 2 * known[id(best)] > len(times.seconds) else None


def _with_times(
    counted: _Counted, sums: list[tuple[ProgramTimes, int, float | None]]
) -> ProgramOperations:
    record, count = counted
    iterations = sum(number for _, number, _ in sums)
    seconds: dict[tuple[str, str, str], float] = {}
    for times, _, _ in sums:
        for name, own in times.seconds.items():
            owner = count.owners.get(name)
            key = ("other", "other", "") if owner is None else (owner.name, owner.role, owner.kind)
            seconds[key] = seconds.get(key, 0.0) + own / iterations
    groups = [
        replace(group, seconds=seconds.pop((group.owner, group.role, group.kind), 0.0))
        for group in record.groups
    ]
    rest = sum(seconds.values())  # of owners that have no counted operations, such as loops
    groups = [
        replace(group, seconds=(group.seconds or 0.0) + rest)
        if (group.owner, group.kind) == ("other", "")
        else group
        for group in groups
    ]
    overheads = [overhead for _, _, overhead in sums if overhead is not None]
    return replace(
        record,
        groups=tuple(groups),
        calls=sum(times.calls for times, _, _ in sums),
        traced_seconds=sum(times.call_seconds for times, _, _ in sums),
        overhead=sum(overheads) / len(overheads) if overheads else None,
    )
