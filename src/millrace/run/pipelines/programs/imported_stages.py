"""The stages of a pipeline as another process has cut them, without a trace of the model.

facts_of(builder)                    everything that a runner reads of stages, without their graphs
ImportedBuilder(facts, trace, ...)   a builder on these facts, which traces the model only if a
                                     program must be made after all
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import keras

from millrace._compat.jaxpr import Graph
from millrace.base.devices import DeviceGroup
from millrace.base.pytrees import Spec
from millrace.programs.plan import Mode, Plan
from millrace.programs.steps.program import Program
from millrace.programs.steps.state import State
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.passes import Passes
from millrace.run.pipelines.programs.split import Slot, Split
from millrace.run.pipelines.programs.split_update import SplitUpdate, UpdatePart
from millrace.run.pipelines.programs.stages import StageLayouts, Stages

_NOTHING = Graph((), (), (), {})


@dataclass(frozen=True, slots=True)
class StageFacts:
    """Everything about stages except their equations."""

    split: Split
    passes: Mapping[int, Passes]  # by stage; of training
    update: SplitUpdate | None  # of training


def facts_of(builder: StageBuilder, trains: bool) -> StageFacts:
    """Returns the facts about a builder's stages."""
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


class ImportedBuilder(StageBuilder):
    """Makes the programs of imported stages, where they have not been imported themselves."""

    def __init__(
        self,
        facts: StageFacts,
        trace: Callable[[], StageBuilder],
        model: keras.Model,
        plan: Plan,
        state: State,
        groups: Sequence[DeviceGroup],
    ):
        """Prepares the programs, tracing nothing.

        Args:
            facts: about the stages.
            trace: traces the model, and returns the builder of its stages.
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
        stages = Stages(model, plan, state, facts.split, passes, update)
        plans = [replace(plan, group=group) for group in groups]
        super().__init__(stages, StageLayouts(stages, plans))

    def forward(self, index: int) -> Program:
        """One micro-batch through a stage."""
        return self._builder().forward(index)

    def backward(self, index: int) -> Program:
        """The gradients of one micro-batch at a stage, added to the accumulators."""
        return self._builder().backward(index)

    def backward_input(self, index: int) -> Program:
        """The half of backward that computes cotangents, for which earlier stages wait."""
        return self._builder().backward_input(index)

    def backward_weight(self, index: int) -> Program:
        """The other half of backward: the gradients, added to the accumulators."""
        return self._builder().backward_weight(index)

    def update_part(self, name: str, index: int, part: UpdatePart) -> Program:
        """One stage's part of the update."""
        builder = self._builder()
        update = builder.stages.update
        parts = {"partial": update.partial, "final": update.final}
        whole = update.shared if name == "shared" else parts[name][index]
        return builder.update_part(name, index, whole or part)

    def spec_of(self, slot: Slot) -> Spec:
        """Returns the spec of an input of the update."""
        return self._builder().spec_of(slot)

    def _builder(self) -> StageBuilder:
        if self._traced is None:
            self._traced = self._trace()
        return self._traced


def is_exchangeable(builder: StageBuilder, plan: Plan) -> bool:
    """Whether other processes can use the facts about these stages: they must tap no values."""
    tapped = bool(jax.tree.leaves(builder.stages.split.taps))
    if plan.mode is Mode.TRAIN:
        tapped = tapped or bool(jax.tree.leaves(builder.stages.update.taps))
    return not tapped
