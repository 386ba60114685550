"""Times of compiled updates and stages, run on zeros, and a cut into stages of equal time.

calls            a     b     c     d
FLOPs            4     4     4     4
cut by FLOPs     [a b]       [c d]        stages take 6 ms and 2 ms
times of calls   3     3     1     1      each call's share of its stage's FLOPs
cut by time      [a]   [b     c    d]     stages take 3 ms and 5 ms: kept if measured so
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from millrace.base.devices import DeviceGroup
from millrace.base.pytrees import Spec, SpecTree
from millrace.compilation.executables.executable import Executable
from millrace.programs.feeds.block import BlockSlice
from millrace.programs.feeds.blocks import stacked_blocks
from millrace.programs.plan import BatchSpec, Mode
from millrace.programs.taps.entries import CallResult
from millrace.run.compiled_loop.protocol import ExecutionSteps
from millrace.run.fit.controller import Controller
from millrace.run.fit.functions import LoopFunction
from millrace.run.fit.setup import Setup
from millrace.run.pipelines.assignment.assignment import Assignment
from millrace.run.pipelines.assignment.balance import balanced, balanced_by, call_flops
from millrace.run.pipelines.assignment.layer_calls import find_calls
from millrace.run.pipelines.programs.stage_programs import StagePrograms
from millrace.run.precompile.precompile import Batches, described_execution, state_specs
from millrace.run.schedules.task import Pass
from millrace.tools.memory_report.needs import training_needs
from millrace.tools.planning.alternatives import base, of_assignment
from millrace.tools.planning.applying import options_of

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
    steps = described_execution(controller, Mode.TRAIN, batches).longest
    spec = batches.spec
    leaves = [np.zeros(s, d) for s, d in zip(spec.shapes, spec.dtypes, strict=True)]
    batch = jax.tree.unflatten(spec.treedef, leaves)

    def slices() -> list[BlockSlice]:
        shape = controller.feeds.block_shape(setup, Mode.TRAIN, steps)
        blocks = stacked_blocks(iter([batch] * steps), [steps], shape, setup.destination)
        return [BlockSlice(block, 0, block.steps) for block in blocks]

    specs = state_specs(controller.model, Mode.TRAIN)
    state = specs.map(lambda _, spec: jnp.zeros(spec.shape, spec.dtype))
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


ROUNDS = 3  # cuts whose stages are measured; later ones gain nothing


@dataclass(frozen=True, slots=True)
class MeasuredCut:
    """Cuts a model into stages whose measured times are balanced."""

    controller: Controller
    spec: BatchSpec  # of all rows of an update
    tick: Callable[[str], object]

    def __call__(self, setup: Setup, replicas: int, groups: int, stages: int) -> Assignment:
        """Returns the assignment to so many stages.

        Raises:
            MillraceError: if the model cannot be cut into them.
        """
        model = setup.model
        assignment = best = balanced(model, stages, self.spec)
        calls = find_calls(model)
        costs, longest = call_flops(model, calls, self.spec), float("inf")
        for _ in range(ROUNDS):
            of_calls = assignment.stages or ()
            seconds = self._measured(setup, replicas, groups, assignment)
            if max(seconds) >= longest:
                break
            best, longest = assignment, max(seconds)
            costs = as_measured(costs, of_calls, seconds)
            assignment = balanced_by(model, calls, costs, stages)
            if assignment == best:
                break
        return best

    def _measured(
        self, setup: Setup, replicas: int, groups: int, assignment: Assignment
    ) -> list[float]:
        layout = of_assignment(setup, replicas, groups, assignment, True)
        update = base(layout, self.spec.rows, 1)
        self.tick(f"timing the stages of {update.layout}")
        variant = self.controller.variant(options_of(update, setup.options), layout.stages)
        batches = Batches(self.spec.of_rows(update.batch_size), update.steps_per_execution)
        programs = training_needs(variant, batches).programs
        assert isinstance(programs, StagePrograms)  # noqa: S101
        return stage_seconds(programs)


def as_measured(
    costs: Sequence[float], stages: Sequence[int], seconds: Sequence[float]
) -> list[float]:
    """Returns the times of calls: of its stage's, each has the share that it has of the costs."""
    totals, numbers = [0.0] * len(seconds), [0] * len(seconds)
    for cost, stage in zip(costs, stages, strict=True):
        totals[stage] += cost
        numbers[stage] += 1
    return [
        seconds[stage] * (cost / totals[stage] if totals[stage] else 1 / numbers[stage])
        for cost, stage in zip(costs, stages, strict=True)
    ]
