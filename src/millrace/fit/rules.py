"""What a loop asks before it runs. A package with other rules sets `Controller.rules`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.fit.checks import check_data, check_steps, log_replicas
from millrace.fit.stages import groups_needed
from millrace.plan import Mode

if TYPE_CHECKING:
    from millrace.fit.controller import Controller


class Rules:
    """The rules of millrace."""

    runs_uncompiled = True  # whether Keras's own loop may run models that are not to be compiled

    def devices_of_replica(self, stages: int, mapping: Sequence[int], number: int) -> int:
        """Returns how many devices one replica of a pipeline takes up.

        Args:
            stages: their number.
            mapping: the device of each within a replica.
            number: of devices of the strategy.

        Raises:
            PlanError: if they do not fit together.
        """
        return groups_needed(stages, mapping, number)

    def check(self, controller: "Controller", mode: Mode) -> None:
        """Refuses more than every model is refused for, before anything is compiled."""

    def check_data(
        self, controller: "Controller", mode: Mode, adapter: Any, arguments: Mapping[str, Any]
    ) -> None:
        """Refuses data that cannot be fed.

        Args:
            controller: of the model.
            mode: of the loop.
            adapter: Keras's, of the data.
            arguments: of Keras's epoch iterator.
        """
        check_data(adapter, arguments.get("steps_per_epoch") or adapter.num_batches, mode)

    def steps_of_execution(
        self,
        controller: "Controller",
        mode: Mode,
        steps_per_execution: int,
        steps: int | None,
        rows: int | None,
    ) -> int:
        """Returns the steps of a full execution.

        Args:
            controller: of the model.
            mode: of the loop.
            steps_per_execution: as compiled.
            steps: of the epoch; None if nobody knows.
            rows: of one batch; None if nobody knows.

        Raises:
            PlanError: if executions and updates do not fit together.
        """
        replicas, accumulation = controller.replicas, controller.accumulation
        found = check_steps(accumulation, mode, steps_per_execution, steps, replicas)
        if mode is Mode.TRAIN and replicas > 1:
            log_replicas(controller.model.name, replicas, accumulation, rows)
        return found
