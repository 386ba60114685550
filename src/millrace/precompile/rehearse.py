"""What a loop would run on batches that are described."""

from dataclasses import dataclass
from typing import Any

import jax

from millrace.compiled_loop.protocol import DryRun, ExecutionSteps, Runner
from millrace.feeds.block import Block, BlockSlice
from millrace.fit.checks import check_steps, shortened_to_stop
from millrace.fit.controller import Controller
from millrace.fit.setup import Setup
from millrace.plan import ROLES, BatchSpec, Mode
from millrace.steps.state import State, Values


@dataclass(frozen=True, slots=True)
class Batches:
    """What a loop is given."""

    spec: BatchSpec  # of one micro-batch
    per_execution: int  # steps, as given to compile()
    per_epoch: int | None = None  # steps; None is not known


def rehearse(controller: Controller, runner: Runner, mode: Mode, batches: Batches) -> None:
    """Compiles what a loop over such batches runs, for the runner to have it."""
    execution = described_execution(controller, mode, batches)
    # Calls that return what each step gives have room for as many steps from now on.
    runner.extend_records(execution.longest)
    dry_run_of(controller, runner, batches).compile(state_specs(controller.model, mode), execution)


def dry_run_of(controller: Controller, runner: Runner, batches: Batches) -> DryRun[Any]:
    """Returns the dry run of a runner.

    A change that is being tried may have executions of other lengths than the model has now.
    """
    return runner.dry_run(single_steps=batches.per_execution == controller.setup.replicas == 1)


def described_execution(controller: Controller, mode: Mode, batches: Batches) -> ExecutionSteps:
    """Returns a full execution of a loop over such batches.

    Raises:
        PlanError: if an update would begin in one execution and end in another.
    """
    setup = controller.setup
    steps = steps_of_execution(setup, mode, batches)
    shape = controller.feeds.block_shape(setup, mode, steps)
    # Arrays that are kept on the device are cut into blocks of an epoch, not of an execution.
    capacity = shape.capacity(batches.spec, batches.per_epoch or steps)
    slices = [
        BlockSlice(Block(None, batches.spec, capacity, count), 0, count)
        for begin in range(0, steps, capacity)
        for count in [min(capacity, steps - begin)]
    ]
    return ExecutionSteps(slices, steps)


def steps_of_execution(setup: Setup, mode: Mode, batches: Batches) -> int:
    """Returns how many steps the loop would run in one execution.

    Raises:
        PlanError: if an update would begin in one execution and end in another.
    """
    given = (batches.per_execution, batches.per_epoch, setup.replicas)
    steps = check_steps(setup.accumulation, mode, *given)
    if mode is not Mode.TRAIN:
        return steps
    return shortened_to_stop(steps, setup.options.stop_within, setup.update_steps(mode))


def state_specs(model: Any, mode: Mode) -> State:
    """Returns the specs of what Keras passes to a function of this mode."""
    groups = {
        "trainable": model.trainable_variables,
        "non_trainable": model.non_trainable_variables,
        "optimizer": model.optimizer.variables if mode is Mode.TRAIN else (),
        "metric": model.metrics_variables,
    }
    return tuple(
        Values(jax.ShapeDtypeStruct(tuple(v.shape), v.dtype) for v in groups[role])
        for role in ROLES[mode]
    )
