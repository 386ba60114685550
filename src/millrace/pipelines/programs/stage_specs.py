"""What is known of the stages of a pipeline, before there are programs of them.

    model, plan -> one traced step -> stages -> passes of each, parts of the update

Each value has a spec, and may rest in host memory between its uses.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import keras

from millrace._compat.jaxpr import spec_of
from millrace.devices import DeviceGroup
from millrace.pipelines.assignment.calls import LayerCall
from millrace.pipelines.programs.passes import Passes, make_passes
from millrace.pipelines.programs.place import Marks
from millrace.pipelines.programs.split import Slot, Split, Stage
from millrace.pipelines.programs.split_step import split_step
from millrace.pipelines.programs.split_update import SplitUpdate
from millrace.pipelines.programs.stage_taps import StageTaps
from millrace.pipelines.programs.stage_update import contributions, split_stage_update
from millrace.plan import ROLES, Plan
from millrace.replicas.state import layout_of
from millrace.steps.accumulate import Accumulator, make_accumulator
from millrace.steps.offload import at_rest, rests_of
from millrace.steps.program import Program
from millrace.steps.state import State
from millrace.steps.update import prepared


class StageSpecs:
    """The stages of one mode of a pipelined model, for one shape of batch."""

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        calls: Sequence[LayerCall],
        marks: Marks,
        state: State,
        groups: Sequence[DeviceGroup] = (),
    ):
        """Traces one step and cuts it.

        Args:
            model: a compiled Keras model.
            plan: of the mode and batch; its device does not matter here.
            calls: the layer calls that the marks number.
            marks: the stage of each.
            state: specs of the state.
            groups: of each stage; none where no program of them will run.
        """
        self._model = model
        self._plan = plan
        self._plans = [replace(plan, group=group) for group in groups]
        self._specs = dict(zip(ROLES[plan.mode], state, strict=True))
        batch = [
            jax.ShapeDtypeStruct(shape, dtype)
            for shape, dtype in zip(plan.batch.shapes, plan.batch.dtypes, strict=True)
        ]
        self._batch = batch
        tree = jax.tree.unflatten(plan.batch.treedef, batch)
        self.split: Split = split_step(
            model, plan.mode, calls, marks, state, tree, plan.step_logs, plan.taps
        )
        self.taps = StageTaps(model, plan, self.split)
        self._passes: dict[int, Passes] = {}

    @cached_property
    def _trainable(self) -> list[Any]:
        return self._model.trainable_variables  # Keras walks through all layers for these

    @cached_property
    def update(self) -> SplitUpdate:
        """The update by stage."""
        return split_stage_update(
            self._model,
            self.split,
            self._specs["trainable"],
            self._specs["optimizer"],
            self._plan.accumulation,
            self._plan.taps,
        )

    @property
    def moves(self) -> bool:
        """Whether something of the state rests in host memory between its uses."""
        offload = self._plan.offload
        return bool(offload.optimizer_state or offload.accumulators or offload.weights)

    def layout(self, index: int, slot: Slot) -> jax.sharding.Sharding | None:
        """Returns how a value lies at a stage between updates; None: on its device."""
        if not self.moves:
            return None
        if slot.role == "gradient":
            stage, weight = contributions(self.split)[slot.index]
            return self._rests(index)[self.split.stages[stage].trainable.index(weight)]
        if slot.role in ("trainable", "optimizer"):
            return layout_of(self._plans[index], slot.role, self._slot(slot))
        return None

    def passes(self, stage: int) -> Passes:
        """The passes of a stage. Differentiated once."""
        if stage not in self._passes:
            self._passes[stage] = make_passes(
                self.split.stages[stage],
                self.split,
                self._plan.recompute,
                self._plan.group.platform,
            )
        return self._passes[stage]

    def _accumulator(self, stage: Stage) -> Accumulator:
        variables = [self._trainable[index] for index in stage.trainable]
        made, optimizer = (
            make_accumulator(variables, self._plan.accumulation),
            self._model.optimizer,
        )

        def add(accumulated: Any, gradients: Any, coefficient: Any) -> Any:
            return made.add(accumulated, prepared(optimizer, gradients, variables), coefficient)

        return replace(made, add=add)

    def _accumulated(self, stage: Stage) -> Any:
        zeros = jax.eval_shape(self._accumulator(stage).zeros)
        return at_rest(zeros, self._rests(stage.index))

    def _rests(self, index: int) -> list[Any]:
        """Returns how what a stage accumulates into rests in host memory; None: it does not."""
        zeros = jax.eval_shape(self._accumulator(self.split.stages[index]).zeros)
        if not self._plan.offload.accumulators:
            return [None] * len(zeros)
        plan = self._plans[index]
        return rests_of(plan, "gradient", zeros, plan.group.whole)

    def _with_sums(self, index: int, returns: bool = False, taps: bool = False) -> Any:
        """Returns the shardings of results of which one is what a stage accumulates into.

        All are said, or none: JAX would give results the memory of arguments of another kind.
        """
        if not self._plan.offload.accumulators:
            return None
        split = self._plans[index].group.split(0)
        sums = [rest or split for rest in self._rests(index)]
        if not (returns or taps):
            return sums
        return (*(split,) * returns, sums, *(self._tap_sharding(index),) * taps)

    def _tap_sharding(self, index: int) -> jax.sharding.Sharding:
        return self._plans[index].group.whole

    def _weights(self, stage: Stage) -> list[Any]:
        return [self._specs["trainable"][index] for index in stage.trainable]

    def _slot(self, slot: Slot) -> Any:
        return self._specs[slot.role][slot.index]

    def _value(self, number: int) -> jax.ShapeDtypeStruct:
        value = self.split.values[number]
        return jax.ShapeDtypeStruct(value.shape, value.dtype)

    def _cotangents(self, index: int) -> list[jax.ShapeDtypeStruct]:
        return [self._value(number) for number, _ in self.passes(index).cotangents]

    def _held(self, index: int) -> list[jax.ShapeDtypeStruct]:
        passes = self.passes(index)
        first = len(self.split.stages[index].trainable)
        return [spec_of(var) for var in passes.backward.invars[first : first + len(passes.held)]]

    def _program(
        self,
        name: str,
        index: int,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        donated: tuple[int, ...],
        results: Any = None,
    ) -> Program:
        name = f"{self._plan.mode.value}_{name} of stage {index}"
        return Program(name, function, arguments, None, donated, results)
