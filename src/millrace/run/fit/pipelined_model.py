"""The stages of a pipelined model, their devices, and the runner of its loops."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras

from millrace.base.devices import DeviceGroup
from millrace.base.options import NO_OFFLOAD, Pipelining
from millrace.base.options.default_devices import V_SHAPED, is_v_shaped, v_devices
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.explain.key import ObjectNumbers
from millrace.compilation.export.exporting import Exports
from millrace.errors import ModelError, OptionError, PlanError
from millrace.programs.plan import BatchSpec, Mode, Plan
from millrace.run.compiled_loop.protocol import TapSink
from millrace.run.memory.pipeline_budget import chooser
from millrace.run.pipelines.assignment.assignment import (
    Assignment,
    assign,
    check_unchanged,
    default_assignment,
    get_assignment,
    set_assignment,
)
from millrace.run.pipelines.assignment.balance import balanced, declared_batch, open_assignment
from millrace.run.pipelines.assignment.layer_calls import LayerCall, find_calls, leaves
from millrace.run.pipelines.assignment.marks import stages_were_entered
from millrace.run.pipelines.programs.equation_stages import Marks
from millrace.run.pipelines.programs.executables import StageExecutables
from millrace.run.pipelines.programs.stage_programs import Orders
from millrace.run.pipelines.runtime.runner import PipelineRunner
from millrace.run.pipelines.runtime.shapes import Shapes
from millrace.run.schedules.table import make_schedule, name_of
from millrace.run.schedules.task import Schedule
from millrace.run.schedules.v_shape import groups_of_v


class StageAssignment:
    """The stages of one model: set by its methods, or by `PipelineStage` scopes.

    Finding the calls of a subclassed model runs it, which needs values in its variables, and a
    running loop of Keras has taken them out. So the assignment is kept while the layers are the
    same, and asked for first where a loop's function is made.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._set: Assignment | None = None
        self._set_for: object = None  # the layers that it was set for
        self._by_scopes = True  # until a method sets or resets the stages
        self.trained: BatchSpec | None = None  # first batch of the newest training
        self._scoped: Assignment | None = None
        self._scoped_for: object = None
        self._unreadable: ModelError | None = None

    def assignment(self) -> Assignment | None:
        """Returns the stage of each layer call, or None if the model is not a pipeline.

        Raises:
            PlanError: if layers came or went since the stages were set.
            OptionError: if scopes give a stage to some calls only.
        """
        if self._set is not None:
            if self._set_for != self._layers() and not self._set.is_open:
                check_unchanged(self._set, self._model)
            return self._set
        # A subclassed model that is not built has no calls yet.
        if self._by_scopes and stages_were_entered() and self._model.built:
            if self._scoped_for != self._layers():
                self._scoped_for, self._scoped = self._layers(), self._read_scopes()
            return self._scoped
        return None

    def check_readable(self) -> None:
        """Refuses a model with options of a pipeline whose scopes cannot be read.

        Raises:
            ModelError: if it is a subclassed model that does not run on shapes.
        """
        if self._unreadable is not None:
            raise self._unreadable

    def get(self) -> list[Any]:
        """Returns an object for each layer call, with its present stage."""
        return get_assignment(self._model, self.assignment())

    def set(self, stages: object) -> None:
        """Puts a list of stages in force."""
        self.put(set_assignment(self._model, stages))

    def put(self, assignment: Assignment) -> None:
        """Puts a checked assignment in force."""
        self._set, self._set_for, self._by_scopes = assignment, self._layers(), False

    def balance(self, num_stages: int, batch: BatchSpec | None = None) -> None:
        """Balances so many stages for the shapes of a batch.

        Without one, for those that the model's inputs declare; where they leave lengths open, the
        first batch of `fit` decides.

        Raises:
            OptionError: if there are fewer layer calls than stages.
            ModelError: if layers of the model cannot be compiled, or it is not built.
        """
        assignment, given = open_assignment(self._model, num_stages), batch
        batch = batch or declared_batch(self._model)
        self.put(balanced(self._model, num_stages, batch) if batch else assignment)
        self.trained = given or self.trained

    def decide(self, batch: BatchSpec, calls: Sequence[LayerCall] | None = None) -> Assignment:
        """Returns the stages of a pipeline, for the shapes of a batch where none has decided yet.

        Args:
            batch: of one replica.
            calls: of the model, for a running loop, in which those of a subclassed one are unknown.
        """
        assignment = self.assignment()
        assert assignment is not None  # noqa: S101 - asked by functions of pipelines only
        if not assignment.is_open:
            return assignment
        return balanced(self._model, assignment.num_stages, batch, calls)

    @property
    def numbers(self) -> list[int] | None:
        """The stage of each leaf call, for a checkpoint; None without any."""
        return None if self._set is None or self._set.stages is None else list(self._set.stages)

    def resume(self, numbers: list[int] | None) -> None:
        """Takes up the stages of a checkpoint where a batch would decide them, which may differ."""
        if self._set is None or not self._set.is_open or not numbers:
            return
        calls = find_calls(self._model)
        if (len(leaves(calls)), self._set.num_stages) == (len(numbers), max(numbers) + 1):
            self.put(assign(calls, numbers))

    @property
    def is_open(self) -> bool:
        """Whether a batch is still to decide the stages of `"auto"`."""
        return self._set is not None and self._set.is_open

    @property
    def batch(self) -> BatchSpec | None:
        """The batch for which FLOPs are counted; None if it is unknown before `fit`."""
        return self.trained or declared_batch(self._model)

    def reset(self) -> None:
        """Makes the model one that is not a pipeline, whatever its scopes say."""
        self._set, self._by_scopes = None, False

    def _layers(self) -> object:
        """Returns the identity of the layers, which can come and go in a Sequential only."""
        if isinstance(self._model, keras.Sequential):
            return tuple(map(id, self._model.layers))
        return "built"

    def _read_scopes(self) -> Assignment | None:
        self._unreadable = None
        try:
            return default_assignment(self._model)
        except ModelError as error:
            self._unreadable = error  # which matters only to a model that is meant to be a pipeline
            return None


def groups_needed(num_stages: int, mapping: Sequence[int], num_devices: int) -> int:
    """Returns how many device groups a pipeline has: one for each device of one replica.

    Raises:
        PlanError: if the mapping has another length than the stages, or the strategy has fewer
            devices than it needs.
    """
    numbers = list(mapping)
    if len(numbers) != num_stages:
        raise PlanError(
            f"device_mapping={numbers} has {len(numbers)} entries, and the model has {num_stages} "
            "pipeline stages. Give one device for each stage in set_pipelining_options()."
        )
    if max(numbers) >= num_devices:
        shared = f"device_mapping={[k % num_devices for k in range(num_stages)]}"
        # The V-shaped schedules run on no other mapping.
        others = f"or let stages share devices: {shared}"
        if num_stages % 2 == 0 and tuple(numbers) == v_devices(num_stages):
            others = (
                f"or assign {2 * num_devices} stages. Other schedules than {', '.join(V_SHAPED)} "
                f"can share devices: {shared}"
            )
        raise PlanError(
            f"The {num_stages} pipeline stages need the devices {sorted(set(numbers))}, and the "
            f"strategy has {num_devices}. Set devices to {max(numbers) + 1} or more, such as "
            f"Strategy(devices='cpu:{max(numbers) + 1}'), {others}."
        )
    return max(numbers) + 1


def check_number_of_stages(pipelining: Pipelining, num_stages: int) -> None:
    """Refuses a number of stages without a default device for each, before devices are counted.

    Raises:
        ScheduleError: if a V-shaped schedule has an odd number.
    """
    schedule = pipelining.schedule_in_force
    if pipelining.device_mapping is None and is_v_shaped(schedule):
        groups_of_v(str(schedule), num_stages, num_micro_batches=1)


def check_pipeline(
    model: keras.Model,
    assignment: Assignment,
    pipelining: Pipelining,
    num_groups: int,
    mode: Mode,
) -> None:
    """Refuses options that do not fit the stages, before anything is traced.

    Raises:
        OptionError: if there is only one stage.
        PlanError: if a list of options has another length than the stages.
        ScheduleError: if the schedule is not one for these stages and micro-batches.
    """
    stages = assignment.num_stages
    if stages < 2:
        raise OptionError(
            f"A pipeline has at least two stages, and all layers of {model.name!r} are on stage 0. "
            "Put some of them on stage 1, or call reset_pipeline_stage_assignment()."
        )
    for which, options in (
        ("forward", pipelining.forward_options),
        ("backward", pipelining.backward_options),
    ):
        if options is not None and len(options) != stages:
            raise PlanError(
                f"{which}_propagation_stages_compiler_options has {len(options)} entries, and the "
                f"model has {stages} pipeline stages. Give a dict for each stage, {{}} for none."
            )
    if mode is not Mode.TRAIN:
        return
    if pipelining.steps is None:
        raise PlanError(
            f"The pipelined model {model.name!r} has no number of micro-batches for one weight "
            "update. Call model.set_pipelining_options("
            "gradient_accumulation_steps_per_replica=...) before fit: several times the number of "
            f"stages, here {stages}, keeps the devices busy."
        )
    _schedule(pipelining, stages, pipelining.steps * pipelining.batch_serialization)


def marks_of(calls: Sequence[LayerCall], assignment: Assignment) -> Marks:
    """Returns the meaning of the marks of layer calls."""
    names = [leaf.label for leaf in leaves(calls)]
    return Marks(assignment.stages, assignment.num_stages, names)


def with_default_schedule(
    pipelining: Pipelining, plan: Plan, groups: Sequence[DeviceGroup]
) -> Pipelining:
    """Returns the options with the schedule for stages in several processes, if none was set.

    Between processes on CPUs a transfer of 128 KiB takes about 0.1 ms, and a wake-up, and in 1F1B
    every micro-batch waits for two of them. One more micro-batch in flight hides them; whoever
    saves memory, by recomputation or offload, does not get it.
    """
    spans_processes = any(not group.is_local for group in groups)
    is_chosen = pipelining.schedule is not None or pipelining.batch_serialization > 1
    saves_memory = plan.recompute is not None or plan.offload != NO_OFFLOAD
    if is_chosen or saves_memory or not spans_processes or groups[0].platform != "cpu":
        return pipelining
    return replace(pipelining, schedule="1f1b_slack")


def make_pipeline_runner(
    model: keras.Model,
    calls: Sequence[LayerCall],
    marks_for: Callable[[BatchSpec], Marks],
    num_stages: int,
    pipelining: Pipelining,
    plan: Plan,
    groups: Sequence[DeviceGroup],
    log: CompileLog,
    identity: ObjectNumbers,
    exports: Exports,
    tap_sink: TapSink,
) -> PipelineRunner:
    """Makes the runner of one mode of a pipelined model."""
    of_stages = [groups[number] for number in pipelining.devices_of(num_stages)]
    schedule = functools.partial(_schedule, pipelining, num_stages)
    orders = Orders(schedule, name_of(pipelining.schedule_in_force))
    executables = StageExecutables(
        model, calls, marks_for, of_stages, orders, log, pipelining, identity, exports
    )
    return PipelineRunner(Shapes(executables, plan, chooser(model, executables, log)), tap_sink)


def _schedule(pipelining: Pipelining, num_stages: int, num_micro_batches: int) -> Schedule:
    levels, devices = pipelining.schedule_stages, pipelining.devices_of(num_stages)
    if levels is not None:  # the device of a level's first stage stands for it
        first = dict(zip(reversed(levels), reversed(devices), strict=True))
        num_stages, devices = max(levels) + 1, tuple(first[level] for level in sorted(first))
    choice = pipelining.schedule_in_force
    sizes = (num_stages, num_micro_batches, devices, pipelining.batch_serialization, levels)
    return _named(choice, *sizes) if name_of(choice) == choice else make_schedule(choice, *sizes)


# Made and checked before each loop: 4 ms for two stages and 16 micro-batches.
_named = functools.lru_cache(maxsize=16)(make_schedule)
