"""The stages of a model, and the layout of their values.

    model, plan -> one traced step -> stages -> passes of each, parts of the update

Stages are traced here, or imported from another process: see `imported_stages.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol

import jax
import keras

from millrace._compat.jaxpr import spec_of
from millrace.base.pytrees import Layout, LayoutTree, Spec, SpecTree
from millrace.programs.plan import Plan
from millrace.programs.replicas.placement import layout_of
from millrace.programs.steps.accumulate import Accumulator, make_accumulator
from millrace.programs.steps.offload import host_layouts, with_host_layouts
from millrace.programs.steps.program import Program
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
            passes: returns the passes of a stage; called once for each.
            update: returns the update by stage; called once.
        """
        self.model, self.plan, self.split = model, plan, split
        self.specs = state
        self.batch = batch_specs(plan)
        self.taps = StageTaps(model, plan, split)
        self._make_passes, self._make_update = passes, update
        self._passes: dict[int, Passes] = {}

    @cached_property
    def trainable(self) -> list[keras.Variable]:
        """The trainable variables of the model."""
        return self.model.trainable_variables  # Keras walks through all layers for these

    @cached_property
    def update(self) -> SplitUpdate:
        """The update by stage."""
        return self._make_update()

    def passes(self, stage: int) -> Passes:
        """Returns the passes of a stage, which is differentiated once."""
        if stage not in self._passes:
            self._passes[stage] = self._make_passes(stage)
        return self._passes[stage]

    def accumulator(self, stage: Stage) -> Accumulator:
        """Returns the accumulator of the gradients of a stage's weights."""
        variables = [self.trainable[index] for index in stage.trainable]
        optimizer = self.model.optimizer
        accumulator = make_accumulator(variables, self.plan.accumulation)

        def add(accumulated: Arrays, gradients: Arrays, coefficient: jax.Array) -> Arrays:
            return accumulator.add(
                accumulated, prepared(optimizer, gradients, variables), coefficient
            )

        return replace(accumulator, add=add)

    def weights(self, stage: Stage) -> list[Spec]:
        """Returns the specs of a stage's weights."""
        return [self.specs.trainable[index] for index in stage.trainable]

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
        return Program(name, function, arguments, None, donated, results, source)


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
    tree = jax.tree.unflatten(plan.batch.treedef, batch_specs(plan))
    split = split_step(model, plan.mode, calls, marks, state, tree, plan.step_logs, plan.taps)
    platform = plan.group.platform

    def passes(stage: int) -> Passes:
        return make_passes(split.stages[stage], split, plan.recompute, platform)

    def update() -> SplitUpdate:
        return split_stage_update(
            model, split, state.trainable, state.optimizer, plan.accumulation, plan.taps
        )

    return Stages(model, plan, state, split, passes, update)


def batch_specs(plan: Plan) -> list[Spec]:
    """Returns the specs of the leaves of a batch."""
    shapes = zip(plan.batch.shapes, plan.batch.dtypes, strict=True)
    return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]


def state_groups(stage: Stage) -> tuple[list[Slot], list[Slot]]:
    """Returns the state that a stage's forward only reads, and the state that it changes."""
    return [slot for slot in stage.state if slot not in stage.new_state], list(stage.new_state)


class Layouts(Protocol):
    """The layouts of the values of all stages."""

    @property
    def plans(self) -> Sequence[Plan]:
        """The plan of each stage, with its group of devices."""
        ...

    def of(self, index: int, slot: Slot) -> Layout | None:
        """Returns the layout of a value at a stage between updates; None: on its device."""
        ...

    def accumulated(self, stage: Stage) -> list[Spec]:
        """Returns the specs of a stage's gradient accumulators."""
        ...

    def host_layouts(self, index: int) -> list[Layout | None]:
        """Returns the host layouts of a stage's gradient accumulators; None: not offloaded."""
        ...

    def of_taps(self, index: int) -> Layout:
        """Returns the layout of the values that a stage taps."""
        ...


class DeviceLayouts:
    """The layouts of stages of one replica, each on one device."""

    def __init__(self, stages: Stages, plans: Sequence[Plan]):
        """Describes one replica.

        Args:
            stages: whose values are laid out.
            plans: of each stage, with its group of devices.
        """
        self._stages, self.plans = stages, plans

    def of(self, index: int, slot: Slot) -> Layout | None:
        """Returns the layout of a value at a stage between updates; None: on its device."""
        stages = self._stages
        if not moves(stages.plan):
            return None
        if slot.role == "gradient":
            number, weight = contributions(stages.split)[slot.index]
            stage = stages.split.stages[number]  # another one, where its norms are taken here, too
            return self._host_layouts(index, stage)[stage.trainable.index(weight)]
        if slot.role in ("trainable", "optimizer"):
            return layout_of(self.plans[index], slot.role, stages.slot(slot))
        return None

    def accumulated(self, stage: Stage) -> list[Spec]:
        """Returns the specs of a stage's gradient accumulators."""
        zeros = jax.eval_shape(self._stages.accumulator(stage).zeros)
        return with_host_layouts(zeros, self.host_layouts(stage.index))

    def host_layouts(self, index: int) -> list[Layout | None]:
        """Returns the host layouts of a stage's gradient accumulators; None: not offloaded."""
        return self._host_layouts(index, self._stages.split.stages[index])

    def _host_layouts(self, index: int, stage: Stage) -> list[Layout | None]:
        stages = self._stages
        zeros = jax.eval_shape(stages.accumulator(stage).zeros)
        if not stages.plan.offload.accumulators:
            return [None] * len(zeros)
        plan = self.plans[index]
        return host_layouts(plan, "gradient", zeros, plan.group.whole)

    def of_taps(self, index: int) -> Layout:
        """Returns the layout of the values that a stage taps."""
        return self.plans[index].group.whole


def moves(plan: Plan) -> bool:
    """Whether any state is offloaded to host memory between its uses."""
    offload = plan.offload
    return bool(offload.optimizer_state or offload.accumulators or offload.weights)


def with_sums(
    layouts: Layouts, index: int, returns: bool = False, taps: bool = False
) -> LayoutTree:
    """Returns the layouts of a pass's results, one of which are the gradient accumulators.

    Either all results have a layout or none: JAX would otherwise give results the memory of
    arguments of another kind.

    Args:
        layouts: of all stages.
        index: of the stage.
        returns: whether cotangents come before the accumulators.
        taps: whether tapped values come after them.
    """
    plan = layouts.plans[index]
    if not plan.offload.accumulators:
        return None
    split = plan.group.split(0)
    sums = [layout or split for layout in layouts.host_layouts(index)]
    if not (returns or taps):
        return sums
    return (*(split,) * returns, sums, *(layouts.of_taps(index),) * taps)
