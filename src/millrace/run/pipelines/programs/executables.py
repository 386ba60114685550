"""The executables of one mode of one pipelined model, made when first needed and kept."""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import keras

from millrace._compat.jax_arrays import looks_for_non_finite
from millrace.base.collector import fewer_collections
from millrace.base.devices import DeviceGroup
from millrace.base.options import CompilerOptions, Pipelining
from millrace.base.records.compilation import KeyField, ProgramKey
from millrace.compilation.executables.executable import (
    Executable,
    compile_program,
    compile_programs,
)
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.lowering import Request, tracing
from millrace.compilation.explain.fingerprint import describe_model, describe_state
from millrace.compilation.explain.key import ObjectNumbers, key_of
from millrace.compilation.explain.walk import Description
from millrace.compilation.export.exported import Wanted
from millrace.compilation.export.exporting import Exports, why_not
from millrace.errors import RecompilationError
from millrace.programs.plan import BatchSpec, Mode, Plan
from millrace.programs.recomputation.boundaries import collected_boundaries
from millrace.programs.steps.offload import with_moves
from millrace.programs.steps.program import Program
from millrace.programs.steps.state import State
from millrace.run.compiled_loop.executables import log_ignored_boundaries
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

logger = logging.getLogger("millrace")

_LOADING = 4  # threads
# builder, name, stage, group, whether non-finite values are looked for
ExecutableKey = tuple[StageBuilder, str, int, DeviceGroup, object]


class ProgramMaker(NamedTuple):
    """A program of a stage that may have to be made."""

    name: str
    stage: int
    make: Callable[[], Program]


class StageExecutables:
    """Finds, loads or compiles the executable of a stage's pass, for the devices of the stage.

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
        self._identity = identity  # of model and strategy, for the keys of programs
        self._exports = exports or Exports()
        # By plan: of the model before its step is traced, and of its state.
        self._descriptions: dict[Plan, tuple[Description, tuple[KeyField, ...]]] = {}
        self._builders: dict[Any, StageBuilder] = {}
        self._layers_of: dict[int, tuple[str, ...]] = {}
        self._has_warned = False  # about boundaries without effect
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
        with (
            tracing(self._model),
            fewer_collections(),
            collected_boundaries() as boundaries,
        ):
            builder = make_builder(self._model, plan, self._calls, marks, specs, groups)
        if not self._has_warned:
            self._has_warned = log_ignored_boundaries(plan, boundaries, self._model.name)
        return builder

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
            wanted = self._wanted(builder, plan, group, name, stage)
            executable = self._load(wanted)
            if executable is None:
                request = self._request(wanted, name, stage, make())
                executable = compile_program(request, self._log)
            self._executables[key] = executable
            self._export(builder, wanted, executable)
        return self._executables[key]

    def prepare(
        self,
        builder: StageBuilder,
        plan: Plan,
        groups: Sequence[DeviceGroup],
        programs: Iterable[ProgramMaker],
    ) -> None:
        """Loads or compiles programs in parallel, so that `find` has them.

        Programs that do not compile are left to `find`, whose error names the task.

        Raises:
            RecompilationError: if one would be compiled again and recompilation is forbidden.
        """
        missing: dict[ExecutableKey, ProgramMaker] = {}
        for maker in programs:
            group = groups[maker.stage]
            key = (builder, maker.name, maker.stage, group, looks_for_non_finite())
            if key not in self._executables and group.local:
                missing[key] = maker
        wanted = {
            key: self._wanted(builder, plan, groups[maker.stage], maker.name, maker.stage)
            for key, maker in missing.items()
        }
        executables = dict(self._loaded(wanted))
        uncompiled = [key for key in missing if key not in executables]
        requests = (
            self._request(wanted[key], maker.name, maker.stage, maker.make())
            for key in uncompiled
            for maker in [missing[key]]
        )
        try:
            executables.update(zip(uncompiled, compile_programs(requests, self._log), strict=True))
        except RecompilationError:
            raise
        except Exception as error:
            logger.debug("compiling stages one by one: %s", error)
        self._executables.update(executables)
        for key, executable in executables.items():
            self._export(builder, wanted[key], executable)

    def _loaded(
        self, wanted: dict[ExecutableKey, Wanted]
    ) -> Iterator[tuple[ExecutableKey, Executable]]:
        """Yields the executables that another process has exported, read in parallel."""
        if self._exports.loaded.is_empty:
            return
        with ThreadPoolExecutor(_LOADING, thread_name_prefix="millrace-load") as pool:
            for key, executable in zip(wanted, pool.map(self._load, wanted.values()), strict=True):
                if executable is not None:
                    yield key, executable

    def _load(self, wanted: Wanted) -> Executable | None:
        if why_not(wanted.plan, wanted.key) is not None:
            return None
        return self._exports.loaded.executable(wanted, self._log)

    def _export(self, builder: StageBuilder, wanted: Wanted, executable: Executable) -> None:
        taps = bool(jax.tree.leaves(builder.stages.split.taps))
        obstacle = "its layers tap values, for queues of this process" if taps else None
        self._exports.made(wanted, executable, obstacle=obstacle)

    def _wanted(
        self, builder: StageBuilder, plan: Plan, group: DeviceGroup, name: str, stage: int
    ) -> Wanted:
        options = self._options(name, stage)
        key = self._key(plan, f"{name} of stage {stage}", group, options)
        gaps, layers = self._describe(plan)[0].gaps, self._layers_of.get(stage, ())
        return Wanted(
            key,
            replace(plan, group=group),
            layers=layers,
            gaps=gaps,
            model=self._model,
            source=StageSource(builder.stages, name, stage),
        )

    def _request(self, wanted: Wanted, name: str, stage: int, program: Program) -> Request:
        self._log.begin(f"{program.name} of {self._model.name!r}")
        return Request(
            with_moves(program),
            wanted.plan,
            wanted.key,
            compiler_options=self._options(name, stage),
            layers=wanted.layers,
            model=self._model,
        )

    def _key(
        self,
        plan: Plan,
        name: str,
        group: DeviceGroup | None = None,
        compiler_options: CompilerOptions | None = None,
    ) -> ProgramKey:
        marks, schedule = self._marks_of(plan), self._pipelining.schedule_in_force
        stages = "as PipelineStage says" if marks.stages is None else str(tuple(marks.stages))
        description, state = self._describe(plan)
        return key_of(
            f"{plan.mode.value}_{name}",
            self._model,
            plan if group is None else replace(plan, group=group),
            compiler_options=compiler_options,
            identity=self._identity,
            options={
                "pipeline stages": marks.num_stages,
                "stages of layer calls": stages,
                # All schedules have the same programs, but setting another one traces again.
                "pipeline_schedule": getattr(schedule, "__name__", schedule),
            },
            description=description,
            state=state,
        )

    def _marks_of(self, plan: Plan) -> Marks:
        self._describe(plan)
        if self._marks is None:
            self._marks = self._marks_for(plan.batch)
            self._layers_of = _layers_of(self._marks)
        return self._marks

    def _describe(self, plan: Plan) -> tuple[Description, tuple[KeyField, ...]]:
        """Describes the model before its step is traced, which may change its description."""
        if plan not in self._descriptions:
            model, mode = self._model, plan.mode
            self._descriptions[plan] = describe_model(model, mode), describe_state(model, mode)
        return self._descriptions[plan]

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
