"""The stages of a pipeline as another process has cut them, without a trace of the model.

facts_of(builder)                    everything that a runner reads of stages, without their graphs
ImportedBuilder(facts, trace, ...)   a builder on these facts, which traces the model only if a
                                     program must be made after all
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

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
from millrace.run.pipelines.programs.split import Slot, Split, Stage
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
    stages = builder.stages
    numbers = range(len(stages.split.stages)) if trains else ()
    passes = {number: stages.passes(number) for number in numbers}
    return _without_graphs(StageFacts(stages.split, passes, stages.update if trains else None))


def _without_graphs(value: Any) -> Any:
    """Returns facts with an empty graph in place of each one in them."""
    if isinstance(value, Graph):
        return _NOTHING
    if type(value) is dict:
        return {key: _without_graphs(each) for key, each in value.items()}
    if type(value) is tuple:
        return tuple(map(_without_graphs, value))
    if isinstance(value, StageFacts | Split | Stage | Passes | SplitUpdate | UpdatePart):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: _without_graphs(getattr(value, name)) for name in names})
    return value


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

        def update() -> SplitUpdate:
            return facts.update or self._traced.stages.update

        passes = facts.passes.__getitem__
        stages = Stages(model, plan, state, facts.split, passes, update)
        super().__init__(stages, StageLayouts(stages, plan, groups))

    def program(self, name: str, index: int) -> Program:
        """Returns a program of a stage by its name; most of them need the trace."""
        if name in ("zeros", "logs"):
            return super().program(name, index)
        return self._traced.program(name, index)

    def spec_of(self, slot: Slot) -> Spec:
        """Returns the spec of an input of the update."""
        return self._traced.spec_of(slot)

    @cached_property
    def _traced(self) -> StageBuilder:
        return self._trace()


def is_exchangeable(builder: StageBuilder, plan: Plan) -> bool:
    """Whether other processes can use the facts about these stages: they must tap no values."""
    tapped = bool(jax.tree.leaves(builder.stages.split.taps))
    if plan.mode is Mode.TRAIN:
        tapped = tapped or bool(jax.tree.leaves(builder.stages.update.taps))
    return not tapped
