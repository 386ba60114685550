"""Dry runs of loops: batches by their specs, and the compilation of all that a loop would run."""

from dataclasses import dataclass
from typing import Any

import jax
import keras

from millrace.compiled_loop.protocol import DryRun, ExecutionSteps, Runner
from millrace.feeds.block import Block, BlockSlice
from millrace.fit.checks import check_steps, shortened_to_stop
from millrace.fit.controller import Controller
from millrace.fit.setup import Setup
from millrace.plan import ROLES, BatchSpec, Mode
from millrace.steps.state import State, Values


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of a loop."""

    spec: BatchSpec  # of one micro-batch
    per_execution: int  # steps, as given to compile()
    per_epoch: int | None = None  # steps; None if not known


def compile_loop_programs(
    controller: Controller, runner: Runner, mode: Mode, batches: Batches
) -> None:
    """Compiles the programs of a loop over such batches; the runner keeps them."""
    execution = described_execution(controller, mode, batches)
    # From now on, calls that return the results of steps hold as many as this execution has.
    runner.extend_records(execution.longest)
    dry_run_of(controller, runner, batches).compile(state_specs(controller.model, mode), execution)


def dry_run_of(controller: Controller, runner: Runner, batches: Batches) -> DryRun[Any]:
    """Returns the dry run of a runner.

    Its executions may be longer or shorter than the model's, where a change is tried out.
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
    """Returns the number of steps of one execution.

    Raises:
        PlanError: if an update would begin in one execution and end in another.
    """
    steps = check_steps(
        setup.accumulation, mode, batches.per_execution, batches.per_epoch, setup.replicas
    )
    if mode is not Mode.TRAIN:
        return steps
    return shortened_to_stop(steps, setup.options.stop_within, setup.update_steps(mode))


def state_specs(model: keras.Model, mode: Mode) -> State:
    """Returns the specs of the state that Keras passes to a function of this mode."""
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
