"""The executables of one mode of one pipelined model, made when first needed and kept."""

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import keras

from millrace._compat.jax_arrays import looks_for_non_finite
from millrace.base.collector import fewer_collections
from millrace.base.devices import DeviceGroup
from millrace.base.options import CompilerOptions, Pipelining
from millrace.base.records.compilation import ProgramKey
from millrace.compilation.executables.executable import Executable
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.lowering import code_of, tracing
from millrace.compilation.executables.wanted import Code, Wanted, of_plan
from millrace.compilation.explain.key import ObjectNumbers
from millrace.compilation.explain.model_keys import ModelKeys
from millrace.compilation.export.exporting import Exports, why_not
from millrace.compilation.finder import ProgramFinder
from millrace.programs.plan import BatchSpec, Mode, Plan
from millrace.programs.recomputation.modes import IgnoredBoundaries
from millrace.programs.steps.offload import with_moves
from millrace.programs.steps.state import State
from millrace.run.pipelines.assignment.layer_calls import LayerCall
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.equation_stages import Marks
from millrace.run.pipelines.programs.imported_stages import (
    ImportedBuilder,
    StageFacts,
    facts_of,
    is_exchangeable,
)
from millrace.run.pipelines.programs.replica_builder import ReplicaStageBuilder
from millrace.run.pipelines.programs.stage_programs import (
    Orders,
    StagePrograms,
    pipeline_programs,
)
from millrace.run.pipelines.programs.stages import StageLayouts, StageSource, trace_stages

# builder, name, stage, whether non-finite values are looked for
ExecutableKey = tuple[StageBuilder, str, int, object]


class StageExecutables:
    """Finds the executable of a stage's program, for the devices of the stage.

    Exported executables are loaded, with the facts about the stages that the runner needs: then
    nothing is traced.

    It belongs to one compiled function of one model with one assignment of stages to devices, so
    only the plan and the specs of the state tell its executables apart.
    """

    def __init__(
        self,
        model: keras.Model,
        calls: Sequence[LayerCall],
        marks_for: Callable[[BatchSpec], Marks],
        groups: Sequence[DeviceGroup],
        orders: Orders,
        log: CompileLog,
        pipelining: Pipelining,
        identity: ObjectNumbers,
        exports: Exports,
    ):
        self._model = model
        self._calls = calls
        self._marks_for = marks_for  # may trace the model
        self.groups, self.orders = tuple(groups), orders  # of each stage; of an update's tasks
        self._marks: Marks | None = None  # for the first batch, and all after it
        self._log = log
        self._pipelining = pipelining
        self._exports = exports
        self._finder = ProgramFinder(log, exports)
        self._keys = ModelKeys(model, identity)
        self._boundaries = IgnoredBoundaries(model.name)
        self._builders: dict[Any, StageBuilder] = {}
        self._moment: Hashable = None  # what a trace depends on besides a plan: specs of the state
        self._layers_of: dict[int, tuple[str, ...]] = {}
        self._executables: dict[ExecutableKey, Executable] = {}

    @fewer_collections()  # while the passes of stages and the update are traced
    def compiled(self, plan: Plan, state: State, is_first: bool) -> StageBuilder:
        """Compiles the programs of micro-batches in parallel, and returns their builder.

        Args:
            plan: of the mode, with a batch.
            state: the state, or its specs, as Keras has it.
            is_first: whether updates run the programs of this shape.
        """
        builder = self.builder(plan, state)
        self.prepare(builder, pipeline_programs(builder, self.orders, is_first))
        return builder

    def programs(self, plan: Plan, state: State) -> StagePrograms:
        """Returns the programs that an update runs.

        Args:
            plan: of training, with a batch.
            state: specs of the state, as Keras has it.
        """
        builder = self.compiled(plan, state, is_first=True)
        executables = {
            (name, stage): self.find(builder, name, stage)
            for name, stage in pipeline_programs(builder, self.orders, is_first=True)
            if self.groups[stage].local
        }
        _, order = self.orders.of(plan.accumulation.steps)
        return StagePrograms(builder, self.groups, order, executables)

    def builder(self, plan: Plan, state: State) -> StageBuilder:
        """Returns the builder of a plan's programs. Traces one step if the plan is new."""
        specs = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), state)
        leaves, tree = jax.tree.flatten(specs)
        self._moment = tree, tuple((spec.shape, spec.dtype) for spec in leaves)
        key = plan, self._moment
        if key not in self._builders:
            builder = self._imported(plan, specs) or self._trace(plan, specs)
            self._builders[key] = builder
            self._export_facts(builder, plan)
        return self._builders[key]

    def _imported(self, plan: Plan, specs: State) -> StageBuilder | None:
        """Returns a builder on stages that another process has exported; None without these."""
        if self._exports.loaded.is_empty or not self._is_exported(plan):
            return None
        facts = self._exports.loaded.stages(self._key(plan, "stages"))
        if not isinstance(facts, StageFacts):
            return None
        return ImportedBuilder(
            facts, lambda: self._trace(plan, specs), self._model, plan, specs, self.groups
        )

    def _trace(self, plan: Plan, specs: State) -> StageBuilder:
        marks = self._marks_of(plan)
        self._log.begin(f"{plan.mode.value} of {self._model.name!r}")
        with tracing(self._model), fewer_collections(), self._boundaries.watched(plan):
            return make_builder(self._model, plan, self._calls, marks, specs, self.groups)

    def _is_exported(self, plan: Plan) -> bool:
        """Whether the stages are exported; those of several replicas are not."""
        is_local = all(group.is_local for group in self.groups)
        return plan.replicas == 1 and not plan.tapped and is_local

    def _export_facts(self, builder: StageBuilder, plan: Plan) -> None:
        if not self._is_exported(plan):
            return
        reference, trains = weakref.ref(builder), plan.mode is Mode.TRAIN

        def facts() -> StageFacts | None:
            builder = reference()
            if builder is None or not is_exchangeable(builder, plan):
                return None
            return facts_of(builder, trains)

        self._exports.stages(self._key(plan, "stages"), plan, facts)

    def find(self, builder: StageBuilder, name: str, stage: int) -> Executable:
        """Returns the executable of a program, by its name and stage."""
        key = (builder, name, stage, looks_for_non_finite())
        if key not in self._executables:
            self._executables[key] = self._finder.find(self._wanted(builder, name, stage))
        return self._executables[key]

    def prepare(self, builder: StageBuilder, programs: Iterable[tuple[str, int]]) -> None:
        """Finds the executables of programs, by name and stage, in parallel, for `find`.

        Programs that do not compile are left to `find`, whose error names the task.

        Raises:
            RecompilationError: if one would be compiled again and recompilation is forbidden.
        """
        wanted: dict[ExecutableKey, Wanted] = {}
        for name, stage in programs:
            key = (builder, name, stage, looks_for_non_finite())
            if key not in self._executables and self.groups[stage].local:
                wanted[key] = self._wanted(builder, name, stage)
        self._executables.update(self._finder.find_all(wanted))

    def _wanted(self, builder: StageBuilder, name: str, stage: int) -> Wanted:
        options, model, plan = self._options(name, stage), self._model, builder.layouts.plan
        key = self._key(plan, f"{name} of stage {stage}", self.groups[stage], options)
        gaps = self._keys.describe(plan).model.gaps
        plan = builder.layouts.plans[stage]
        obstacle = why_not(plan, key, gaps)
        if jax.tree.leaves(builder.stages.split.taps):
            obstacle = "its layers tap values, for queues of this process"

        def make() -> Code:
            self._log.begin(f"{key.program} of {model.name!r}")
            return code_of(with_moves(builder.program(name, stage)), plan, options)

        layers, source = self._layers_of.get(stage, ()), StageSource(builder.stages, name, stage)
        return of_plan(key, plan, make, model, obstacle, layers=layers, source=source)

    def _key(
        self,
        plan: Plan,
        name: str,
        group: DeviceGroup | None = None,
        compiler_options: CompilerOptions | None = None,
    ) -> ProgramKey:
        marks, schedule = self._marks_of(plan), self._pipelining.schedule_in_force
        options = {
            "pipeline stages": marks.num_stages,
            "stages of layer calls": "as PipelineStage says"
            if marks.stages is None
            else str(tuple(marks.stages)),
            # All schedules have the same programs, but setting another one traces again.
            "pipeline_schedule": getattr(schedule, "__name__", schedule),
        }
        return self._keys.of(
            plan,
            name,
            self._moment,
            group=group,
            compiler_options=compiler_options,
            options=options,
        )

    def _marks_of(self, plan: Plan) -> Marks:
        self._keys.describe(plan, self._moment)
        if self._marks is None:
            self._marks = self._marks_for(plan.batch)
            self._layers_of = _layers_of(self._marks)
        return self._marks

    def _options(self, name: str, stage: int) -> CompilerOptions | None:
        pipelining = self._pipelining
        if name == "forward":
            return pipelining.forward_options[stage] if pipelining.forward_options else None
        if name.startswith("backward"):
            return pipelining.backward_options[stage] if pipelining.backward_options else None
        return pipelining.update_options if name in ("partial", "shared", "final") else None


def _layers_of(marks: Marks) -> dict[int, tuple[str, ...]]:
    """Returns the layers of each stage, in order."""
    layers: dict[int, tuple[str, ...]] = {}
    for stage, name in zip(marks.stages or (), marks.names, strict=False):
        layers[stage] = (*layers.get(stage, ()), name)
    return layers


def make_builder(
    model: keras.Model,
    plan: Plan,
    calls: Sequence[LayerCall],
    marks: Marks,
    state: State,
    groups: Sequence[DeviceGroup],
) -> StageBuilder:
    """Traces one step of one replica, and returns the builder of its stages' programs.

    Args:
        model: a compiled Keras model.
        plan: of the mode and batch of one replica; its group is not used.
        calls: the layer calls that the marks number.
        marks: the stage of each.
        state: specs of the state of one replica.
        groups: of each stage.
    """
    if plan.replicas == 1:
        stages = trace_stages(model, plan, calls, marks, state)
        return StageBuilder(stages, StageLayouts(stages, plan, groups))
    stages = trace_stages(model, replace(plan, step_logs=False), calls, marks, state)
    return ReplicaStageBuilder(stages, StageLayouts(stages, plan, groups))
