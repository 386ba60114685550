"""The stages of a pipeline as another process has cut them, without a trace of the model.

facts_of(builder)                what a runner asks of stages, and none of their graphs
ImportedBuilder(facts, trace, ...)   a builder that answers from them, and traces where a program
                                 must be made after all
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import keras

from millrace._compat.jaxpr import Graph
from millrace.devices import DeviceGroup
from millrace.pipelines.programs.builder import OneReplicaBuilder, StageBuilder
from millrace.pipelines.programs.layouts import DeviceLayouts, Layouts
from millrace.pipelines.programs.passes import Passes
from millrace.pipelines.programs.split import Slot, Split
from millrace.pipelines.programs.split_update import SplitUpdate, UpdatePart
from millrace.pipelines.programs.stages import Stages
from millrace.plan import Mode, Plan
from millrace.steps.program import Program
from millrace.steps.state import State

_NOTHING = Graph((), (), (), {})


@dataclass(frozen=True, slots=True)
class StageFacts:
    """What is known of stages besides their equations."""

    split: Split
    passes: Mapping[int, Passes]  # by stage; of training
    update: SplitUpdate | None  # of training


def facts_of(builder: StageBuilder, trains: bool) -> StageFacts:
    """Returns what is known of a builder's stages."""
    stages = builder.stages.split.stages
    return StageFacts(
        split=replace(
            builder.stages.split,
            stages=tuple(replace(stage, graph=_NOTHING) for stage in stages),
            owners=dict(builder.stages.split.owners),
        ),
        passes={k: _bare_passes(builder.stages.passes(k)) for k in range(len(stages)) if trains},
        update=_bare_update(builder.stages.update) if trains else None,
    )


def _bare_passes(passes: Passes) -> Passes:
    return replace(
        passes,
        forward=_NOTHING,
        backward=_NOTHING,
        backward_input=_NOTHING,
        backward_weight=_NOTHING,
    )


def _bare_update(update: SplitUpdate) -> SplitUpdate:
    def bare(parts: Mapping[int, UpdatePart]) -> dict[int, UpdatePart]:
        return {stage: replace(part, graph=_NOTHING) for stage, part in parts.items()}

    shared = update.shared
    return replace(
        update,
        partial=bare(update.partial),
        shared=None if shared is None else replace(shared, graph=_NOTHING),
        final=bare(update.final),
        owners=dict(update.owners),
    )


class ImportedBuilder:
    """Makes the programs of stages that are known, if they are not there already."""

    replicated = None

    def __init__(
        self,
        facts: StageFacts,
        trace: Callable[[], StageBuilder],
        model: keras.Model,
        plan: Plan,
        state: State,
        groups: Sequence[DeviceGroup],
    ):
        """Traces nothing.

        Args:
            facts: of the stages.
            trace: returns their builder.
            model: a compiled Keras model.
            plan: of the mode and batch.
            state: specs of the state.
            groups: of each stage.
        """
        self._trace = trace
        self._traced: StageBuilder | None = None

        def update() -> SplitUpdate:
            return facts.update or self._builder().stages.update

        passes = facts.passes.__getitem__
        self.stages = Stages(model, plan, state, facts.split, passes, update)
        plans = [replace(plan, group=group) for group in groups]
        self.layouts: Layouts = DeviceLayouts(self.stages, plans)
        self._without_trace = OneReplicaBuilder(self.stages, self.layouts)

    def forward(self, index: int) -> Program:
        """One micro-batch through a stage."""
        return self._builder().forward(index)

    def backward(self, index: int) -> Program:
        """The gradients of one micro-batch at a stage, added to those before it."""
        return self._builder().backward(index)

    def backward_input(self, index: int) -> Program:
        """What the stages before this one wait for."""
        return self._builder().backward_input(index)

    def backward_weight(self, index: int) -> Program:
        """The rest of backward: the gradients, added to those before them."""
        return self._builder().backward_weight(index)

    def zeros(self, index: int) -> Program:
        """What a stage accumulates into."""
        return self._without_trace.zeros(index)

    def part(self, name: str, index: int, part: UpdatePart) -> Program:
        """A part of the update."""
        builder = self._builder()
        update = builder.stages.update
        parts = {"partial": update.partial, "final": update.final}
        whole = update.shared if name == "shared" else parts[name][index]
        return builder.part(name, index, whole or part)

    def spec_of(self, slot: Slot) -> Any:
        """Returns the spec of a value that goes into a part of the update."""
        return self._builder().spec_of(slot)

    def logs(self, index: int) -> Program:
        """The logs that follow from the metrics' values."""
        return self._without_trace.logs(index)

    def _builder(self) -> StageBuilder:
        if self._traced is None:
            self._traced = self._trace()
        return self._traced


def is_exchangeable(builder: StageBuilder, plan: Plan) -> bool:
    """Whether what is known of stages is of use to others: none of their values is tapped."""
    tapped = bool(jax.tree.leaves(builder.stages.split.taps))
    if plan.mode is Mode.TRAIN:
        tapped = tapped or bool(jax.tree.leaves(builder.stages.update.taps))
    return not tapped
