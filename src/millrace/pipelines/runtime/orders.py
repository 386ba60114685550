"""The order in which the tasks of an update are dispatched, by its number of micro-batches."""

from collections.abc import Callable, Iterable, Sequence

from millrace.devices import DeviceGroup
from millrace.pipelines.programs.stage import Value
from millrace.schedules.rendezvous import check_rendezvous, events, walk
from millrace.schedules.simulate import merged
from millrace.schedules.task import Schedule, Task


class Orders:
    """Makes the schedules of one pipeline, and merges each into one order."""

    def __init__(self, make_schedule: Callable[[int], Schedule], groups: Sequence[DeviceGroup]):
        """Makes none yet.

        Args:
            make_schedule: returns the schedule of an update of so many micro-batches.
            groups: of each stage.
        """
        self._make_schedule, self._groups = make_schedule, groups
        self._found: dict[int, tuple[Schedule, tuple[Task, ...]]] = {}

    def of(
        self, num_micro_batches: int, values: Iterable[Value]
    ) -> tuple[Schedule, tuple[Task, ...]]:
        """Returns the schedule of an update, and its tasks in the order of their dispatch.

        Args:
            num_micro_batches: of the update.
            values: what passes between the stages.
        """
        if num_micro_batches not in self._found:
            schedule = self._make_schedule(num_micro_batches)
            self._check_processes(schedule, values)
            self._found[num_micro_batches] = schedule, merged(schedule)
        return self._found[num_micro_batches]

    def _check_processes(self, schedule: Schedule, values: Iterable[Value]) -> None:
        """Proves that no process of several waits for ever; all of them walk one order."""
        groups = [self._groups[tasks[0].stage] for tasks in schedule]
        if all(group.is_local for group in groups):
            return
        owners = [{device.process_index for device in group.devices} for group in groups]
        links = {(value.producer, stage) for value in values for stage in value.consumers}
        check_rendezvous(schedule, owners, events(schedule, owners, walk(schedule, links)))
