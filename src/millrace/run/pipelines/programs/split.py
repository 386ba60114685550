"""A traced step and the stage of each of its equations -> stages.

trainable, state, batch, carried  ->  [ stage ]  ->  sent, loss, new state, results, taps

A stage has the equations of the step's graph that are assigned to it. The values passed between
stages follow from the data flow: connections that skip stages, masks, several inputs and outputs
need no rule.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from millrace._compat.jaxpr import Graph, Var, is_literal, used, variables, with_effects
from millrace.base.pytrees import SpecTree
from millrace.errors import ModelError
from millrace.programs.taps.taps import Tapped
from millrace.run.pipelines.programs.equation_stages import Marks, stages_of_equations

Arrays = list[jax.Array]  # in the order of a field of the records below


@dataclass(frozen=True, slots=True)
class Slot:
    """One value of a step's inputs or outputs: its role, and its index within the role."""

    role: str  # in: "trainable", "non_trainable", "optimizer", "metric", "batch"
    index: int  # out: "loss", "non_trainable", "metric", "result", "tap", "share"


@dataclass(frozen=True, slots=True)
class StageValue:
    """A value that one stage computes and later stages take."""

    producer: int  # stage
    consumers: tuple[int, ...]  # stages, ascending
    shape: tuple[int, ...]
    dtype: np.dtype
    differentiable: bool  # whether a cotangent comes back for it

    @property
    def nbytes(self) -> int:
        """Bytes of the value for one micro-batch."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Stage:
    """The equations of one stage, with their inputs and outputs."""

    index: int
    graph: Graph  # inputs and outputs below, in this order
    trainable: tuple[int, ...]
    state: tuple[Slot, ...]  # other values of the model that it reads
    batch: tuple[int, ...]  # leaves of the batch
    carried: tuple[int, ...]  # numbers of values of earlier stages
    sent: tuple[int, ...]  # numbers of values for later stages
    has_loss: bool
    new_state: tuple[Slot, ...]
    results: tuple[int, ...]  # leaves of the step's result: logs or predictions
    taps: tuple[int, ...]  # leaves of the step's tapped values
    # Whether it ends with the share of values that its loss counts: those of a mask, or of weights.
    has_share: bool = False

    @property
    def accumulated(self) -> tuple[int, ...]:
        """The weights whose gradients it adds up, and -1 for the weights of micro-batches."""
        return (*self.trainable, *[-1] * self.has_share)


@dataclass(frozen=True, slots=True)
class Split:
    """A step cut into stages."""

    stages: tuple[Stage, ...]
    values: tuple[StageValue, ...]  # passed between stages, by number
    owners: Mapping[Slot, int]  # the stage at which a value of the state lives
    result: SpecTree  # of the step
    taps: Tapped  # specs of the values that the step taps
    loss_values: float | None = None  # of each row; None where losses do not weigh


NO_TAPPED = Tapped()
STATE = ("trainable", "non_trainable", "optimizer", "metric")


def split(
    graph: Graph,
    inputs: Sequence[Slot],
    outputs: Sequence[Slot],
    result: SpecTree,
    marks: Marks,
    describe: Callable[[Slot], str],
    taps: Tapped = NO_TAPPED,
    loss_values: float | None = None,
) -> Split:
    """Cuts a step into stages.

    Args:
        graph: the traced step.
        inputs: the slot of each input.
        outputs: the slot of each output.
        result: specs of the outputs that are the step's result.
        marks: the meaning of its scopes.
        describe: returns a name for a value of the state, for messages.
        taps: specs of the outputs that are tapped values.
        loss_values: as in `Split`.

    Raises:
        ModelError: if its stages cannot run as a pipeline.
    """
    slots = dict(zip(graph.invars, inputs, strict=True))
    graph = used(graph, graph.outvars, also=with_effects(graph))
    state = {var: slot for var, slot in slots.items() if slot.role in STATE}
    results = dict(zip(outputs, graph.outvars, strict=True))
    renewed = {results[slot]: var for var, slot in state.items() if slot in results}
    changed = {new: old for new, old in renewed.items() if not is_literal(new) and new is not old}
    of_equations = stages_of_equations(graph, list(state), marks, changed)
    flow = _StepFlow(graph, slots, results, of_equations, marks.num_stages - 1)
    flow.check_state(describe)
    values = flow.values()
    numbers = {var: number for number, var in enumerate(values)}
    # A stage may be empty: one of Dropout alone computes nothing in evaluation.
    stages = tuple(flow.stage(index, numbers) for index in range(marks.num_stages))
    return Split(stages, tuple(values.values()), _owners(stages), result, taps, loss_values)


class _StepFlow:
    """The stages that compute and take each variable of a graph."""

    def __init__(
        self,
        graph: Graph,
        slots: dict[Var, Slot],
        outputs: dict[Slot, Var | Literal],
        stage_of_equations: Sequence[int],
        last: int,
    ):
        self._graph = graph
        self._slots = slots
        self._outputs = outputs
        self._stages = stage_of_equations
        self._last = last
        self._made_in: dict[Var, int] = {}
        self._taken_in: dict[Var, set[int]] = {}
        for equation, stage in zip(graph.equations, stage_of_equations, strict=True):
            self._made_in.update(dict.fromkeys(equation.outvars, stage))
            for var in variables(equation.invars):
                self._taken_in.setdefault(var, set()).add(stage)
        self._learns = self._follow_weights()

    def check_state(self, describe: Callable[[Slot], str]) -> None:
        """Refuses state that one stage changes and another stage reads.

        Its value would depend on the order of tasks: on whether the forward of micro-batch 1 at
        stage 0 runs before or after that of micro-batch 0 at stage 2.
        """
        by_slot = {slot: var for var, slot in self._slots.items()}
        for slot, new in self._outputs.items():
            old = by_slot.get(slot)
            if slot.role not in STATE or old is None or new is old or is_literal(new):
                continue
            stages = sorted(self._taken_in.get(old, set()) | {self._made_in.get(new, self._last)})
            if len(stages) > 1:
                raise ModelError(
                    f"{describe(slot)} changes with every micro-batch and is used by the stages "
                    f"{stages}, so its value would depend on which of them runs first. Call the "
                    "layer that it belongs to on one stage only, or use a layer of its own for "
                    "each."
                )

    def values(self) -> dict[Var, StageValue]:
        """Returns the values passed between stages, in the order in which they are computed."""
        values: dict[Var, StageValue] = {}
        for equation, stage in zip(self._graph.equations, self._stages, strict=True):
            for var in equation.outvars:
                consumers = sorted(self._taken_in.get(var, set()) - {stage})
                if consumers:
                    aval = var.aval
                    learns = var in self._learns
                    values[var] = StageValue(
                        stage, tuple(consumers), aval.shape, aval.dtype, learns
                    )
        return values

    def stage(self, index: int, numbers: dict[Var, int]) -> Stage:
        sent = [var for var in numbers if self._made_in[var] == index]
        own = {
            slot: var for slot, var in self._outputs.items() if self._is_output_of(slot, var, index)
        }
        new_state = [slot for slot in own if slot.role in STATE]
        results = [slot for slot in own if slot.role == "result"]
        taps = [slot for slot in own if slot.role == "tap"]
        loss = [slot for slot in own if slot.role == "loss"]
        share = [slot for slot in own if slot.role == "share"]
        outvars = sent + [own[slot] for slot in (*loss, *new_state, *results, *taps, *share)]
        effects = [
            equation
            for equation, stage in zip(self._graph.equations, self._stages, strict=True)
            if stage == index and equation.effects
        ]
        others = [var for var in numbers if self._made_in[var] != index]
        graph = used(self._graph, outvars, others, effects)
        inputs = {self._slots[var]: var for var in graph.invars if var in self._slots}
        trainable, batch = _of(inputs, "trainable"), _of(inputs, "batch")
        state = [slot for slot in inputs if slot.role not in ("trainable", "batch")]
        carried = [var for var in graph.invars if var in numbers]
        invars = [inputs[slot] for slot in (*trainable, *state, *batch)] + carried
        return Stage(
            index=index,
            graph=replace(graph, invars=tuple(invars)),
            trainable=tuple(slot.index for slot in trainable),
            state=tuple(state),
            batch=tuple(slot.index for slot in batch),
            carried=tuple(numbers[var] for var in carried),
            sent=tuple(numbers[var] for var in sent),
            has_loss=bool(loss),
            new_state=tuple(new_state),
            results=tuple(slot.index for slot in results),
            taps=tuple(slot.index for slot in taps),
            has_share=bool(share),
        )

    def _is_output_of(self, slot: Slot, var: Var | Literal, index: int) -> bool:
        if is_literal(var) or var not in self._made_in:
            # No equation computes it: unchanged state, or an input that is a result.
            return slot.role not in STATE and index == self._last
        return self._made_in[var] == index

    def _follow_weights(self) -> set[Var]:
        """Returns the variables through which a trainable weight could change the loss."""
        learns = {var for var, slot in self._slots.items() if slot.role == "trainable"}
        for equation in self._graph.equations:
            if any(var in learns for var in variables(equation.invars)):
                learns.update(v for v in equation.outvars if _is_floating(v.aval.dtype))
        return learns


def _of(slots: dict[Slot, Var], role: str) -> list[Slot]:
    return [slot for slot in slots if slot.role == role]


def _is_floating(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def _owners(stages: Sequence[Stage]) -> dict[Slot, int]:
    """Returns the stage of each value: the one that changes it, else the first that reads it."""
    owners: dict[Slot, int] = {}
    for stage in stages:
        for slot in (*(Slot("trainable", i) for i in stage.trainable), *stage.state):
            owners.setdefault(slot, stage.index)
    for stage in stages:
        owners.update(dict.fromkeys(stage.new_state, stage.index))
    return owners
