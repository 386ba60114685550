"""Compiles what training would run, and adds up what that needs.

model in one piece, replicas   memory_pieces.py    the largest program of an execution
pipeline                       memory_stages.py    a walk through the tasks of an update
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from millrace._compat.jax_memory import flops, memory_limit
from millrace.compiled_loop.runner import ScanRunner
from millrace.compiling.executable import compiled_of
from millrace.fit.controller import Controller
from millrace.fit.setup import Setup
from millrace.memory.dry_run import (
    Call,
    PipelineRehearsal,
    ScanRehearsal,
    StagePrograms,
    state_specs,
)
from millrace.memory.pieces import piece_memory
from millrace.memory.stages import pipeline_memory
from millrace.pipelines.runtime.runner import PipelineRunner
from millrace.plan import Mode
from millrace.precompile.rehearse import Batches, rehearse_piece
from millrace.records.memory import LiveBuffer, largest
from millrace.records.memory_report import DeviceMemory
from millrace.schedules.task import Pass


@dataclass(frozen=True, slots=True)
class Needs:
    """What training needs."""

    devices: tuple[DeviceMemory, ...]
    # Of one update on one device; of a pipeline, on all of them. To count may take a compilation.
    update_flops: Callable[[], float]
    # The share that a budget of recomputation adds to them, which XLA's count of loops hides.
    added_flops: float | None = None

    @property
    def peak(self) -> int:
        """Bytes of the fullest device."""
        return max(device.peak for device in self.devices)


def measure(controller: Controller, runner: ScanRunner | PipelineRunner, batches: Batches) -> Needs:
    """Compiles what training on such batches runs, for the runner to have it, and runs nothing."""
    model = controller.model
    state = state_specs(model, Mode.TRAIN)
    if isinstance(runner, PipelineRunner):
        pipeline = PipelineRehearsal(runner)
        programs = pipeline.programs(state, batches.spec)
        devices = pipeline_memory(model, programs, pipeline.groups)
        return Needs(devices, lambda: _pipeline_flops(programs))
    rehearsal, calls = rehearse_piece(controller, runner, Mode.TRAIN, batches)
    memory = piece_memory(model, rehearsal.plan, calls)
    if not controller.setup.destination.is_host_memory:
        memory = _with_blocks_ahead(memory, controller.setup.options.feed.prefetch_depth)
    return Needs((memory,), lambda: _piece_flops(rehearsal, calls), rehearsal.extra_flops())


def with_limits(
    devices: Sequence[DeviceMemory], setup: Setup, budget: int | None
) -> tuple[DeviceMemory, ...]:
    """Returns the devices with what may be used of each: the budget, or less if they have less."""
    known = {str(device): memory_limit(device) for device in setup.devices}

    def limit(device: DeviceMemory) -> int | None:
        given = [known.get(name) for name in device.devices] + [budget]
        return min((each for each in given if each is not None), default=None)

    return tuple(replace(device, limit=limit(device)) for device in devices)


def _with_blocks_ahead(memory: DeviceMemory, blocks: int) -> DeviceMemory:
    """Adds the blocks that are on an accelerator before their turn comes."""
    (stage,) = memory.stages
    ahead = stage.batches * blocks
    alive = largest([*memory.alive, LiveBuffer("blocks prepared ahead", ahead, "", "")])
    return replace(memory, stages=(replace(stage, batches=stage.batches + ahead),), alive=alive)


def _piece_flops(rehearsal: ScanRehearsal, calls: Sequence[Call]) -> float:
    """Returns the FLOPs of one update. XLA counts the body of a loop once, however it turns."""
    plan = rehearsal.plan
    call = max((call for call in calls if call.steps), key=lambda call: call.steps)
    counted, window = flops(compiled_of(call.executable)), plan.accumulation.steps
    if not call.is_loop:
        steps = call.steps / plan.replicas
        update = flops(compiled_of(rehearsal.apply())) if call.name == "accumulate" else 0.0
        return counted / steps * window + update
    if window == 1 and call.name == "run":
        return counted
    update = flops(compiled_of(rehearsal.apply()))
    return window * (counted - (update if call.name == "run" else 0.0)) + update


def _pipeline_flops(programs: StagePrograms) -> float:
    """Returns the FLOPs of one update, of all stages."""
    names = {
        Pass.FORWARD: "forward",
        Pass.BACKWARD: "backward",
        Pass.BACKWARD_INPUT: "backward_input",
        Pass.BACKWARD_WEIGHT: "backward_weight",
    }
    of = {key: flops(compiled_of(each.executable)) for key, each in programs.programs.items()}
    tasks = sum(of.get((names[task.kind], task.stage), 0.0) for task in programs.order)
    ends = ("settle", "partial", "shared", "final")
    return tasks + sum(each for (name, _), each in of.items() if name in ends)
