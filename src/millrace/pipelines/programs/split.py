"""A traced step and the stage of each of its equations -> stages.

trainable, state, batch, carried  ->  [ stage ]  ->  sent, loss, new state, results, taps

A stage is the part of the step's graph that is placed in it, so what passes between stages follows
from the data flow: connections that skip stages, masks, several inputs and outputs need no rule.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from millrace._compat.jaxpr import Graph, Var, is_literal, used, variables, with_effects
from millrace.errors import ModelError
from millrace.pipelines.programs.place import Marks, place


@dataclass(frozen=True, slots=True)
class Slot:
    """One value of a step's inputs or outputs: its role, and its place among those of the role."""

    role: str  # in: "trainable", "non_trainable", "optimizer", "metric", "batch"
    index: int  # out: "loss", "non_trainable", "metric", "result", "tap"


@dataclass(frozen=True, slots=True)
class Value:
    """A value that one stage makes and later ones take."""

    producer: int  # stage
    consumers: tuple[int, ...]  # stages, ascending
    shape: tuple[int, ...]
    dtype: Any
    differentiable: bool  # whether a cotangent comes back for it

    @property
    def nbytes(self) -> int:
        """Bytes of one micro-batch's value."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the step with executables of its own."""

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
    taps: tuple[int, ...]  # leaves of what the step carries out besides


@dataclass(frozen=True, slots=True)
class Split:
    """A step as stages."""

    stages: tuple[Stage, ...]
    values: tuple[Value, ...]  # what passes between them, by number
    owners: Mapping[Slot, int]  # the stage at which a value of the state lives
    result: Any  # tree of the specs of the step's result
    taps: Any  # tree of the specs of what it carries out besides


STATE = ("trainable", "non_trainable", "optimizer", "metric")


def split(
    graph: Graph,
    inputs: Sequence[Slot],
    outputs: Sequence[Slot],
    result: Any,
    marks: Marks,
    describe: Callable[[Slot], str],
    taps: Any = None,
) -> Split:
    """Cuts a step into stages.

    Args:
        graph: the traced step.
        inputs: what each of its inputs is.
        outputs: what each of its outputs is.
        result: tree of the specs of those outputs that are results.
        marks: what the scopes in it stand for.
        describe: names a value of the state, for messages.
        taps: tree of the specs of those outputs that are taps.

    Raises:
        ModelError: if its stages cannot run as a pipeline.
    """
    slots = dict(zip(graph.invars, inputs, strict=True))
    graph = used(graph, graph.outvars, also=with_effects(graph))
    placed = place(graph, [var for var in slots if slots[var].role in STATE], marks)
    results = dict(zip(outputs, graph.outvars, strict=True))
    flow = _Flow(graph, slots, results, placed, marks.num_stages - 1)
    flow.check_state(describe)
    values = flow.values()
    numbers = {var: number for number, var in enumerate(values)}
    # A stage may be empty: one of Dropout alone computes nothing in evaluation.
    stages = tuple(flow.stage(index, numbers) for index in range(marks.num_stages))
    return Split(stages, tuple(values.values()), _owners(stages), result, taps)


class _Flow:
    """Who makes and who takes each variable of a placed graph."""

    def __init__(
        self,
        graph: Graph,
        slots: dict[Var, Slot],
        outputs: dict[Slot, Any],
        placed: Sequence[int],
        last: int,
    ):
        self._graph = graph
        self._slots = slots
        self._outputs = outputs
        self._placed = placed
        self._last = last
        self._made_in: dict[Var, int] = {}
        self._taken_in: dict[Var, set[int]] = {}
        for equation, stage in zip(graph.equations, placed, strict=True):
            self._made_in.update(dict.fromkeys(equation.outvars, stage))
            for var in variables(equation.invars):
                self._taken_in.setdefault(var, set()).add(stage)
        self._learns = self._follow_weights()

    def check_state(self, describe: Callable[[Slot], str]) -> None:
        """Refuses state that one stage changes and another one reads.

        Its value would depend on the order of tasks: with the forward of micro-batch 1 at stage 0
        before or after that of micro-batch 0 at stage 2.
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

    def values(self) -> dict[Var, Value]:
        """Returns what passes between stages, in the order in which it is made."""
        found: dict[Var, Value] = {}
        for equation, stage in zip(self._graph.equations, self._placed, strict=True):
            for var in equation.outvars:
                consumers = sorted(self._taken_in.get(var, set()) - {stage})
                if consumers:
                    aval = var.aval
                    learns = var in self._learns
                    found[var] = Value(stage, tuple(consumers), aval.shape, aval.dtype, learns)
        return found

    def stage(self, index: int, numbers: dict[Var, int]) -> Stage:
        """Returns the part of the graph that is placed in one stage."""
        sent = [var for var in numbers if self._made_in[var] == index]
        own = {
            slot: var for slot, var in self._outputs.items() if self._is_output_of(slot, var, index)
        }
        new_state = [slot for slot in own if slot.role in STATE]
        results = [slot for slot in own if slot.role == "result"]
        taps = [slot for slot in own if slot.role == "tap"]
        loss = [slot for slot in own if slot.role == "loss"]
        outvars = sent + [own[slot] for slot in (*loss, *new_state, *results, *taps)]
        effects = [
            equation
            for equation, stage in zip(self._graph.equations, self._placed, strict=True)
            if stage == index and equation.effects
        ]
        others = [var for var in numbers if self._made_in[var] != index]
        part = used(self._graph, outvars, others, effects)
        given = {self._slots[var]: var for var in part.invars if var in self._slots}
        trainable, batch = _of(given, "trainable"), _of(given, "batch")
        state = [slot for slot in given if slot.role not in ("trainable", "batch")]
        carried = [var for var in part.invars if var in numbers]
        invars = [given[slot] for slot in (*trainable, *state, *batch)] + carried
        return Stage(
            index=index,
            graph=Graph(tuple(invars), tuple(outvars), part.equations, part.constants),
            trainable=tuple(slot.index for slot in trainable),
            state=tuple(state),
            batch=tuple(slot.index for slot in batch),
            carried=tuple(numbers[var] for var in carried),
            sent=tuple(numbers[var] for var in sent),
            has_loss=bool(loss),
            new_state=tuple(new_state),
            results=tuple(slot.index for slot in results),
            taps=tuple(slot.index for slot in taps),
        )

    def _is_output_of(self, slot: Slot, var: Any, index: int) -> bool:
        if is_literal(var) or var not in self._made_in:
            # Nothing computes it: state that stays as it is, or an input that is a result.
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


def _is_floating(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def _owners(stages: Sequence[Stage]) -> dict[Slot, int]:
    """Returns where each value lives: where it changes, else where it is first read."""
    owners: dict[Slot, int] = {}
    for stage in stages:
        for slot in (*(Slot("trainable", i) for i in stage.trainable), *stage.state):
            owners.setdefault(slot, stage.index)
    for stage in stages:
        owners.update(dict.fromkeys(stage.new_state, stage.index))
    return owners
