"""The memory of a training as it would be without recomputation, beside that with it.

Its programs are compiled for this, and never run. Nothing does so unless the user has asked.
"""

import logging
from dataclasses import replace

from millrace.compiled_loop.protocol import ExecutionSteps
from millrace.compiling.log import NewExecutable
from millrace.feeds.block import Block, BlockSlice
from millrace.fit.controller import Controller
from millrace.fit.functions import LoopFunction
from millrace.options import Recomputation
from millrace.plan import Mode, Plan
from millrace.precompile.precompile import Batches, described_execution, dry_run_of, state_specs
from millrace.recording.programs import ProgramRecorder

logger = logging.getLogger("millrace")


def record_without_recomputation(controller: Controller) -> bool:
    """Writes the memory of a model's training without recomputation.

    The programs are those of the last training with it: of the same batches, in loops of the same
    length. A failure is logged.

    Args:
        controller: of the model, whose records are being written.

    Returns:
        Whether anything was written; not so where nothing is recomputed, or a budget has tried it.
    """
    log, sinks = controller.totals.compile_log, controller.totals.sinks
    recorders = [each for each in log.observers if isinstance(each, ProgramRecorder)]
    plans = [plan for each in recorders if (plan := each.recomputing.get(controller.model))]
    budget = controller.setup.options.recomputation.budget
    if not plans or not sinks or budget is not None:
        return False
    try:
        _compile(controller, plans[0], ProgramRecorder(sinks))
    except Exception as error:  # of any kind: training is worth more than its records
        logger.warning(
            "The memory of %r without recomputation is not recorded: %s",
            controller.model.name, error, exc_info=True,
        )  # fmt: skip
        return False
    return True


def _compile(controller: Controller, plan: Plan, recorder: ProgramRecorder) -> None:
    options = replace(controller.setup.options, recomputation=Recomputation())
    variant = controller.variant(options)

    def record(new: NewExecutable) -> None:
        recorder(replace(new, is_trial=True))

    variant.totals.compile_log.observers.append(record)
    batches = Batches(plan.batch, controller.setup.steps_per_execution(Mode.TRAIN))
    execution = described_execution(variant, Mode.TRAIN, batches)
    slices = [
        BlockSlice(Block(None, plan.batch, plan.capacity, count), 0, count)
        for begin in range(0, execution.longest, plan.capacity)
        for count in [min(plan.capacity, execution.longest - begin)]
    ]
    runner = LoopFunction(variant, Mode.TRAIN).runner()
    dry_run_of(variant, runner, batches).compile(
        state_specs(variant.model, Mode.TRAIN), ExecutionSteps(slices, execution.longest)
    )
