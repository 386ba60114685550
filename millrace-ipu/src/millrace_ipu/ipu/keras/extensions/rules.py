"""The rules of IPU programs, where they differ from those of millrace.

devices of a replica           rounded up to a power of two: [0, 1, 2] takes 4, one of them idle
data                           known shapes and numbers of batches, whole batches
steps_per_execution            of one replica, or of all; whole updates, and a divisor of the epoch
steps of an update             gradient_accumulation_steps_per_replica x replicas
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.errors import OptionError, PlanError
from millrace.extend import DataAdapter, Mode, Setup, groups_needed
from millrace_ipu.ipu.keras.extensions.checks import (
    check_optimizer,
    check_overrides,
    check_pipeline,
)
from millrace_ipu.ipu.keras.extensions.data_checks import check_batches
from millrace_ipu.ipu.keras.extensions.execution_steps import (
    replicas_as_one,
    steps_of_epoch,
    steps_of_execution,
)
from millrace_ipu.ipu.keras.extensions.native import check_queues
from millrace_ipu.ipu.keras.extensions.settings import ExtendedRules

logger = logging.getLogger("millrace")


class IPURules(ExtendedRules):
    """The rules of IPU programs, for one model."""

    runs_uncompiled = False

    def devices_of_replica(self, stages: int, mapping: Sequence[int], number: int) -> int:
        """Returns the number of devices for one replica of a pipeline: a power of two.

        Args:
            stages: their number.
            mapping: the device of each stage within a replica.
            number: of devices of the strategy.

        Raises:
            OptionError: if the mapping has another length than the stages, or the devices are not
                a whole number of replicas.
        """
        try:
            used = groups_needed(stages, mapping, max(mapping) + 1)
        except PlanError as error:
            raise OptionError(str(error)) from None  # a ValueError, as it was on the IPU
        size = 1 << (used - 1).bit_length()
        if number < size or number % size:
            raise OptionError(
                f"The pipeline takes {used} devices, and one replica {size}, a power of two. The "
                f"strategy has {number}. Set auto_select_ipus to a multiple of {size}, or let "
                "stages share devices with device_mapping in set_pipelining_options()."
            )
        return size

    def check(self, setup: Setup, mode: Mode) -> None:
        """Refuses overrides, queue options, and pipelines that the IPU would not run.

        Raises:
            ModelError: for an override.
            OptionError: for an option.
            PlanError: for a number of micro-batches that does not fit.
        """
        assignment, model = setup.stages.assignment(), setup.model
        check_overrides(model, mode, assignment is not None)
        check_queues(self.settings)
        if mode is Mode.TRAIN and (assignment is not None or setup.accumulation.steps > 1):
            which = "gradient_accumulation" if assignment is None else "pipelining"
            check_optimizer(model, f"set_{which}_options")
        if assignment is not None:
            check_pipeline(setup, self.settings, assignment, mode)

    def arguments(self, setup: Setup, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the arguments of Keras's epoch iterator; see `instances`."""
        return arguments if self.instances is None else self.instances.arguments(setup, arguments)

    def check_data(
        self, setup: Setup, mode: Mode, adapter: DataAdapter, arguments: Mapping[str, object]
    ) -> None:
        """Refuses data of an unknown or unsuitable size; see `check_batches`."""
        check_batches(adapter, arguments, mode, self.epochs if mode is Mode.TRAIN else 1)
        if self.instances is not None:
            self.instances.check_parts(adapter)

    def check_built(self, setup: Setup) -> None:
        """Gives all processes the weights of the first, where each has its part of the data."""
        if self.instances is not None:
            self.instances.share_weights(setup.model)

    def replicas_as_one(self, setup: Setup) -> int:
        """Returns the number of replicas from release 2.5 on, and 1 before."""
        return replicas_as_one(setup)

    def steps_of_epoch(self, setup: Setup, mode: Mode, steps: int) -> int:
        """Returns the steps of an epoch; see the function of this name."""
        return steps_of_epoch(setup, mode, steps)

    def steps_of_execution(
        self,
        setup: Setup,
        mode: Mode,
        steps_per_execution: int,
        steps: int | None,
        rows: int | None,
    ) -> int:
        """Returns the steps of a full execution; see the function of this name."""
        if steps is None:
            return super().steps_of_execution(setup, mode, steps_per_execution, steps, rows)
        execution_steps = steps_of_execution(setup, self.settings, mode, steps_per_execution, steps)
        if mode is Mode.TRAIN:
            _log_update(setup, execution_steps, steps, rows)
        return execution_steps


def _log_update(setup: Setup, execution_steps: int, steps: int, rows: int | None) -> None:
    """Logs the size of one update: `rows` of a batch, None if unknown."""
    update_steps, model = setup.update_steps(Mode.TRAIN), setup.model
    if execution_steps == setup.replicas > 1:
        logger.info(
            "model %r runs one step per execution and replica. Set steps_per_execution in "
            "compile() to a larger number, for fewer round trips to Python.",
            model.name,
        )
    if update_steps > 1:
        logger.info(
            "model %r: %d batches are accumulated x %d replicas = %d batches in a weight update%s "
            "(%s of gradients); %d weight updates in an execution, %d in an epoch.",
            model.name,
            setup.accumulation.steps,
            setup.replicas,
            update_steps,
            f", an effective batch size of {rows * update_steps}" if rows else "",
            setup.accumulation.reduction.value,
            execution_steps // update_steps,
            steps // update_steps,
        )
