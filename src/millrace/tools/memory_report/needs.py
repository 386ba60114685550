"""The memory and FLOPs of a training, read off its compiled programs.

model in one piece, replicas   run/memory/pieces.py    the largest program of an execution
pipeline                       run/memory/stage_memory.py    a walk through the tasks of an update
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from millrace._compat.jax_executables import module_proto
from millrace._compat.jax_memory import memory_limit
from millrace.base.devices import device_name
from millrace.base.records.memory import LiveBuffer, largest
from millrace.base.records.memory_report import DeviceMemory
from millrace.compilation.executables.executable import Executable, compiled_of
from millrace.programs.plan import Mode
from millrace.run.compiled_loop.executables import LoopPrograms
from millrace.run.compiled_loop.protocol import Runner
from millrace.run.fit.controller import Controller
from millrace.run.fit.functions import LoopFunction
from millrace.run.fit.setup import Setup
from millrace.run.memory.hlo_proto import read_module
from millrace.run.memory.pieces import piece_memory
from millrace.run.memory.stage_memory import pipeline_memory
from millrace.run.pipelines.programs.stage_programs import UPDATE_PROGRAMS, StagePrograms
from millrace.run.precompile.precompile import Batches, described_execution, dry_run_of, state_specs
from millrace.tools.operations.count import OperationCounter


@dataclass(frozen=True, slots=True)
class Needs:
    """The memory and FLOPs of a training."""

    devices: tuple[DeviceMemory, ...]
    programs: StagePrograms | LoopPrograms
    # Of one update on one device; of a pipeline, on all devices. May compile a program.
    update_flops: Callable[[], float]

    @property
    def peak(self) -> int:
        """Bytes of the fullest device."""
        return max(device.peak for device in self.devices)


def measure(controller: Controller, runner: Runner, batches: Batches) -> Needs:
    """Compiles the programs of a training on such batches; the runner keeps them."""
    execution = described_execution(controller, Mode.TRAIN, batches)
    state = state_specs(controller.model, Mode.TRAIN)
    programs = dry_run_of(runner, batches).programs(state, execution)
    return needs_of(programs, controller.setup)


def training_needs(controller: Controller, batches: Batches) -> Needs:
    """Compiles a training anew, beside the functions that its model has, and returns its needs."""
    return measure(controller, LoopFunction(controller, Mode.TRAIN).runner(), batches)


def needs_of(programs: StagePrograms | LoopPrograms, setup: Setup) -> Needs:
    """Returns the needs of the programs of a pipeline, or of a model in one piece."""
    if isinstance(programs, StagePrograms):
        devices = pipeline_memory(setup.model, programs)
        return Needs(devices, programs, lambda: _pipeline_flops(programs))
    memory = piece_memory(setup.model, programs)
    if not setup.destination.is_host_memory:
        memory = _with_blocks_ahead(memory, setup.options.feed.prefetch_depth)
    return Needs((memory,), programs, lambda: _piece_flops(programs))


def with_limits(
    devices: Sequence[DeviceMemory], setup: Setup, budget: int | None
) -> tuple[DeviceMemory, ...]:
    """Returns the devices with their limits: the budget, or their memory if that is less."""
    limits = {device_name(device): memory_limit(device) for device in setup.devices}

    def limit(device: DeviceMemory) -> int | None:
        bounds = [limits.get(name) for name in device.devices] + [budget]
        return min((each for each in bounds if each is not None), default=None)

    return tuple(replace(device, limit=limit(device)) for device in devices)


def _with_blocks_ahead(memory: DeviceMemory, blocks: int) -> DeviceMemory:
    """Adds the blocks that are prefetched to an accelerator."""
    (stage,) = memory.stages
    ahead = stage.batches * blocks
    alive = memory.alive
    if alive:  # the compilers of targets do not say which tensors are
        alive = largest([*alive, LiveBuffer("blocks prepared ahead", ahead, "", "")])
    return replace(memory, stages=(replace(stage, batches=stage.batches + ahead),), alive=alive)


def program_flops(executable: Executable) -> float:
    """Returns the FLOPs of one call; a loop whose length is data runs once."""
    module = read_module(module_proto(compiled_of(executable)))
    operations = OperationCounter(module).operations()
    return sum(each.times * flops for each in operations for _, flops in each.flops)


def _piece_flops(programs: LoopPrograms) -> float:
    """Returns the FLOPs of one update."""
    plan = programs.plan
    call = max((call for call in programs.calls if call.steps), key=lambda call: call.steps)
    counted, steps = program_flops(call.executable), plan.accumulation.steps
    if call.is_loop and call.program == "run":  # over updates, of a length that is data
        return counted
    update = program_flops(programs.apply()) if call.program == "accumulate" else 0.0
    return counted * steps / (1 if call.is_loop else call.steps / plan.replicas) + update


def _pipeline_flops(programs: StagePrograms) -> float:
    """Returns the FLOPs of one update, of all stages."""
    of = stage_flops(programs)
    tasks = sum(of.get((task.kind.program, task.stage), 0.0) for task in programs.order)
    return tasks + sum(each for (name, _), each in of.items() if name in UPDATE_PROGRAMS)


def stage_flops(programs: StagePrograms) -> dict[tuple[str, int], float]:
    """Returns the FLOPs of a call of each program, by its name and stage."""
    return {key: program_flops(each) for key, each in programs.executables.items()}
