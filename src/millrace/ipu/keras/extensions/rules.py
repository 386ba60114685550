"""The rules of IPU programs, in the place of those of millrace.

devices of a replica           -> rounded up to a power of two
data                           -> known shapes and numbers, whole batches
steps of an execution          -> whole updates, whole epochs
micro-batches of a pipeline    -> multiples of those that run at once
"""

from collections.abc import Mapping, Sequence
from typing import Any

from millrace.ipu.keras.extensions import data_checks, guards, lengths
from millrace.ipu.keras.extensions.pipeline_checks import check_pipeline
from millrace.ipu.keras.extensions.queue_options import check_queues
from millrace.ipu.keras.extensions.replica_devices import devices_of_replica
from millrace.ipu.keras.extensions.settings import Settings
from millrace.plan import Mode
from millrace.strategy.controller import Controller
from millrace.strategy.rules import Rules


class IPURules(Rules):
    """The rules of IPU programs, for one model."""

    runs_uncompiled = False

    def __init__(self) -> None:
        self.settings = Settings()
        self.epochs = 1  # of the running loop

    def devices_of_replica(self, stages: int, mapping: Sequence[int], number: int) -> int:
        """Returns a power of two; see `replica_devices`."""
        return devices_of_replica(stages, mapping, number)

    def check(self, controller: Controller, mode: Mode) -> None:
        """Refuses overrides, queue options, and pipelines that the IPU would not run.

        Raises:
            ModelError: for an override.
            OptionError: for an option.
            PlanError: for a number of micro-batches.
        """
        assignment, model = controller.stages.assignment(), controller.model
        guards.check_overrides(model, mode, assignment is not None)
        check_queues(self.settings)
        if mode is Mode.TRAIN and (assignment is not None or controller.accumulation.steps > 1):
            which = "gradient_accumulation" if assignment is None else "pipelining"
            guards.check_optimizer(model, f"set_{which}_options")
        if assignment is not None:
            check_pipeline(controller, self.settings, assignment, mode)

    def check_data(
        self, controller: Controller, mode: Mode, adapter: Any, arguments: Mapping[str, Any]
    ) -> None:
        """Refuses data; see `data_checks`."""
        epochs = self.epochs if mode is Mode.TRAIN else 1
        data_checks.check_batches(adapter, arguments, mode, epochs)

    def steps_of_execution(
        self,
        controller: Controller,
        mode: Mode,
        steps_per_execution: int,
        steps: int | None,
        rows: int | None,
    ) -> int:
        """Returns the steps of a full execution; see `lengths`."""
        if steps is None:
            return super().steps_of_execution(controller, mode, steps_per_execution, steps, rows)
        found = lengths.steps_of_execution(controller, mode, steps_per_execution, steps)
        if mode is Mode.TRAIN:
            lengths.log_update(controller, found, steps, rows)
        else:
            lengths.check_inference_length(controller, self.settings, found)
        return found
