"""The executions of a loop, added up between two samples.

begins  begins  begins        begins  begins
|-------|-------|-------------|-------|----     seconds: until the next execution begins
 train   train   validation    train
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from millrace.base.records.compilation import CompileRecord
from millrace.base.records.loops import FeedSample, LoopRecord
from millrace.base.records.statistics import FeedStatistics
from millrace.programs.feeds.infeed import Infeed
from millrace.programs.plan import Mode


@dataclass(slots=True)
class ExecutionCounts:
    """The executions of one mode since the last sample."""

    mode: str
    epoch: int  # of the first one
    began: float  # seconds since 1970
    seconds: float = 0.0
    executions: int = 0
    steps: int = 0
    dispatch_seconds: float = 0.0


class FeedWatch:
    """The infeeds of a loop, and their work since the last sample."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenFeed] = {}
        self._work: dict[Mode, FeedStatistics] = {}  # of those that ended
        self._limits: dict[Mode, int] = {}

    def opens(self, feed: Infeed, mode: Mode) -> None:
        """Looks at an infeed from now on."""
        self._open[id(feed)] = _OpenFeed(feed, mode)
        self._limits[mode] = feed.limit

    def closes(self, feed: Infeed) -> None:
        """Looks at an infeed for the last time."""
        if (closed := self._open.pop(id(feed), None)) is not None:
            self._add(closed)

    def _add(self, watched: "_OpenFeed") -> None:
        statistics = watched.feed.statistics()
        work = statistics.since(watched.seen)
        watched.seen = statistics
        self._work[watched.mode] = self._work.get(watched.mode, FeedStatistics()) + work

    def samples(self, loop: int, process: int, epoch: int, time: float) -> list[FeedSample]:
        """Returns a sample for each mode whose infeed has worked since the last call.

        Args:
            loop: its number.
            process: number of this process.
            epoch: that is running.
            time: in seconds since 1970.
        """
        ready: dict[Mode, int] = {}
        for watched in list(self._open.values()):
            self._add(watched)
            ready[watched.mode] = watched.feed.ready
        work, self._work = self._work, {}
        return [
            FeedSample(
                loop=loop,
                process=process,
                mode=mode.value,
                epoch=epoch,
                time=time,
                depth=ready.get(mode, 0),
                limit=self._limits[mode],
                blocks=each.blocks,
                steps=each.steps,
                bytes=each.bytes,
                prepare_seconds=each.prepare_seconds,
                wait_seconds=each.wait_seconds,
            )
            for mode, each in work.items()
            if each.blocks or each.wait_seconds
        ]


@dataclass(slots=True)
class _OpenFeed:
    feed: Infeed
    mode: Mode
    seen: FeedStatistics = field(default_factory=FeedStatistics)


def compile_seconds(
    records: Iterable[CompileRecord], modes: Iterable[str], current: str
) -> Mapping[str, float]:
    """Returns the seconds of compilations by the mode of their programs.

    Args:
        records: of a model.
        modes: that have run.
        current: that which runs now; it has what belongs to none of the others.
    """
    seconds = dict.fromkeys([*modes, current], 0.0)
    for record in records:
        mode = record.program.partition("_")[0]
        seconds[mode if mode in seconds else current] += record.seconds
    return seconds


def of_loop(records: Iterable[CompileRecord], loop: LoopRecord) -> Iterator[CompileRecord]:
    """Yields the records of executables of a loop's model, or of its function."""
    for each in records:
        owner = each.program if loop.mode == "function" else each.model
        if each.is_executable and owner == loop.model:
            yield each
