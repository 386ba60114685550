"""The traces of a run, as a page shows them: tasks, activities, and times as whole ticks."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from millrace.base.records.run import RunRecords
from millrace.base.records.timeline import PASS_STYLES, Span, Timeline
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.tools.reports.bubble import IdleSlot, idle_slots
from millrace.tools.reports.columns import Columns
from millrace.tools.reports.shortened import fields_of, shortened
from millrace.tools.reports.twin import simulated_twin

SPANS = 130_000  # on a page, of all its traces: what 5 MB hold
TRACES = 60
_MICRO_BATCH = re.compile(r"(?<=micro-batch )(\d+)")
_TICKS = 2**28  # of a trace: one of 10 s has ticks of 37 ns


TimedSpan = TypeVar("TimedSpan", Span, ActivitySpan, IdleSlot)


class Clock:
    """Seconds as whole ticks, of a nanosecond or more.

    Spans are kept in the order of their starts: the ticks from start to start, and the length of
    each. These are small numbers, which take half the bytes of moments.
    """

    def __init__(self, spans: Sequence[Span | ActivitySpan | IdleSlot]):
        # Below 0 for what began before the trace.
        self.first = min([0.0, *(span.start for span in spans)])
        self.last = max([span.end for span in spans], default=0.0)
        self.tick = max((self.last - self.first) / _TICKS, 1e-9)

    def times(
        self, spans: Sequence[Span | ActivitySpan | IdleSlot], columns: Columns
    ) -> dict[str, object]:
        """Returns the times of spans that are in order."""
        starts = self._ticks(span.start for span in spans)
        ends = self._ticks(span.end for span in spans)
        return {
            "gap": columns.counts(np.diff(starts, prepend=0)),
            "length": columns.counts(ends - starts),
        }

    def _ticks(self, times: Iterable[float]) -> np.ndarray:
        return np.rint((np.fromiter(times, np.float64) - self.first) / self.tick).astype(np.int64)


def traces_data(run: RunRecords, columns: Columns) -> dict[str, object]:
    """Returns the traces that a page has space for: that of median length, and the latest."""
    chosen = _chosen(run)
    median = run.trace
    typical = next((number for number, each in enumerate(chosen) if each is median), 0)
    return {
        "traces": [_trace(each, columns) for each in chosen],
        "typical": typical,
        "in_all": len(run.traces),
    }


def _chosen(run: RunRecords) -> list[ExecutionTrace]:
    space, chosen = SPANS, []
    typical = run.trace
    others = [each for each in reversed(run.traces) if each is not typical]
    for each in [typical, *others] if typical is not None else []:
        size = len(each.spans) + len(each.activities)
        if len(chosen) < TRACES and (not chosen or size <= space):
            chosen.append(each)
            space -= size
    order = {id(each): number for number, each in enumerate(run.traces)}
    return sorted(chosen, key=lambda each: order[id(each)])


def _trace(trace: ExecutionTrace, columns: Columns) -> dict[str, object]:
    spans, activities = _in_order(trace.spans), _in_order(trace.activities)
    clock = Clock([*spans, *activities])
    timeline = Timeline(tuple(spans), trace.num_groups)
    return {
        **fields_of(trace, "model", "mode", "loop", "epoch", "update", "updates", "process"),
        **fields_of(trace, "schedule"),
        "began": trace.began if math.isfinite(trace.began) else None,
        "groups": trace.num_groups,
        "first": clock.first,
        "last": clock.last,
        "tick": clock.tick,
        "end": timeline.end,
        "bubble": _bubble(timeline),
        "stage_per_group": timeline.has_stage_per_group,
        "left_out": len(trace.spans) + len(trace.activities) - len(spans) - len(activities),
        "tasks": _tasks(spans, clock, columns),
        "activities": _activities(activities, clock, columns),
        **_explained(trace, timeline, clock, columns),
    }


def _explained(
    trace: ExecutionTrace, timeline: Timeline, clock: Clock, columns: Columns
) -> dict[str, object]:
    """Returns the simulated twin of a trace, and the reasons of its idle time.

    Both need a trace as a pipeline leaves it: all of its tasks, with passes and groups that exist.
    """
    groups = range(timeline.num_groups)
    is_whole = bool(timeline.spans) and len(timeline.spans) == len(trace.spans)
    if not is_whole or any(s.kind not in PASS_STYLES or s.group not in groups for s in trace.spans):
        return {"twin": None, "idle": None}
    twin = simulated_twin(trace)
    return {
        "twin": _twin(twin, clock, columns) if twin is not None else None,
        "idle": _idle(_in_order(idle_slots(timeline)), clock, columns),
    }


def _twin(twin: Timeline, clock: Clock, columns: Columns) -> dict[str, object]:
    spans = _in_order(twin.spans)
    return {**_tasks(spans, clock, columns), "end": twin.end, "bubble": twin.bubble}


def _idle(slots: Sequence[IdleSlot], clock: Clock, columns: Columns) -> dict[str, object]:
    """Returns idle time. Reasons differ mostly by a micro-batch, whose number is a column."""
    parts = [_MICRO_BATCH.split(slot.reason, 1) for slot in slots]
    texts = [f"{part[0]}#{part[2]}" if len(part) == 3 else part[0] for part in parts]
    number = {text: k for k, text in enumerate(dict.fromkeys(texts))}
    return {
        **clock.times(slots, columns),
        "group": columns.counts(slot.group for slot in slots),
        "reason": columns.counts(number[text] for text in texts),
        "micro_batch": columns.counts(int(part[1]) if len(part) == 3 else 0 for part in parts),
        "reasons": columns.texts(list(number)),
    }


def _in_order(spans: Sequence[TimedSpan]) -> list[TimedSpan]:
    """Returns the spans with times that are finite and in order, by start."""
    starts = np.fromiter((span.start for span in spans), np.float64, len(spans))
    ends = np.fromiter((span.end for span in spans), np.float64, len(spans))
    drawable = np.flatnonzero(np.isfinite(starts) & np.isfinite(ends) & (ends >= starts))
    order = drawable[np.argsort(starts[drawable], kind="stable")]
    return [spans[number] for number in order[:SPANS].tolist()]


def _bubble(timeline: Timeline) -> float | None:
    in_groups = all(0 <= span.group < timeline.num_groups for span in timeline.spans)
    return timeline.bubble if timeline.spans and in_groups else None


def _tasks(spans: Sequence[Span], clock: Clock, columns: Columns) -> dict[str, object]:
    kinds = list(dict.fromkeys(span.kind for span in spans))
    return {
        **clock.times(spans, columns),
        "group": columns.counts(span.group for span in spans),
        "stage": columns.counts(span.stage for span in spans),
        "micro_batch": columns.counts(span.micro_batch for span in spans),
        "kind": columns.counts(kinds.index(span.kind) for span in spans),
        "kinds": kinds,
    }


def _activities(
    spans: Sequence[ActivitySpan], clock: Clock, columns: Columns
) -> list[dict[str, object]]:
    rows: dict[str, list[ActivitySpan]] = {}
    for span in spans:
        rows.setdefault(span.row, []).append(span)
    return [_row(name, spans, clock, columns) for name, spans in rows.items()]


def _row(
    row: str, spans: Sequence[ActivitySpan], clock: Clock, columns: Columns
) -> dict[str, object]:
    names = {name: number for number, name in enumerate(dict.fromkeys(s.name for s in spans))}
    return {
        "row": shortened(row),
        **clock.times(spans, columns),
        "name": columns.counts(names[span.name] for span in spans),
        "names": columns.texts([shortened(name) for name in names]),
    }
