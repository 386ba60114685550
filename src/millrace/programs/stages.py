"""Stages -> programs.

    forward          weights, fixed, changing, batch, carried
                     -> sent, changing, results, residuals       (results: and what it taps)
    backward         weights, held, cotangents, accumulated, coefficient
                     -> returned, accumulated                    (and what it taps, if anything)
    backward_input   weights, held, cotangents
                     -> returned, kept
    backward_weight  weights, held, cotangents, kept, accumulated, coefficient
                     -> accumulated                              (and what it taps, if anything)
    zeros            -> accumulated
    partial, shared, final    the parts of an update: graph/split_update.py
    logs             metric values -> logs

Each is for one stage. `changing` is the state that the stage's forward changes, `fixed` what it
only reads. Lists are in the order of the records of `graph/stage.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import keras

from millrace._compat.jaxpr import as_function
from millrace.devices import DeviceGroup
from millrace.graph.calls import LayerCall
from millrace.graph.place import Marks
from millrace.graph.split_update import Part, SplitUpdate
from millrace.graph.stage import Slot, Split, Stage
from millrace.plan import Mode, Plan
from millrace.programs.accumulate import Accumulator, make_accumulator
from millrace.programs.build import Program
from millrace.programs.offload import at_rest, rests_of
from millrace.programs.passes import Passes, make_passes
from millrace.programs.shared_state import layout_of
from millrace.programs.split_step import split_step
from millrace.programs.stage_taps import StageTaps, bundle_of_update
from millrace.programs.stage_update import contributions, split_stage_update
from millrace.programs.state import ROLES, State
from millrace.programs.step import final_logs


class StageBuilder:
    """Makes the programs of one mode of a pipelined model, for one shape of batch."""

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

    def forward(self, index: int) -> Program:
        """One micro-batch through a stage."""
        stage = self.split.stages[index]
        graph = self.passes(index).forward if self._plan.mode is Mode.TRAIN else stage.graph
        run, tapped = as_function(graph), self.taps.forward(index)
        fixed, changing = state_groups(stage)
        order = [(fixed if s in fixed else changing).index(s) for s in stage.state]
        lead = self._plan.step_logs

        def forward(
            weights: Any, fixed_values: Any, changing_values: Any, batch: Any, carried: Any
        ) -> Any:
            state = [
                (fixed_values if slot in fixed else changing_values)[place]
                for slot, place in zip(stage.state, order, strict=True)
            ]
            outputs = run(*weights, *state, *batch, *carried)
            ends = [len(stage.sent), len(stage.new_state), len(stage.results), len(stage.taps)]
            sent, new, results, taps, residuals = _cut(outputs, ends)
            if lead:
                results = [leaf[None] for leaf in results]
            if tapped is not None:
                results += tapped.packed(taps)
            return sent, new, results, residuals

        arguments = (
            self._weights(stage),
            [self._slot(slot) for slot in fixed],
            [self._slot(slot) for slot in changing],
            [self._batch[leaf] for leaf in stage.batch],
            [self._value(number) for number in stage.carried],
        )
        return self._program("forward", index, forward, arguments, (2,))

    def backward(self, index: int) -> Program:
        """The gradients of one micro-batch at a stage, added to those before it."""
        stage, passes = self.split.stages[index], self.passes(index)
        run = as_function(passes.backward)
        add = self._accumulator(stage).add

        def backward(
            weights: Any, held: Any, cotangents: Any, accumulated: Any, coefficient: Any
        ) -> Any:
            outputs = run(*weights, *held, *cotangents)
            returned, gradients = _cut(outputs, [len(passes.returns)])
            tapped = self.taps.of_gradients(index, gradients)
            return returned, add(accumulated, gradients, coefficient), *tapped

        held, cotangents = self._held(index), self._cotangents(index)
        arguments = (
            self._weights(stage), held, cotangents, self._accumulated(stage), _FACTOR
        )  # fmt: skip
        results = self._with_sums(index, returns=True, taps=self.taps.backward(index) is not None)
        return self._program("backward", index, backward, arguments, (3,), results)

    def backward_input(self, index: int) -> Program:
        """What the stages before this one wait for."""
        stage, passes = self.split.stages[index], self.passes(index)
        run = as_function(passes.backward_input)

        def backward_input(weights: Any, held: Any, cotangents: Any) -> Any:
            return _cut(run(*weights, *held, *cotangents), [len(passes.returns)])

        arguments = (self._weights(stage), self._held(index), self._cotangents(index))
        return self._program("backward_input", index, backward_input, arguments, ())

    def backward_weight(self, index: int) -> Program:
        """The rest of backward: the gradients, added to those before them."""
        stage, passes = self.split.stages[index], self.passes(index)
        run = as_function(passes.backward_weight)
        add = self._accumulator(stage).add

        def backward_weight(
            weights: Any, held: Any, cotangents: Any, kept: Any, accumulated: Any, coefficient: Any
        ) -> Any:
            gradients = run(*weights, *held, *cotangents, *kept)
            added = add(accumulated, gradients, coefficient)
            tapped = self.taps.of_gradients(index, gradients)
            return (added, *tapped) if tapped else added

        held, cotangents = self._held(index), self._cotangents(index)
        kept = passes.backward_input.outvars[len(passes.returns) :]
        arguments = (
            self._weights(stage),
            [held[k] for k in passes.weight_held],
            [cotangents[k] for k in passes.weight_cotangents],
            [_spec(var) for var in kept],
            self._accumulated(stage),
            _FACTOR,
        )
        results = self._with_sums(index, taps=self.taps.backward(index) is not None)
        return self._program("backward_weight", index, backward_weight, arguments, (4,), results)

    def zeros(self, index: int) -> Program:
        """What a stage accumulates into."""
        zeros = self._accumulator(self.split.stages[index]).zeros
        return self._program("zeros", index, zeros, (), (), self._with_sums(index))

    def part(self, name: str, index: int, part: Part) -> Program:
        """A part of the update. Its first argument are the values that it replaces.

        Its results are its outputs, what it taps, and a zero to wait for: the outputs are replaced
        in their turn.
        """
        replaced, tapped = self.replaced(part), bundle_of_update(self.update.taps, part, index)
        run = as_function(part.graph)
        specs = dict(zip(part.inputs, map(_spec, part.graph.invars), strict=True))

        def update(old: Any, others: Any) -> Any:
            values = iter(others)
            given = dict(zip(replaced, old, strict=True))
            made = run(*(given[s] if s in given else next(values) for s in part.inputs))
            outputs, taps = _cut(made, [len(part.outputs)])
            return [*outputs, *(tapped.packed(taps) if tapped else []), jnp.zeros(())]

        arguments = (
            [specs[slot] for slot in replaced],
            [specs[slot] for slot in part.inputs if slot not in replaced],
        )
        program = self._program(name, index, update, arguments, (0,))
        return self._at_rest(program, index, part, replaced) if self.moves else program

    def _at_rest(
        self, program: Program, index: int, part: Part, replaced: Sequence[Slot]
    ) -> Program:
        """Returns a part of the update, with how its values lie between updates."""
        others = [slot for slot in part.inputs if slot not in replaced]
        arguments = tuple(
            at_rest(specs, [self.layout(index, slot) for slot in slots])
            for slots, specs in zip((replaced, others), program.arguments, strict=True)
        )
        tapped = bundle_of_update(self.update.taps, part, index)
        whole = self._plans[index].group.whole
        results = [self.layout(index, slot) or whole for slot in part.outputs]
        results += [whole] * (1 + (tapped.number if tapped else 0))
        return replace(program, arguments=arguments, results=results)

    def spec_of(self, slot: Slot) -> Any:
        """Returns the spec of a value that goes into a part of the update."""
        if slot.role in ROLES[self._plan.mode]:
            return self._slot(slot)
        update = self.update
        parts = [*update.partial.values(), *update.final.values()]
        parts += [update.shared] if update.shared is not None else []
        found = (
            var
            for part in parts
            for place, var in zip(part.inputs, part.graph.invars, strict=True)
            if place == slot
        )
        return _spec(next(found))

    def replaced(self, part: Part) -> list[Slot]:
        """Returns the inputs of a part whose memory its results take over."""
        others = [p for p in self.update.final.values() if p is not part]
        shared = {slot for p in others for slot in p.inputs}
        return [slot for slot in part.inputs if slot in part.outputs and slot not in shared]

    def logs(self, index: int) -> Program:
        """The logs that follow from the metrics' values."""
        metrics = list(self._specs["metric"])

        def logs(metrics: Any) -> Any:
            return final_logs(self._model, (metrics,))

        return self._program("logs", index, logs, (metrics,), ())

    def _accumulator(self, stage: Stage) -> Accumulator:
        variables = [self._model.trainable_variables[i] for i in stage.trainable]
        return make_accumulator(variables, self._plan.accumulation)

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
        return [_spec(var) for var in passes.backward.invars[first : first + len(passes.held)]]

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


_FACTOR = jax.ShapeDtypeStruct((), jnp.float32)


def state_groups(stage: Stage) -> tuple[list[Slot], list[Slot]]:
    """Returns the state that a stage's forward only reads, and that which it changes."""
    return [slot for slot in stage.state if slot not in stage.new_state], list(stage.new_state)


def _cut(values: Sequence[Any], lengths: Sequence[int]) -> list[list[Any]]:
    """Cuts a list into parts of these lengths, and a last one of what is left."""
    parts, begin = [], 0
    for length in lengths:
        parts.append(list(values[begin : begin + length]))
        begin += length
    return [*parts, list(values[begin:])]


def _spec(var: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
