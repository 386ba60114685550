"""The stages of a model, and the layout of their values.

    model, plan -> one traced step -> stages -> passes of each, parts of the update

Stages are traced here, or imported from another process: see `imported_stages.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import NamedTuple

import jax
import keras
from jax.sharding import PartitionSpec

from millrace._compat.jaxpr import spec_of
from millrace.base.devices import REPLICA, WHOLE, DeviceGroup
from millrace.base.pytrees import Layout, LayoutTree, Spec, SpecTree
from millrace.programs.plan import Mode, Plan
from millrace.programs.replicas.placement import layout_of
from millrace.programs.replicas.reduce import GradientReduction
from millrace.programs.steps.accumulate import (
    LOSS_WEIGHT,
    Accumulated,
    Accumulator,
    make_accumulator,
)
from millrace.programs.steps.loss_weights import weighed_by_loss
from millrace.programs.steps.offload import with_host_layouts
from millrace.programs.steps.program import Program, batch_specs
from millrace.programs.steps.state import State
from millrace.programs.steps.step import prepared
from millrace.run.pipelines.assignment.layer_calls import LayerCall
from millrace.run.pipelines.programs.equation_stages import Marks
from millrace.run.pipelines.programs.passes import Passes, make_passes
from millrace.run.pipelines.programs.split import Arrays, Slot, Split, Stage
from millrace.run.pipelines.programs.split_step import split_step
from millrace.run.pipelines.programs.split_update import SplitUpdate
from millrace.run.pipelines.programs.stage_taps import StageTaps
from millrace.run.pipelines.programs.stage_update import contributions, split_stage_update


class Stages:
    """The stages of one mode of a pipelined model, for one shape of batch."""

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        state: State,
        split: Split,
        passes: Callable[[int], Passes],
        update: Callable[[], SplitUpdate],
    ):
        """Describes stages without tracing anything.

        Args:
            model: a compiled Keras model.
            plan: of the mode and batch; its device is not used.
            state: specs of the state.
            split: the traced step, cut into stages.
            passes: returns the passes of a stage by its number; called once for each.
            update: returns the update by stage; called once.
        """
        self.model, self.plan, self.split = model, plan, split
        self.specs = state
        self.batch: list[Spec] = jax.tree.leaves(batch_specs(plan.batch))
        self.taps = StageTaps(model, plan, split)
        # Of a stage, by its number, which is differentiated once.
        self.passes: Callable[[int], Passes] = cache(passes)
        self._make_update = update

    @cached_property
    def trainable(self) -> list[keras.Variable]:
        """The trainable variables of the model."""
        return self.model.trainable_variables  # Keras walks through all layers for these

    @cached_property
    def update(self) -> SplitUpdate:
        """The update by stage."""
        return self._make_update()

    def accumulator(self, stage: Stage) -> Accumulator:
        """Returns the accumulator of the gradients of a stage's weights."""
        variables = [self.trainable[index] for index in stage.trainable]
        optimizer, number = self.model.optimizer, len(variables)
        accumulator = make_accumulator(self.accumulated(stage), self.plan.accumulation)

        def add(accumulated: Arrays, gradients: Arrays, coefficient: jax.Array) -> Arrays:
            own = prepared(optimizer, gradients[:number], variables)
            return accumulator.add(accumulated, [*own, *gradients[number:]], coefficient)

        return replace(accumulator, add=add)

    def accumulated(self, stage: Stage) -> list[Accumulated]:
        """Returns the variables of what a stage accumulates."""
        return [LOSS_WEIGHT if k < 0 else self.trainable[k] for k in stage.accumulated]

    def slot(self, slot: Slot) -> Spec:
        """Returns the spec of a value of the state."""
        return getattr(self.specs, slot.role)[slot.index]

    def value(self, number: int) -> Spec:
        """Returns the spec of a value passed between stages."""
        value = self.split.values[number]
        return jax.ShapeDtypeStruct(value.shape, value.dtype)

    def cotangents(self, index: int) -> list[Spec]:
        """Returns the specs of the cotangents that a stage's backward takes."""
        return [self.value(number) for number, _ in self.passes(index).cotangents]

    def held(self, index: int) -> list[Spec]:
        """Returns the specs of the arrays that a stage's forward keeps for its backward."""
        passes = self.passes(index)
        first = len(self.split.stages[index].trainable)
        return [spec_of(var) for var in passes.backward.invars[first : first + len(passes.held)]]

    def program(
        self,
        name: str,
        index: int,
        function: Callable[..., object],
        arguments: tuple[SpecTree, ...],
        donated: tuple[int, ...],
        results: LayoutTree = None,
    ) -> Program:
        """Returns a program of a stage; see `Program`."""
        short, name = name, f"{self.plan.mode.value}_{name} of stage {index}"
        source = StageSource(self, short, index)
        return Program(name, function, arguments, donated, results, source)


class StageSource(NamedTuple):
    """What a program of a stage was made of."""

    stages: Stages
    program: str  # "forward"
    stage: int


def trace_stages(
    model: keras.Model, plan: Plan, calls: Sequence[LayerCall], marks: Marks, state: State
) -> Stages:
    """Traces one step and cuts it.

    Args:
        model: a compiled Keras model.
        plan: of the mode and batch of one replica.
        calls: the layer calls that the marks number.
        marks: the stage of each.
        state: specs of the state of one replica.
    """
    batch = batch_specs(plan.batch)

    is_part = plan.mode is Mode.TRAIN and plan.accumulation.micro_batch != "whole"

    def traced(plan: Plan) -> Split:
        of_step = (plan.step_logs, plan.taps, plan.weighs_losses, is_part)
        return split_step(model, plan.mode, calls, marks, state, batch, *of_step)

    split = weighed_by_loss(model, plan, traced, is_part)
    platform = plan.group.platform

    def passes(stage: int) -> Passes:
        return make_passes(split.stages[stage], split, plan.recompute, platform)

    def update() -> SplitUpdate:
        return split_stage_update(model, plan, split, state)

    return Stages(model, plan, state, split, passes, update)


def state_groups(stage: Stage) -> tuple[list[Slot], list[Slot]]:
    """Returns the state that a stage's forward only reads, and the state that it changes."""
    return [slot for slot in stage.state if slot not in stage.new_state], list(stage.new_state)


class StageLayouts:
    """The layouts of the values of all stages, each on the devices of its replicas.

    Values of one replica need none, unless they are offloaded: a program finds them on its device.
    """

    def __init__(self, stages: Stages, plan: Plan, groups: Sequence[DeviceGroup]):
        """Describes the replicas.

        Args:
            stages: whose values are laid out.
            plan: of all replicas; its group is not used.
            groups: of each stage.
        """
        self._stages, self.plan, self.replicas = stages, plan, plan.replicas
        self.plans = [replace(plan, group=group) for group in groups]  # of each stage

    def of(self, index: int, slot: Slot) -> Layout | None:
        """Returns the layout of a value at a stage between updates; None: on its device."""
        plan, stages = self.plans[index], self._stages
        if self.replicas == 1 and not moves(stages.plan):
            return None
        if slot.role == "gradient":
            source, weight = contributions(stages.split)[slot.index]
            own = stages.split.stages[source]
            variable = stages.accumulated(own)[own.accumulated.index(weight)]
            reduction = GradientReduction([variable], plan)
            if self.replicas == 1:
                return reduction.host_layouts[0]
            return jax.sharding.NamedSharding(plan.group.mesh, reduction.specs[0])
        if slot.role in ("trainable", "optimizer"):
            return layout_of(plan, slot.role, stages.slot(slot))
        return None if self.replicas == 1 else plan.group.whole

    def specs(self, index: int, slots: Sequence[Slot], specs: Sequence[Spec]) -> list[Spec]:
        """Returns the specs of values at a stage, with the layouts that its programs must know."""
        layouts = [self.of(index, slot) for slot in slots]
        if self.replicas == 1:
            return with_host_layouts(list(specs), layouts)
        return [
            jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=layout)
            for spec, layout in zip(specs, layouts, strict=True)
        ]

    def state(self, index: int, slots: Sequence[Slot]) -> list[Spec]:
        """Returns the specs of values of the state at a stage."""
        return self.specs(index, slots, [self._stages.slot(slot) for slot in slots])

    def weights(self, index: int) -> list[Spec]:
        """Returns the specs of a stage's weights."""
        weights = self._stages.split.stages[index].trainable
        return self.state(index, [Slot("trainable", weight) for weight in weights])

    def results(self, index: int, slots: Sequence[Slot]) -> list[Layout] | None:
        """Returns the layouts of values that a program replaces; None where it needs none."""
        if self.replicas == 1 and not moves(self._stages.plan):
            return None
        whole = self.plans[index].group.whole
        return [self.of(index, slot) or whole for slot in slots]

    def reduction(self, index: int) -> GradientReduction:
        """Returns the reduction of a stage's gradients over replicas."""
        plan, stage = self.plans[index], self._stages.split.stages[index]
        variables = self._stages.accumulated(stage) if plan.mode is Mode.TRAIN else []
        return GradientReduction(variables, plan)

    def sums(self, index: int) -> list[Layout] | None:
        """Returns the layouts of a stage's gradient accumulators; None if none is offloaded.

        Then no other result of their program needs one, either. Else all do: JAX would otherwise
        give results the memory of arguments of another kind.
        """
        plan = self.plans[index]
        if not plan.offload.accumulators:
            return None
        return [layout or plan.group.split(0) for layout in self.reduction(index).host_layouts]

    def tap_spec(self, index: int) -> PartitionSpec:
        """Returns the partition of a stage's tapped values; each process has all of its stages'."""
        is_local = self.plans[index].group.is_local
        return PartitionSpec(None, REPLICA) if is_local else WHOLE  # [1, replicas, ...]

    def of_taps(self, index: int) -> Layout:
        """Returns the layout of the values that a stage taps."""
        group = self.plans[index].group
        if self.replicas == 1:
            return group.whole
        return jax.sharding.NamedSharding(group.mesh, self.tap_spec(index))


def moves(plan: Plan) -> bool:
    """Whether any state is offloaded to host memory between its uses."""
    offload = plan.offload
    return bool(offload.optimizer_state or offload.accumulators or offload.weights)
