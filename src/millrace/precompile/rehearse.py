"""Compiles what a loop would run on batches that are described, and runs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.compiled_loop.runner import ScanRunner
from millrace.feeds.block import Segment
from millrace.fit.checks import check_steps, shortened_to_stop
from millrace.fit.controller import Controller
from millrace.memory.dry_run import Call, PipelineRehearsal, ScanRehearsal, state_specs
from millrace.pipelines.runtime.runner import PipelineRunner
from millrace.plan import BatchSpec, Mode
from millrace.steps.state import State


@dataclass(frozen=True, slots=True)
class Batches:
    """What a loop is given."""

    spec: BatchSpec  # of one micro-batch
    per_execution: int  # steps, as given to compile()
    per_epoch: int | None = None  # steps; None is not known


def rehearse(
    controller: Controller, runner: ScanRunner | PipelineRunner, mode: Mode, batches: Batches
) -> None:
    """Compiles what a loop over such batches runs, for the runner to have it."""
    if isinstance(runner, PipelineRunner):
        steps_of_execution(controller, mode, batches)  # refuses what no loop could run
        PipelineRehearsal(runner).prepare(state_specs(controller.model, mode), batches.spec)
    else:
        # Calls that return what each step gives have room for as many steps from now on.
        runner.make_room(steps_of_execution(controller, mode, batches))
        rehearse_piece(controller, runner, mode, batches)


def rehearse_piece(
    controller: Controller, runner: ScanRunner, mode: Mode, batches: Batches
) -> tuple[ScanRehearsal, Sequence[Call]]:
    """Compiles what a loop of a model in one piece runs; returns the calls of one execution."""
    steps = steps_of_execution(controller, mode, batches)
    shape = controller.feeds.block_shape(controller.setup, mode, steps)
    # Arrays that are kept on the device are cut into blocks of an epoch, not of an execution.
    capacity = shape.capacity(batches.spec, batches.per_epoch or steps)
    # A change that is being tried may have executions of other lengths than the model has now.
    single_steps = batches.per_execution == controller.setup.replicas == 1
    rehearsal = ScanRehearsal(runner, single_steps)
    state = state_specs(controller.model, mode)
    return rehearsal, rehearsal.calls(state, batches.spec, capacity, steps)


def rehearsal_of(runner: ScanRunner | PipelineRunner) -> ScanRehearsal | PipelineRehearsal:
    """Returns a runner's rehearsal, which remembers what it has compiled as the runner would."""
    is_pipeline = isinstance(runner, PipelineRunner)
    return PipelineRehearsal(runner) if is_pipeline else ScanRehearsal(runner)


def rehearse_executions(
    rehearsal: ScanRehearsal | PipelineRehearsal,
    state: State,
    executions: Sequence[Sequence[Segment]],
    longest: int,
) -> None:
    """Compiles what executions run.

    Args:
        rehearsal: of the runner that would run them.
        state: specs of the state, as Keras has it.
        executions: the segments of each, whose blocks need no batches.
        longest: steps of a full execution.
    """
    if isinstance(rehearsal, PipelineRehearsal):
        specs = [segment.block.spec for execution in executions for segment in execution]
        for spec in dict.fromkeys(specs):
            rehearsal.prepare(state, spec)
        return
    for execution in executions:
        try:
            rehearsal.run(state, execution, longest)
        finally:
            rehearsal.release()


def steps_of_execution(controller: Controller, mode: Mode, batches: Batches) -> int:
    """Returns how many steps the loop would run in one execution.

    Raises:
        PlanError: if an update would begin in one execution and end in another.
    """
    given = (batches.per_execution, batches.per_epoch, controller.setup.replicas)
    steps = check_steps(controller.setup.accumulation, mode, *given)
    if mode is not Mode.TRAIN:
        return steps
    window = controller.setup.window(mode)
    return shortened_to_stop(steps, controller.setup.options.stop_within, window)
