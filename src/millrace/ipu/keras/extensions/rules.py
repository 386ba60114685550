"""The rules of IPU programs, in place of those of millrace.

devices of a replica           rounded up to a power of two: [0, 1, 2] takes 4, one of them idle
data                           known shapes and numbers, whole batches
steps_per_execution            a total over replicas, as in release 2.4; whole updates in training,
                               and whole executions in an epoch
steps of an update             gradient_accumulation_steps_per_replica x replicas
steps of inference             a multiple of replicas; of pipelines, of what runs at once
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.errors import DataError, OptionError, PlanError
from millrace.fit.checks import factors
from millrace.fit.setup import Setup
from millrace.ipu.keras.extensions.checks import (
    check_optimizer,
    check_overrides,
    check_pipeline,
)
from millrace.ipu.keras.extensions.data_checks import check_batches
from millrace.ipu.keras.extensions.native import check_queues
from millrace.ipu.keras.extensions.settings import ExtendedRules, Settings
from millrace.ipu.ops.schedules import check_length
from millrace.plan import Mode

logger = logging.getLogger("millrace")


class IPURules(ExtendedRules):
    """The rules of IPU programs, for one model."""

    runs_uncompiled = False

    def devices_of_replica(self, stages: int, mapping: Sequence[int], number: int) -> int:
        """Returns a power of two; see the function of this name."""
        return devices_of_replica(stages, mapping, number)

    def check(self, setup: Setup, mode: Mode) -> None:
        """Refuses overrides, queue options, and pipelines that the IPU would not run.

        Raises:
            ModelError: for an override.
            OptionError: for an option.
            PlanError: for a number of micro-batches.
        """
        assignment, model = setup.stages.assignment(), setup.model
        check_overrides(model, mode, assignment is not None)
        check_queues(self.settings)
        if mode is Mode.TRAIN and (assignment is not None or setup.accumulation.steps > 1):
            which = "gradient_accumulation" if assignment is None else "pipelining"
            check_optimizer(model, f"set_{which}_options")
        if assignment is not None:
            check_pipeline(setup, self.settings, assignment, mode)

    def check_data(
        self, setup: Setup, mode: Mode, adapter: Any, arguments: Mapping[str, Any]
    ) -> None:
        """Refuses data; see `check_batches`."""
        epochs = self.epochs if mode is Mode.TRAIN else 1
        check_batches(adapter, arguments, mode, epochs)

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
        found = steps_of_execution(setup, mode, steps_per_execution, steps)
        if mode is Mode.TRAIN:
            log_update(setup, found, steps, rows)
        else:
            check_inference_length(setup, self.settings, found)
        return found


def devices_of_replica(stages: int, mapping: Sequence[int], number: int) -> int:
    """Returns how many devices one replica of a pipeline takes up: a power of two.

    Args:
        stages: their number.
        mapping: the device of each within a replica.
        number: of devices of the strategy.

    Raises:
        OptionError: if the mapping is of another number of stages, or the devices are not a whole
            number of replicas.
    """
    if len(mapping) != stages:
        raise OptionError(
            f"device_mapping={list(mapping)} has {len(mapping)} entries, and the model has "
            f"{stages} pipeline stages. Give one device for each in set_pipelining_options()."
        )
    used = max(mapping) + 1
    size = 1 << (used - 1).bit_length()
    if number < size or number % size:
        raise OptionError(
            f"The pipeline takes {used} devices, and one replica {size}, a power of two. The "
            f"strategy has {number}. Set auto_select_ipus to a multiple of {size}, or let stages "
            "share devices with device_mapping in set_pipelining_options()."
        )
    return size


def steps_of_execution(setup: Setup, mode: Mode, given: int, steps: int) -> int:
    """Returns the steps of a full execution.

    Args:
        setup: of the model.
        mode: of the loop.
        given: `steps_per_execution`, as compiled.
        steps: of the epoch.

    Raises:
        PlanError: if replicas or updates do not divide an execution.
        DataError: if executions do not divide the epoch.
    """
    replicas, found = setup.replicas, min(given, steps)
    what = f"steps_per_execution={given}"
    if found < given:
        what += f", truncated to the {found} steps of the epoch,"
    rule = f"a multiple of the number of replicas, {replicas}"
    window = replicas
    if mode is Mode.TRAIN and setup.accumulation.steps > 1:
        window, (names, numbers) = setup.update_steps(mode), factors(setup.accumulation)
        rule = f"a multiple of {names} x replicas = {numbers} x {replicas} = {window}"
    steps_name = "steps_per_epoch" if mode is Mode.TRAIN else "steps"  # the loop's argument
    if found % window:
        name = f"{f'{steps_name} and ' if found < given else ''}steps_per_execution"
        raise PlanError(
            f"{what} of {setup.model.name!r} must be {rule}. Set {name} to "
            f"{-(-found // window) * window}."
        )
    if steps % found:
        raise DataError(
            f"The epoch has {steps} steps, which are not a multiple of {what} of "
            f"{setup.model.name!r}. Set {steps_name} to "
            f"{steps - steps % found}, or steps_per_execution to a divisor of {steps}."
        )
    return found


def check_inference_length(setup: Setup, settings: Settings, found: int) -> None:
    """Checks what a pipeline of evaluate or predict runs at once.

    Raises:
        PlanError: naming the numbers.
    """
    assignment = setup.stages.assignment()
    if assignment is not None:
        mapping = setup.options.pipelining.devices_of(assignment.num_stages)
        check_length(settings.schedule, mapping, found // setup.replicas, training=False)


def log_update(setup: Setup, found: int, steps: int, rows: int | None) -> None:
    """Logs what one update is made of.

    Args:
        setup: of the model.
        found: steps of an execution.
        steps: of an epoch.
        rows: of a batch; None if unknown.
    """
    window, model = setup.update_steps(Mode.TRAIN), setup.model
    if found == setup.replicas > 1:
        logger.info(
            "model %r runs one step per execution and replica. Set steps_per_execution in "
            "compile() to a larger number, for fewer round trips to Python.",
            model.name,
        )
    if window > 1:
        logger.info(
            "model %r: %d batches are accumulated x %d replicas = %d batches in a weight update%s "
            "(%s of gradients); %d weight updates in an execution, %d in an epoch.",
            model.name,
            setup.accumulation.steps,
            setup.replicas,
            window,
            f", an effective batch size of {rows * window}" if rows else "",
            setup.accumulation.reduction.value,
            found // window,
            steps // window,
        )
