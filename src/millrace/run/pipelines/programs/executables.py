"""The executables of one mode of one pipelined model, made when first needed and kept."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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
from millrace.programs.recomputation.ignored_boundaries import IgnoredBoundaries
from millrace.programs.steps.offload import with_moves
from millrace.programs.steps.program import Program
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
from millrace.run.pipelines.programs.stages import StageLayouts, StageSource, trace_stages

# builder, name, stage, group, whether non-finite values are looked for
ExecutableKey = tuple[StageBuilder, str, int, DeviceGroup, object]


class ProgramMaker(NamedTuple):
    """A program of a stage that may have to be made."""

    name: str
    stage: int
    make: Callable[[], Program]


class StageExecutables:
    """Finds the executable of a stage's pass, for the devices of the stage.

    Exported executables are loaded, with the facts about the stages that the runner needs: then
    nothing is traced.

    It belongs to one compiled function of one model with one assignment of stages, so only the
    plan, the specs of the state and the device tell its executables apart.
    """

    def __init__(
        self,
        model: keras.Model,
        calls: Sequence[LayerCall],
        marks_for: Callable[[BatchSpec], Marks],
        log: CompileLog,
        pipelining: Pipelining,
        identity: ObjectNumbers = (),
        exports: Exports | None = None,
    ):
        self._model = model
        self._calls = calls
        self._marks_for = marks_for  # may trace the model
        self._marks: Marks | None = None  # for the first batch, and all after it
        self._log = log
        self._pipelining = pipelining
        self._exports = exports or Exports()
        self._finder = ProgramFinder(log, self._exports)
        self._keys = ModelKeys(model, identity)
        self._boundaries = IgnoredBoundaries(model.name)
        self._builders: dict[Any, StageBuilder] = {}
        self._layers_of: dict[int, tuple[str, ...]] = {}
        self._executables: dict[ExecutableKey, Executable] = {}

    def builder(self, plan: Plan, state: State, groups: Sequence[DeviceGroup]) -> StageBuilder:
        """Returns the builder of a plan's programs. Traces one step if the plan is new."""
        specs = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), state)
        key = (plan, tuple((spec.shape, spec.dtype) for spec in jax.tree.leaves(specs)))
        if key not in self._builders:
            builder = self._imported(plan, specs, groups) or self._trace(plan, specs, groups)
            self._builders[key] = builder
            self._export_facts(builder, plan, groups)
        return self._builders[key]

    def _imported(
        self, plan: Plan, specs: State, groups: Sequence[DeviceGroup]
    ) -> StageBuilder | None:
        """Returns a builder on stages that another process has exported; None without these."""
        if self._exports.loaded.is_empty or not _is_exported(plan, groups):
            return None
        facts = self._exports.loaded.stages(self._key(plan, "stages"))
        if not isinstance(facts, StageFacts):
            return None
        return ImportedBuilder(
            facts, lambda: self._trace(plan, specs, groups), self._model, plan, specs, groups
        )

    def _trace(self, plan: Plan, specs: State, groups: Sequence[DeviceGroup]) -> StageBuilder:
        marks = self._marks_of(plan)
        self._log.begin(f"{plan.mode.value} of {self._model.name!r}")
        with tracing(self._model), fewer_collections(), self._boundaries.watched(plan):
            return make_builder(self._model, plan, self._calls, marks, specs, groups)

    def _export_facts(
        self, builder: StageBuilder, plan: Plan, groups: Sequence[DeviceGroup]
    ) -> None:
        if not _is_exported(plan, groups):
            return
        reference, trains = weakref.ref(builder), plan.mode is Mode.TRAIN

        def facts() -> StageFacts | None:
            builder = reference()
            if builder is None or not is_exchangeable(builder, plan):
                return None
            return facts_of(builder, trains)

        self._exports.stages(self._key(plan, "stages"), plan, facts)

    def find(
        self,
        builder: StageBuilder,
        plan: Plan,
        group: DeviceGroup,
        name: str,
        stage: int,
        make: Callable[[], Program],
    ) -> Executable:
        """Returns the executable of a name, stage and group; `make` returns its program."""
        key = (builder, name, stage, group, looks_for_non_finite())
        if key not in self._executables:
            wanted = self._wanted(builder, plan, group, ProgramMaker(name, stage, make))
            self._executables[key] = self._finder.find(wanted)
        return self._executables[key]

    def prepare(
        self,
        builder: StageBuilder,
        plan: Plan,
        groups: Sequence[DeviceGroup],
        programs: Iterable[ProgramMaker],
    ) -> None:
        """Finds the executables of programs in parallel, for `find`.

        Programs that do not compile are left to `find`, whose error names the task.

        Raises:
            RecompilationError: if one would be compiled again and recompilation is forbidden.
        """
        wanted: dict[ExecutableKey, Wanted] = {}
        for maker in programs:
            group = groups[maker.stage]
            key = (builder, maker.name, maker.stage, group, looks_for_non_finite())
            if key not in self._executables and group.local:
                wanted[key] = self._wanted(builder, plan, group, maker)
        self._executables.update(self._finder.find_all(wanted))

    def _wanted(
        self, builder: StageBuilder, plan: Plan, group: DeviceGroup, maker: ProgramMaker
    ) -> Wanted:
        name, stage = maker.name, maker.stage
        options, model = self._options(name, stage), self._model
        key = self._key(plan, f"{name} of stage {stage}", group, options)
        gaps = self._keys.describe(plan).model.gaps
        plan = replace(plan, group=group)
        obstacle = why_not(plan, key, gaps)
        if jax.tree.leaves(builder.stages.split.taps):
            obstacle = "its layers tap values, for queues of this process"

        def make() -> Code:
            self._log.begin(f"{key.program} of {model.name!r}")
            return code_of(with_moves(maker.make()), plan, options)

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
            plan, name, group=group, compiler_options=compiler_options, options=options
        )

    def _marks_of(self, plan: Plan) -> Marks:
        self._keys.describe(plan)
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


def _is_exported(plan: Plan, groups: Sequence[DeviceGroup]) -> bool:
    """Whether the stages are exported; those of several replicas are not."""
    return plan.replicas == 1 and not plan.tapped and all(group.is_local for group in groups)


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
    plans = [replace(plan, group=group) for group in groups]
    if plan.replicas == 1:
        stages = trace_stages(model, plan, calls, marks, state)
        return StageBuilder(stages, StageLayouts(stages, plans))
    stages = trace_stages(model, replace(plan, step_logs=False), calls, marks, state)
    return ReplicaStageBuilder(stages, StageLayouts(stages, plans))
