"""The programs of a pipeline's stages.

    forward          weights, fixed, changing, batch, carried
                     -> sent, changing, results, residuals       (tapped values among the results)
    backward         weights, held, cotangents, accumulated, coefficient
                     -> returned, accumulated                    (then tapped values, if any)
    backward_input   weights, held, cotangents
                     -> returned, kept
    backward_weight  weights, held, cotangents, kept, accumulated, coefficient
                     -> nothing, accumulated                     (then tapped values, if any)
    zeros            -> accumulated
    partial, shared, final    the parts of an update: run/pipelines/programs/split_update.py
    logs             metric values -> logs

Each is for one stage. `changing` is the state that the stage's forward changes, `fixed` the state
that it only reads. Lists are in the order of the records of `run/pipelines/programs/split.py`.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp

from millrace._compat.jaxpr import Graph, as_function, spec_of
from millrace._compat.keras_steps import metric_logs
from millrace.base.pytrees import Spec
from millrace.programs.plan import Mode
from millrace.programs.steps.program import FACTOR, Program
from millrace.programs.steps.state import State
from millrace.run.pipelines.programs.split import Arrays, Slot
from millrace.run.pipelines.programs.split_update import SplitUpdate, UpdatePart
from millrace.run.pipelines.programs.stage_taps import bundle_of
from millrace.run.pipelines.programs.stages import StageLayouts, Stages, state_groups

T = TypeVar("T")
UPDATE_PARTS = ("partial", "shared", "final")


class StageBuilder:
    """Makes the programs of one mode of a pipelined model, for one shape of batch.

    These are the programs of one replica, from which `replica_builder.py` makes those of several.
    """

    def __init__(self, stages: Stages, layouts: StageLayouts):
        self.stages, self.layouts = stages, layouts

    def is_whole(self, index: int) -> list[bool]:
        """Returns for each value that a stage's forward changes whether all replicas share it."""
        return [True] * len(self.stages.split.stages[index].new_state)

    def program(self, name: str, index: int) -> Program:
        """Returns a program of a stage by its name."""
        if name in UPDATE_PARTS:
            return self.update_part(name, index)
        make: Callable[[int], Program] = getattr(self, name)
        return make(index)

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
            weights: Arrays,
            fixed_values: Arrays,
            changing_values: Arrays,
            batch: Arrays,
            carried: Arrays,
        ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
            state = [
                (fixed_values if slot in fixed else changing_values)[index]
                for slot, index in zip(stage.state, order, strict=True)
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
            self.layouts.weights(index),
            self.layouts.state(index, fixed),
            [self.stages.slot(slot) for slot in changing],
            [self.stages.batch[leaf] for leaf in stage.batch],
            [self.stages.value(number) for number in stage.carried],
        )
        return self.stages.program("forward", index, forward, arguments, (2,))

    def backward(self, index: int) -> Program:
        """The gradients of one micro-batch at a stage, added to the accumulators."""
        passes = self.stages.passes(index)
        inputs = (self.stages.held(index), self.stages.cotangents(index))
        return self._adding("backward", index, passes.backward, inputs, len(passes.returns))

    def backward_input(self, index: int) -> Program:
        """The half of backward that computes cotangents, for which earlier stages wait."""
        passes = self.stages.passes(index)
        run = as_function(passes.backward_input)

        def backward_input(weights: Arrays, held: Arrays, cotangents: Arrays) -> list[Arrays]:
            return _cut(run(*weights, *held, *cotangents), [len(passes.returns)])

        arguments = (
            self.layouts.weights(index),
            self.stages.held(index),
            self.stages.cotangents(index),
        )
        return self.stages.program("backward_input", index, backward_input, arguments, ())

    def backward_weight(self, index: int) -> Program:
        """The other half of backward: the gradients, added to the accumulators."""
        passes = self.stages.passes(index)
        held, cotangents = self.stages.held(index), self.stages.cotangents(index)
        inputs = (
            [held[k] for k in passes.weight_held],
            [cotangents[k] for k in passes.weight_cotangents],
            [spec_of(var) for var in passes.backward_input.outvars[len(passes.returns) :]],
        )
        return self._adding("backward_weight", index, passes.backward_weight, inputs)

    def _adding(
        self,
        name: str,
        index: int,
        graph: Graph,
        inputs: tuple[list[Spec], ...],
        returns: int = 0,
    ) -> Program:
        """Returns the program of a pass that adds gradients to the accumulators of a stage.

        Args:
            name: of the pass.
            index: of the stage.
            graph: of the pass.
            inputs: specs of its inputs after the weights.
            returns: number of cotangents that it returns before the gradients.
        """
        run = as_function(graph)
        add = self.stages.accumulator(self.stages.split.stages[index]).add
        values = self.stages.split.loss_values

        def adding(*arguments: Any) -> Any:
            *lists, accumulated, coefficient = arguments
            returned, gradients = _cut(run(*itertools.chain(*lists)), [returns])
            if values is not None:  # gradients are of the loss times the share that counts
                coefficient = coefficient * values
            tapped = self.stages.taps.of_gradients(index, gradients)
            return returned, add(accumulated, gradients, coefficient), *tapped

        layouts, results = self.layouts, None
        if (sums := layouts.sums(index)) is not None:
            taps = self.stages.taps.backward(index) is not None
            results = (layouts.plans[index].group.split(0), sums, *(layouts.of_taps(index),) * taps)
        arguments = (layouts.weights(index), *inputs, layouts.reduction(index).sums, FACTOR)
        return self.stages.program(name, index, adding, arguments, (len(inputs) + 1,), results)

    def zeros(self, index: int) -> Program:
        """The gradient accumulators of a stage, all zero."""
        zeros, results = self.layouts.reduction(index).zeros, self.layouts.sums(index)
        return self.stages.program("zeros", index, zeros, (), (), results)

    def update_part(self, name: str, index: int) -> Program:
        """One stage's part of the update, whose first argument are the values that it replaces.

        It returns its outputs, tapped values, and a zero to wait for, since later updates take
        over the memory of the outputs.
        """
        part = self.stages.update.parts[name, index]
        replaced, others = arguments_of(self.stages.update, part)
        tapped = bundle_of(self.stages.update.taps, part.taps, index)
        run = as_function(part.graph)
        specs = dict(zip(part.inputs, map(spec_of, part.graph.invars), strict=True))

        def update(replaced_values: Arrays, other_values: Arrays) -> Arrays:
            remaining = iter(other_values)
            old = dict(zip(replaced, replaced_values, strict=True))
            values = run(*(old[s] if s in old else next(remaining) for s in part.inputs))
            outputs, taps = _cut(values, [len(part.outputs)])
            return [*outputs, *(tapped.packed(taps) if tapped else []), jnp.zeros(())]

        arguments = tuple(
            self.layouts.specs(index, slots, [specs[slot] for slot in slots])
            for slots in (replaced, others)
        )
        results = self.layouts.results(index, part.outputs)
        if results is not None:
            whole = self.layouts.plans[index].group.whole
            results = results + [whole] * (1 + (tapped.number if tapped else 0))
        return self.stages.program(name, index, update, arguments, (0,), results)

    def spec_of(self, slot: Slot) -> Spec:
        """Returns the spec of an input of the update."""
        if slot.role in State._fields:
            return self.stages.slot(slot)
        variables = (
            var
            for part in self.stages.update.parts.values()
            for own, var in zip(part.inputs, part.graph.invars, strict=True)
            if own == slot
        )
        return spec_of(next(variables))

    def logs(self, index: int) -> Program:
        """The logs, computed from the values of the metrics."""
        metrics = list(self.stages.specs.metric)

        def logs(metrics: Arrays) -> object:
            return metric_logs(self.stages.model, metrics)

        return self.stages.program("logs", index, logs, (metrics,), ())


def arguments_of(update: SplitUpdate, part: UpdatePart) -> tuple[list[Slot], list[Slot]]:
    """Returns the inputs of a part of an update whose memory its outputs take over, and others."""
    parts = [p for p in update.final.values() if p is not part]
    replaced = set(part.outputs) - {slot for other in parts for slot in other.inputs}
    return (
        [slot for slot in part.inputs if slot in replaced],
        [slot for slot in part.inputs if slot not in replaced],
    )


def _cut(values: Sequence[T], lengths: Sequence[int]) -> list[list[T]]:
    """Cuts a list into lists of these lengths, and a last one of the remaining values."""
    pieces, begin = [], 0
    for length in lengths:
        pieces.append(list(values[begin : begin + length]))
        begin += length
    return [*pieces, list(values[begin:])]
