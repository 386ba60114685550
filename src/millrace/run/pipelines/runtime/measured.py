"""The updates of a pipeline that leave a trace: which groups, and what ran on them before.

With stages on the device groups a, b, a the groups are numbered 0, 1, 0: by first appearance.
"""

import time
from collections.abc import Iterable, Sequence

import jax

from millrace.base.devices import DeviceGroup
from millrace.base.pytrees import ArrayTree
from millrace.run.schedules.concurrent import ConcurrentSchedule
from millrace.run.schedules.task import Pass, Schedule, Task
from millrace.run.timing.measurement import Measurement
from millrace.run.timing.tracer import TOGETHER, Tracer


class MeasuredPipeline:
    """Begins and ends the measurements of one runner, where its tracer asks for them."""

    def __init__(self, groups: Sequence[DeviceGroup], schedule: str):
        """Numbers the groups.

        Args:
            groups: of each stage.
            schedule: name of the schedule of training.
        """
        self.tracer: Tracer | None = None  # of a run without records
        self._groups = list(dict.fromkeys(groups))
        self._group_of = [self._groups.index(group) for group in groups]
        self._schedule = schedule
        self._measurement: Measurement | None = None
        self._host: tuple[str, float] | None = None  # what the host does, and since when
        self._forwards = 0  # micro-batches of evaluation in the measurement

    def update(self, schedule: Schedule, probes: Iterable[ArrayTree]) -> Measurement | None:
        """Begins an update; returns its measurement if it leaves a trace.

        Args:
            schedule: of the update.
            probes: arrays that are ready once earlier updates have ended.
        """
        tracer = self.tracer
        if tracer is None:
            return None
        self.begin_host(f"dispatch of update {tracer.update}", time.perf_counter())
        if not tracer.begin():
            return None
        levels = schedule.levels if isinstance(schedule, ConcurrentSchedule) else ()
        self._measurement = tracer.measure(
            sum(map(len, schedule)),
            len(self._groups),
            self._by_group(jax.tree.leaves(list(probes))),
            schedule=self._schedule,
            levels=levels,
        )
        return self._measurement

    def forward(self) -> Measurement | None:
        """Begins a micro-batch of evaluation; returns the measurement that it is part of."""
        tracer = self.tracer
        if tracer is None:
            return None
        is_chosen = tracer.begin()
        if self._measurement is None and is_chosen:
            self._forwards = 0
            tracer.end(1)  # the first one has no span
            self._measurement = tracer.measure(
                (TOGETHER - 1) * len(self._group_of), len(self._groups), self._by_group(())
            )
        return self._measurement

    def add(self, task: Task, begin: float) -> None:
        """Adds a task whose dispatch ends now and began at `begin`, if it is measured."""
        if self._measurement is not None:
            self._measurement.add(task, self._group_of[task.stage], begin)

    def add_forward(self, stage: int, begin: float) -> None:
        """Adds the forward of the micro-batch that runs."""
        # What ran before the first one is not known, so that only its end can be told.
        self.add(Task(stage, Pass.FORWARD, self._forwards - 1), begin)

    def end_forward(self) -> None:
        """Ends a micro-batch of evaluation."""
        if self.tracer is None:
            return
        self._forwards += 1
        if self._measurement is None:
            self.tracer.end(1)
        elif self._forwards == TOGETHER:
            self._end(TOGETHER - 1)

    def end_update(self, probes: Sequence[jax.Array], begin: float) -> None:
        """Ends an update of weights, whose dispatch ends now.

        Args:
            probes: arrays that are ready once it has run.
            begin: seconds at which its dispatch began.
        """
        if self.tracer is None:
            return
        self.end_host()
        if self._measurement is not None:
            for group, arrays in enumerate(self._by_group(probes)):
                if arrays:
                    self._measurement.ran((), arrays)
                    self._measurement.add("update", group, begin)
        self._end(1)

    def begin_host(self, name: str, begin: float) -> None:
        """Notes what the host begins to do."""
        if self.tracer is not None:
            self._host = name, begin
            self.tracer.activities.begin("host", name, begin)

    def end_host(self) -> None:
        """Notes that it has done it."""
        if self.tracer is not None and self._host is not None:
            self.tracer.activities.add("host", *self._host, time.perf_counter())

    def fail(self) -> None:
        """Ends the measurement of an update that failed."""
        self._measurement = None
        if self.tracer is not None:
            self.tracer.fail()

    def close(self) -> None:
        """Ends the measurement of a loop that has ended, and waits for it."""
        if self.tracer is not None:
            if self._measurement is not None:
                self._end(max(self._forwards - 1, 0))
            self.tracer.close()

    def _end(self, updates: int) -> None:
        self._measurement = None
        if self.tracer is not None:
            self.tracer.end(updates)

    def _by_group(self, arrays: Iterable[jax.Array]) -> list[list[jax.Array] | None]:
        """Returns the arrays on the devices of each group; None for one of another process."""
        by_group: list[list[jax.Array] | None] = [
            [] if group.local else None for group in self._groups
        ]
        for array in arrays:
            devices = array.devices()
            for group, found in zip(self._groups, by_group, strict=True):
                if found is not None and not devices.isdisjoint(group.devices):
                    found.append(array)
        return by_group
