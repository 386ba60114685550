"""A loop as its last records show it: one that runs, or whose process was killed, has no end."""

from dataclasses import replace

from millrace.base.records.loops import LoopRecord
from millrace.base.records.run import RunRecords

_LATEST = 1e11  # seconds since 1970: the year 5138


def as_seen(run: RunRecords, loop: LoopRecord) -> LoopRecord:
    """Returns a loop with an end: its own, or the last record about it, with the counts so far."""
    if loop.ended:
        return loop
    starts = (each.began for each in run.processes if each.process == loop.process)
    # Later records are of another start of the program; others are damaged.
    until = min((began for began in starts if began > loop.began), default=_LATEST)

    def is_own(record: object, moment: float) -> bool:
        of = getattr(record, "loop", None), getattr(record, "process", None)
        return of == (loop.number, loop.process) and loop.began <= moment <= until

    samples = [each for each in run.executions if is_own(each, each.began)]
    epochs = [each.ended for each in run.epochs if is_own(each, each.ended)]
    feeds = [each.time for each in run.feeds if is_own(each, each.time)]
    # The compile log does not say whose compilations these were.
    is_alone = len({each.process for each in run.loops}) == 1
    compiled = [
        each
        for each in run.compilations
        if is_alone and each.is_executable and loop.began <= each.began <= until
    ]
    times = [each.began + each.seconds for each in (*samples, *compiled)]
    return replace(
        loop,
        ended=max(each for each in (loop.began, *times, *epochs, *feeds) if each <= until),
        executions=max(loop.executions, sum(each.executions for each in samples)),
        steps=max(loop.steps, sum(each.steps for each in samples)),
        epochs=max(loop.epochs, len(epochs)),
        compile_seconds=max(
            loop.compile_seconds,
            sum(each.compile_seconds for each in samples),
            sum(each.seconds for each in compiled),
        ),
        wait_seconds=sum(each.wait_seconds for each in samples),
    )


def last_seen(run: RunRecords) -> float:
    """Returns when the last record of a loop was made, in seconds since 1970; 0 without a loop."""
    return max((as_seen(run, loop).ended for loop in run.loops), default=0.0)
