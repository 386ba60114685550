"""Traces: the times of tasks, updates and host activities in a few executions of a loop.

group 0   F0 F1 F2 F3 B0 ...   U       tasks: forward, backward, the update
infeed    [block 3   ]                 activities beside the device groups
host      [dispatch][wait]
"""

from dataclasses import dataclass

from rich.console import Console

from millrace.base.records.printable import printable
from millrace.base.records.table_text import TableRecord
from millrace.base.records.timeline import Span, Timeline


@dataclass(frozen=True, slots=True)
class ActivitySpan:
    """Something that a row of a trace did, which is not a task of a schedule."""

    row: str  # "host", "infeed", "outfeed", "compile", or "group 0"
    name: str  # such as "block 3", "update", "wait for data"
    start: float  # seconds since the trace began
    end: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExecutionTrace(TableRecord):
    """The tasks and activities of one update of a pipeline, or of one execution of a whole model.

    Each process writes those of its own devices. Those of one update have the same `loop` and
    `update`, and belong together. It prints as a drawing of its tasks.
    """

    model: str  # its name
    mode: str  # "train", "test" or "predict"
    loop: int  # number of the loop, as in `LoopRecord`
    epoch: int  # from 1; 0 if it is not known
    update: int  # of the loop, from 0; for evaluation, the micro-batch
    updates: int = 1  # that the spans belong to
    began: float  # seconds since 1970; spans count from here
    num_groups: int  # of all processes
    process: int = 0
    schedule: str = ""  # its name; empty for a model in one piece
    levels: tuple[int, ...] = ()  # of each stage, where several run at the same time
    spans: tuple[Span, ...] = ()  # tasks
    activities: tuple[ActivitySpan, ...] = ()

    @property
    def timeline(self) -> Timeline:
        """The tasks alone, in seconds since the trace began."""
        return Timeline(self.spans, self.num_groups)

    @property
    def seconds(self) -> float:
        """From the begin to the end of the last task; of a model in one piece, of the last call."""
        return self.timeline.end or max(
            (each.end for each in self.activities if each.row.startswith("group ")), default=0.0
        )

    def _print(self, console: Console) -> None:
        loop = {"train": "fit", "test": "evaluate"}.get(self.mode, self.mode)
        what = f"micro-batches {self.update:,} to {self.update + self.updates - 1:,}"
        if self.mode == "train":
            what = f"update {self.update:,}"
        schedule = f", {self.schedule}" if self.schedule else ""
        title = printable(f"{self.model}: {what} of {loop} {self.loop}{schedule}")
        timeline, times = self.timeline, f"{1e3 * self.seconds:.4g} ms"
        if self.spans:
            times = f"bubble {timeline.bubble:.1%} of {times}"
        else:  # a model in one piece: its calls are the tasks of one stage
            calls = [each for each in self.activities if each.row == "group 0"]
            spans = (Span(0, "F", k, 0, each.start, each.end) for k, each in enumerate(calls))
            title, timeline = f"{title}, its calls", Timeline(tuple(spans), 1)
        console.print(title, markup=False, soft_wrap=True)
        console.print(timeline.painted(console.width), soft_wrap=True)
        console.print(times)
