"""The stages of a pipeline, with the specs of their inputs, outputs and weights.

    model, plan -> one traced step -> stages -> passes of each, parts of the update

Stages are traced here, or imported from another process: see `imported_stages.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import jax
import keras

from millrace._compat.jaxpr import spec_of
from millrace.pipelines.assignment.calls import LayerCall
from millrace.pipelines.programs.equation_stages import Marks
from millrace.pipelines.programs.passes import Passes, make_passes
from millrace.pipelines.programs.split import Arrays, Slot, Split, Stage
from millrace.pipelines.programs.split_step import split_step
from millrace.pipelines.programs.split_update import SplitUpdate
from millrace.pipelines.programs.stage_taps import StageTaps
from millrace.pipelines.programs.stage_update import split_stage_update
from millrace.plan import ROLES, Plan
from millrace.pytrees import LayoutTree, Spec, SpecTree
from millrace.steps.accumulate import Accumulator, make_accumulator
from millrace.steps.program import Program
from millrace.steps.state import State
from millrace.steps.update import prepared


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
        self.specs = dict(zip(ROLES[plan.mode], state, strict=True))
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
        return [self.specs["trainable"][index] for index in stage.trainable]

    def slot(self, slot: Slot) -> Spec:
        """Returns the spec of a value of the state."""
        return self.specs[slot.role][slot.index]

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
        name = f"{self.plan.mode.value}_{name} of stage {index}"
        return Program(name, function, arguments, None, donated, results)


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
    specs = dict(zip(ROLES[plan.mode], state, strict=True))
    platform = plan.group.platform

    def passes(stage: int) -> Passes:
        return make_passes(split.stages[stage], split, plan.recompute, platform)

    def update() -> SplitUpdate:
        trainable, optimizer = specs["trainable"], specs["optimizer"]
        return split_stage_update(model, split, trainable, optimizer, plan.accumulation, plan.taps)

    return Stages(model, plan, state, split, passes, update)


def batch_specs(plan: Plan) -> list[Spec]:
    """Returns the specs of the leaves of a batch."""
    shapes = zip(plan.batch.shapes, plan.batch.dtypes, strict=True)
    return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]


def state_groups(stage: Stage) -> tuple[list[Slot], list[Slot]]:
    """Returns the state that a stage's forward only reads, and the state that it changes."""
    return [slot for slot in stage.state if slot not in stage.new_state], list(stage.new_state)
