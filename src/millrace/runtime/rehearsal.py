"""An execution of which everything is compiled, and nothing is run.

The same code asks for the same executables as in training, so what is compiled here is there when
training begins. Only the calls are left out: each gives the specs of its results.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from millrace.compiling.executable import Executable, compiled_of
from millrace.compiling.executables import Executables
from millrace.devices import DeviceGroup
from millrace.feeds.block import Block, Segment
from millrace.graph.split_update import Part as UpdatePart
from millrace.plan import BatchSpec, Mode, Plan
from millrace.programs.program import Program
from millrace.programs.replica_stages import ReplicaStageBuilder
from millrace.programs.stages import StageBuilder
from millrace.programs.state import ROLES, State, Values
from millrace.runtime.pipeline import PipelineRunner
from millrace.runtime.scan import ScanRunner
from millrace.schedules.task import Pass, Schedule, Task


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an executable that an execution would make."""

    name: str  # of its program: "run", "accumulate", "zeros", "apply"
    executable: Executable
    steps: int  # that the executable runs; 0 where that is none
    is_loop: bool  # whether XLA sees one turn of a loop, however many there are


class ScanRehearsal(ScanRunner):
    """Rehearses a model in one piece."""

    def __init__(self, runner: ScanRunner):
        """Takes the executables and the plan of a runner, and leaves it as it is."""
        naming: Any = _Naming(runner._executables)
        super().__init__(naming, runner._plan, 1, runner._single_steps)
        self._names = naming.names
        self._placement = _SpecPlacement(runner._plan)  # type: ignore[assignment]
        self._made: dict[int, Call] = {}

    @property
    def plan(self) -> Plan:
        """The plan of the last block."""
        return self._block_plan

    def calls(self, state: State, spec: BatchSpec, capacity: int, steps: int) -> list[Call]:
        """Returns the calls of one execution, each executable once.

        Args:
            state: specs of the state, as Keras has it.
            spec: of a batch.
            capacity: steps that a block holds.
            steps: of the execution.
        """
        self._made = {}
        segments = [
            Segment(Block(None, spec, capacity, count), 0, count)
            for begin in range(0, steps, capacity)
            for count in [min(capacity, steps - begin)]
        ]
        try:
            self.run(state, segments, steps)
        finally:
            self.release()
        return list(self._made.values())

    def extra_flops(self) -> float | None:
        """Returns the share of FLOPs that a budget has added to a step; None without a budget."""
        return self._executables.extra_flops(self._block_plan)

    def apply(self) -> Executable:
        """Returns the program of an update alone."""
        return self._executables.apply(self._block_plan)

    def _on_devices(self, batches: Any) -> Any:
        return batches

    def _call(self, executable: Executable, *arguments: Any) -> Any:
        counts = [each for each in arguments if isinstance(each, int)]
        steps = counts[-1] if len(counts) > 1 else 0
        name = self._names[id(executable)]
        self._made[id(executable)] = Call(name, executable, steps, self._form.is_loop)
        made = compiled_of(executable).out_info
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), made)


class _Naming:
    """Executables, with a note of which program each is of."""

    def __init__(self, executables: Executables):
        self._executables = executables
        self.names: dict[int, str] = {}  # by identity

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._executables, name)
        if name not in ("run", "accumulate", "zeros", "apply"):
            return found

        def find(*arguments: Any) -> Executable:
            executable = found(*arguments)
            self.names[id(executable)] = name
            return executable

        return find


class _SpecPlacement:
    """Lays out specs of a state as `Placement` lays out its values."""

    def __init__(self, plan: Plan):
        self._plan = plan

    def enter(self, state: State) -> State:
        """Returns a state of Keras as programs take it."""
        plan = self._plan
        if plan.replicas == 1 or "metric" not in ROLES[plan.mode]:
            return state
        *others, metrics = state
        parts = [jax.ShapeDtypeStruct((plan.replicas, *m.shape), m.dtype) for m in metrics]
        return (*others, Values((*parts, *metrics)))

    def leave(self, inner: State) -> State:
        """Returns a state of programs; nobody looks at it."""
        return inner

    def release(self) -> None:
        """Has nothing to let go of."""


@dataclass(frozen=True, slots=True)
class StageProgram:
    """A program of a stage, with its executable."""

    program: Program
    executable: Executable


@dataclass(frozen=True, slots=True)
class StagePrograms:
    """All that the training of a pipeline runs."""

    builder: StageBuilder
    schedule: Schedule
    order: tuple[Task, ...]  # of the tasks of one update
    programs: Mapping[tuple[str, int], StageProgram]  # by name and stage, of those that are here


class PipelineRehearsal(PipelineRunner):
    """Rehearses the training of a pipelined model."""

    def __init__(self, runner: PipelineRunner):
        """Takes the executables and the plan of a runner, and leaves it as it is."""
        self.__dict__.update(runner.__dict__)

    @property
    def groups(self) -> tuple[DeviceGroup, ...]:
        """The devices of each stage."""
        return self._groups

    def programs(self, state: State, spec: BatchSpec) -> StagePrograms:
        """Returns what an update of micro-batches of this spec runs.

        Args:
            state: specs of the state, as Keras has it.
            spec: of a micro-batch.
        """
        return self.programs_of(self.choose(replace(self._plan, batch=spec), state), state)

    def programs_of(self, plan: Plan, state: State) -> StagePrograms:
        """Returns what an update runs by a plan that has its batch."""
        builder = self._executables.builder(plan, state, self._groups)
        schedule, order = self._orders.of(plan.accumulation.steps, builder.split.values)
        found: dict[tuple[str, int], StageProgram] = {}

        def find(name: str, stage: int, program: Program) -> None:
            group = self._groups[stage]
            if group.local:
                run = self._executables.find(builder, plan, group, name, stage, lambda: program)
                found[name, stage] = StageProgram(program, run)

        def find_part(name: str, stage: int, part: UpdatePart) -> None:
            find(name, stage, builder.part(name, stage, part))

        kinds = {task.kind for task in order}
        for stage in range(len(self._groups)):
            find("zeros", stage, builder.zeros(stage))
            find("forward", stage, builder.forward(stage))
            if Pass.BACKWARD in kinds:
                find("backward", stage, builder.backward(stage))
            if Pass.BACKWARD_INPUT in kinds and builder.passes(stage).returns:
                find("backward_input", stage, builder.backward_input(stage))
            if Pass.BACKWARD_WEIGHT in kinds:
                find("backward_weight", stage, builder.backward_weight(stage))
            if isinstance(builder, ReplicaStageBuilder):
                find("settle", stage, builder.settle(stage))
        update = builder.update
        for stage, part in update.partial.items():
            find_part("partial", stage, part)
        if update.shared is not None:
            find_part("shared", self._last, update.shared)
        for stage, part in update.final.items():
            find_part("final", stage, part)
        if not any(stage.results for stage in builder.split.stages):
            find("logs", self._last, builder.logs(self._last))
        return StagePrograms(builder, schedule, order, found)


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
