"""How many steps an execution has: of all replicas, truncated to the epoch, in whole updates.

steps_per_execution               -> a total over replicas, as in release 2.4
steps of an update                -> gradient_accumulation_steps_per_replica x replicas
steps of inference                -> a multiple of replicas; of pipelines, see `length_rule`
"""

import logging

from millrace.errors import DataError, PlanError
from millrace.ipu.keras.extensions.settings import Settings
from millrace.ipu.ops.length_rule import check_length
from millrace.plan import Mode
from millrace.strategy.checks import factors
from millrace.strategy.controller import Controller

logger = logging.getLogger("millrace")


def steps_of_execution(controller: Controller, mode: Mode, given: int, steps: int) -> int:
    """Returns the steps of a full execution.

    Args:
        controller: of the model.
        mode: of the loop.
        given: `steps_per_execution`, as compiled.
        steps: of the epoch.

    Raises:
        PlanError: if replicas or updates do not divide an execution.
        DataError: if executions do not divide the epoch.
    """
    replicas, found = controller.replicas, min(given, steps)
    what = f"steps_per_execution={given}"
    if found < given:
        what += f", truncated to the {found} steps of the epoch,"
    rule = f"a multiple of the number of replicas, {replicas}"
    window = replicas
    if mode is Mode.TRAIN and controller.accumulation.steps > 1:
        window, (names, numbers) = controller.window(mode), factors(controller.accumulation)
        rule = f"a multiple of {names} x replicas = {numbers} x {replicas} = {window}"
    steps_name = "steps_per_epoch" if mode is Mode.TRAIN else "steps"  # the loop's argument
    if found % window:
        name = f"{f'{steps_name} and ' if found < given else ''}steps_per_execution"
        raise PlanError(
            f"{what} of {controller.model.name!r} must be {rule}. Set {name} to "
            f"{-(-found // window) * window}."
        )
    if steps % found:
        raise DataError(
            f"The epoch has {steps} steps, which are not a multiple of {what} of "
            f"{controller.model.name!r}. Set {steps_name} to "
            f"{steps - steps % found}, or steps_per_execution to a divisor of {steps}."
        )
    return found


def check_inference_length(controller: Controller, settings: Settings, found: int) -> None:
    """Checks what a pipeline of evaluate or predict runs at once.

    Raises:
        PlanError: naming the numbers.
    """
    assignment = controller.stages.assignment()
    if assignment is not None:
        mapping = controller.options.pipelining.devices_of(assignment.num_stages)
        check_length(settings.schedule, mapping, found // controller.replicas, training=False)


def log_update(controller: Controller, found: int, steps: int, rows: int | None) -> None:
    """Logs what one update is made of.

    Args:
        controller: of the model.
        found: steps of an execution.
        steps: of an epoch.
        rows: of a batch; None if nobody knows.
    """
    window, model = controller.window(Mode.TRAIN), controller.model
    if found == controller.replicas > 1:
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
            controller.accumulation.steps,
            controller.replicas,
            window,
            f", an effective batch size of {rows * window}" if rows else "",
            controller.accumulation.reduction.value,
            found // window,
            steps // window,
        )
