"""An execution of which everything is compiled, and nothing is run.

The same code asks for the same executables as in training, so what is compiled here is there when
training begins. Only the calls are left out: each gives the specs of its results.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from millrace.compiled_loop.executables import Executables
from millrace.compiled_loop.runner import ScanRunner
from millrace.compiled_loop.window import Window
from millrace.compiling.executable import Executable, compiled_of
from millrace.devices import DeviceGroup
from millrace.feeds.block import Block, Segment
from millrace.pipelines.programs.stages import StageBuilder
from millrace.pipelines.runtime.runner import PipelineRunner
from millrace.pipelines.runtime.stage_programs import pipeline_programs
from millrace.plan import ROLES, BatchSpec, Mode, Plan
from millrace.schedules.task import Schedule, Task
from millrace.steps.program import Program
from millrace.steps.state import State, Values
from millrace.taps.entries import Taps


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an executable that an execution would make."""

    name: str  # of its program: "run", "accumulate", "zeros", "apply"
    executable: Executable
    steps: int  # that the executable runs; 0 where that is none
    is_loop: bool  # whether XLA sees one turn of a loop, however many there are


class ScanRehearsal(ScanRunner):
    """Rehearses a model in one piece."""

    def __init__(self, runner: ScanRunner, single_steps: bool | None = None):
        """Takes the executables and the plan of a runner, and leaves it as it is.

        Args:
            runner: it runs the model.
            single_steps: whether executions have one step; None if the runner knows.
        """
        naming: Any = _Naming(runner._executables)
        if single_steps is None:
            single_steps = runner._single_steps
        super().__init__(naming, runner._plan, 1, single_steps)
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

    def _open_window(self, plan: Plan, state: State, rows: int) -> Window:
        return Window(self._call(self._executables.zeros(plan), state), 0, 0.0, rows)

    def _call(self, executable: Executable, *arguments: Any) -> Any:
        counts = [each for each in arguments if isinstance(each, int)]
        steps = counts[-1] if len(counts) > 1 else 0
        name = self._names[id(executable)]
        self._made[id(executable)] = Call(name, executable, steps, self._form.is_loop)
        made = compiled_of(executable).out_info
        specs = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), made)
        if not isinstance(specs, tuple):
            return specs
        # Nothing is found that would halt the execution.
        return tuple(
            each._replace(halted=None) if isinstance(each, Taps) else each for each in specs
        )


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

    def prepare(self, state: State, spec: BatchSpec) -> None:
        """Compiles what an execution of micro-batches of this spec runs, all at the same time."""
        self._shape(spec, state)

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
        wanted = pipeline_programs(builder, self._orders, plan, is_first=True)
        self._executables.prepare(builder, plan, self._groups, wanted)
        for name, stage, make in wanted:
            group = self._groups[stage]
            if group.local:
                program = make()
                run = self._executables.find(builder, plan, group, name, stage, make)
                found[name, stage] = StageProgram(program, run)
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
