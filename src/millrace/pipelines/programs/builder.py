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
    partial, shared, final    the parts of an update: pipelines/programs/split_update.py
    logs             metric values -> logs

Each is for one stage. `changing` is the state that the stage's forward changes, `fixed` what it
only reads. Lists are in the order of the records of `pipelines/programs/split.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax.numpy as jnp

from millrace._compat.jaxpr import as_function, spec_of
from millrace.pipelines.programs.layouts import Layouts, moves, with_sums
from millrace.pipelines.programs.split import Slot
from millrace.pipelines.programs.split_update import SplitUpdate, UpdatePart
from millrace.pipelines.programs.stage_taps import bundle_of_update
from millrace.pipelines.programs.stages import Stages, state_groups
from millrace.plan import ROLES, Mode
from millrace.steps.offload import with_host_layouts
from millrace.steps.program import FACTOR, Program
from millrace.steps.step import final_logs


class ReplicatedBuilder(Protocol):
    """What only the programs of several replicas have."""

    def is_whole(self, index: int) -> list[bool]:
        """Returns which of the values that a stage's forward changes all replicas share."""
        ...

    def reduce_replicas(self, index: int) -> Program:
        """Adds up over replicas what an update left."""
        ...


class StageBuilder(Protocol):
    """Makes the programs of one mode of a pipelined model, for one shape of batch."""

    @property
    def stages(self) -> Stages:
        """The stages that the programs are of."""
        ...

    @property
    def layouts(self) -> Layouts:
        """How the values of the stages lie on their devices."""
        ...

    @property
    def replicated(self) -> ReplicatedBuilder | None:
        """What several replicas have besides; None for one."""
        ...

    def forward(self, index: int) -> Program:
        """One micro-batch through a stage."""
        ...

    def backward(self, index: int) -> Program:
        """The gradients of one micro-batch at a stage, added to those before it."""
        ...

    def backward_input(self, index: int) -> Program:
        """What the stages before this one wait for."""
        ...

    def backward_weight(self, index: int) -> Program:
        """The rest of backward: the gradients, added to those before them."""
        ...

    def zeros(self, index: int) -> Program:
        """What a stage accumulates into."""
        ...

    def part(self, name: str, index: int, part: UpdatePart) -> Program:
        """A part of the update. Its first argument are the values that it replaces.

        Its results are its outputs, what it taps, and a zero to wait for: the outputs are replaced
        in their turn.
        """
        ...

    def spec_of(self, slot: Slot) -> Any:
        """Returns the spec of a value that goes into a part of the update."""
        ...

    def logs(self, index: int) -> Program:
        """The logs that follow from the metrics' values."""
        ...


class OneReplicaBuilder:
    """Makes the programs of one replica."""

    replicated = None

    def __init__(self, stages: Stages, layouts: Layouts):
        """Makes none yet.

        Args:
            stages: of the model.
            layouts: of their values.
        """
        self.stages, self.layouts = stages, layouts

    def forward(self, index: int) -> Program:
        """One micro-batch through a stage."""
        stage = self.stages.split.stages[index]
        graph = (
            self.stages.passes(index).forward
            if self.stages.plan.mode is Mode.TRAIN
            else stage.graph
        )
        run, tapped = as_function(graph), self.stages.taps.forward(index)
        fixed, changing = state_groups(stage)
        order = [(fixed if s in fixed else changing).index(s) for s in stage.state]
        lead = self.stages.plan.step_logs

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
            self.stages.weights(stage),
            [self.stages.slot(slot) for slot in fixed],
            [self.stages.slot(slot) for slot in changing],
            [self.stages.batch[leaf] for leaf in stage.batch],
            [self.stages.value(number) for number in stage.carried],
        )
        return self.stages.program("forward", index, forward, arguments, (2,))

    def backward(self, index: int) -> Program:
        """The gradients of one micro-batch at a stage, added to those before it."""
        stage, passes = self.stages.split.stages[index], self.stages.passes(index)
        run = as_function(passes.backward)
        add = self.stages.accumulator(stage).add

        def backward(
            weights: Any, held: Any, cotangents: Any, accumulated: Any, coefficient: Any
        ) -> Any:
            outputs = run(*weights, *held, *cotangents)
            returned, gradients = _cut(outputs, [len(passes.returns)])
            tapped = self.stages.taps.of_gradients(index, gradients)
            return returned, add(accumulated, gradients, coefficient), *tapped

        held, cotangents = self.stages.held(index), self.stages.cotangents(index)
        arguments = (
            self.stages.weights(stage), held, cotangents, self.layouts.accumulated(stage), FACTOR
        )  # fmt: skip
        results = with_sums(
            self.layouts, index, returns=True, taps=self.stages.taps.backward(index) is not None
        )
        return self.stages.program("backward", index, backward, arguments, (3,), results)

    def backward_input(self, index: int) -> Program:
        """What the stages before this one wait for."""
        stage, passes = self.stages.split.stages[index], self.stages.passes(index)
        run = as_function(passes.backward_input)

        def backward_input(weights: Any, held: Any, cotangents: Any) -> Any:
            return _cut(run(*weights, *held, *cotangents), [len(passes.returns)])

        arguments = (
            self.stages.weights(stage),
            self.stages.held(index),
            self.stages.cotangents(index),
        )
        return self.stages.program("backward_input", index, backward_input, arguments, ())

    def backward_weight(self, index: int) -> Program:
        """The rest of backward: the gradients, added to those before them."""
        stage, passes = self.stages.split.stages[index], self.stages.passes(index)
        run = as_function(passes.backward_weight)
        add = self.stages.accumulator(stage).add

        def backward_weight(
            weights: Any, held: Any, cotangents: Any, kept: Any, accumulated: Any, coefficient: Any
        ) -> Any:
            gradients = run(*weights, *held, *cotangents, *kept)
            added = add(accumulated, gradients, coefficient)
            tapped = self.stages.taps.of_gradients(index, gradients)
            return (added, *tapped) if tapped else added

        held, cotangents = self.stages.held(index), self.stages.cotangents(index)
        kept = passes.backward_input.outvars[len(passes.returns) :]
        arguments = (
            self.stages.weights(stage),
            [held[k] for k in passes.weight_held],
            [cotangents[k] for k in passes.weight_cotangents],
            [spec_of(var) for var in kept],
            self.layouts.accumulated(stage),
            FACTOR,
        )
        results = with_sums(self.layouts, index, taps=self.stages.taps.backward(index) is not None)
        return self.stages.program(
            "backward_weight", index, backward_weight, arguments, (4,), results
        )

    def zeros(self, index: int) -> Program:
        """What a stage accumulates into."""
        zeros = self.stages.accumulator(self.stages.split.stages[index]).zeros
        return self.stages.program("zeros", index, zeros, (), (), with_sums(self.layouts, index))

    def part(self, name: str, index: int, part: UpdatePart) -> Program:
        """A part of the update. Its first argument are the values that it replaces.

        Its results are its outputs, what it taps, and a zero to wait for: the outputs are replaced
        in their turn.
        """
        replaced = replaced_by(self.stages.update, part)
        tapped = bundle_of_update(self.stages.update.taps, part, index)
        run = as_function(part.graph)
        specs = dict(zip(part.inputs, map(spec_of, part.graph.invars), strict=True))

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
        program = self.stages.program(name, index, update, arguments, (0,))
        return self._at_rest(program, index, part, replaced) if moves(self.stages.plan) else program

    def _at_rest(
        self, program: Program, index: int, part: UpdatePart, replaced: Sequence[Slot]
    ) -> Program:
        """Returns a part of the update, with how its values lie between updates."""
        others = [slot for slot in part.inputs if slot not in replaced]
        arguments = tuple(
            with_host_layouts(specs, [self.layouts.of(index, slot) for slot in slots])
            for slots, specs in zip((replaced, others), program.arguments, strict=True)
        )
        tapped = bundle_of_update(self.stages.update.taps, part, index)
        whole = self.layouts.plans[index].group.whole
        results = [self.layouts.of(index, slot) or whole for slot in part.outputs]
        results += [whole] * (1 + (tapped.number if tapped else 0))
        return replace(program, arguments=arguments, results=results)

    def spec_of(self, slot: Slot) -> Any:
        """Returns the spec of a value that goes into a part of the update."""
        if slot.role in ROLES[self.stages.plan.mode]:
            return self.stages.slot(slot)
        update = self.stages.update
        parts = [*update.partial.values(), *update.final.values()]
        parts += [update.shared] if update.shared is not None else []
        found = (
            var
            for part in parts
            for place, var in zip(part.inputs, part.graph.invars, strict=True)
            if place == slot
        )
        return spec_of(next(found))

    def logs(self, index: int) -> Program:
        """The logs that follow from the metrics' values."""
        metrics = list(self.stages.specs["metric"])

        def logs(metrics: Any) -> Any:
            return final_logs(self.stages.model, (metrics,))

        return self.stages.program("logs", index, logs, (metrics,), ())


def replaced_by(update: SplitUpdate, part: UpdatePart) -> list[Slot]:
    """Returns the inputs of a part of an update whose memory its results take over."""
    others = [p for p in update.final.values() if p is not part]
    replaced = set(part.outputs) - {slot for other in others for slot in other.inputs}
    return [slot for slot in part.inputs if slot in replaced]


def _cut(values: Sequence[Any], lengths: Sequence[int]) -> list[list[Any]]:
    """Cuts a list into parts of these lengths, and a last one of what is left."""
    parts, begin = [], 0
    for length in lengths:
        parts.append(list(values[begin : begin + length]))
        begin += length
    return [*parts, list(values[begin:])]
