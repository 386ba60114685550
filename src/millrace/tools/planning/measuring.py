"""Times of compiled updates and stages, run on zeros."""

import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from millrace.base.devices import DeviceGroup
from millrace.base.pytrees import Spec, SpecTree
from millrace.compilation.executables.executable import Executable
from millrace.programs.feeds.block import BlockSlice
from millrace.programs.feeds.blocks import stacked_blocks
from millrace.programs.plan import Mode
from millrace.programs.steps.state import State
from millrace.programs.taps.entries import CallResult
from millrace.run.compiled_loop.protocol import ExecutionSteps
from millrace.run.fit.controller import Controller
from millrace.run.fit.functions import LoopFunction
from millrace.run.pipelines.programs.stage_programs import StagePrograms
from millrace.run.precompile.precompile import Batches, described_execution, state_specs
from millrace.run.schedules.task import Pass

REPEATS = 3  # of which the fastest counts: others may run on the machine


class MeasuredFunction(LoopFunction):
    """A train function that runs zeros, of which queues and callbacks hear nothing."""

    def _deliver(self, calls: Sequence[CallResult]) -> None:
        """Drops tapped values."""


def update_seconds(controller: Controller, batches: Batches) -> float:
    """Returns the seconds of one update, run on zeros with a state of zeros.

    Args:
        controller: of the model, or a variant.
        batches: of the training.
    """
    setup = controller.setup
    runner = MeasuredFunction(controller, Mode.TRAIN).runner()
    described = described_execution(controller, Mode.TRAIN, batches)
    steps = described.longest
    spec = batches.spec
    leaves = [np.zeros(s, d) for s, d in zip(spec.shapes, spec.dtypes, strict=True)]
    batch = jax.tree.unflatten(spec.treedef, leaves)

    def slices() -> list[BlockSlice]:
        shape = controller.feeds.block_shape(setup, Mode.TRAIN, steps)
        blocks = stacked_blocks(iter([batch] * steps), [steps], shape, setup.destination)
        return [BlockSlice(block, 0, block.steps) for block in blocks]

    state = zeros_of(state_specs(controller.model, Mode.TRAIN))
    times: list[float] = []
    for _ in range(1 + REPEATS):
        execution = ExecutionSteps(slices(), steps)
        jax.block_until_ready([each.block.batches for each in execution.slices])
        began = time.perf_counter()
        state, results = runner.run(state, execution)
        jax.block_until_ready((state, [each.result for each in results]))
        times.append(time.perf_counter() - began)
    runner.release()
    return min(times[1:]) / max(1, steps // setup.update_steps(Mode.TRAIN))


def zeros_of(specs: State) -> State:
    """Returns a state of zeros, as Keras would pass it."""
    return specs.map(lambda _, spec: jnp.zeros(spec.shape, spec.dtype))


def stage_seconds(programs: StagePrograms) -> list[float]:
    """Returns the seconds of forward and backward of each stage, for one micro-batch of zeros."""
    seconds = [0.0] * len(programs.groups)
    for (name, stage), run in programs.executables.items():
        if name in [kind.program for kind in Pass]:
            specs = programs.builder.program(name, stage).arguments
            seconds[stage] += _seconds_of(run, specs, programs.groups[stage])
    return seconds


def _seconds_of(run: Executable, specs: SpecTree, group: DeviceGroup) -> float:
    def zeros(spec: Spec) -> jax.Array:
        sharding = getattr(spec, "sharding", None) or group.whole
        return jax.device_put(jnp.zeros(spec.shape, spec.dtype), sharding)

    times: list[float] = []
    for _ in range(1 + REPEATS):
        arguments = jax.tree.map(zeros, specs)  # some are donated
        jax.block_until_ready(arguments)
        began = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        times.append(time.perf_counter() - began)
    return min(times[1:])
