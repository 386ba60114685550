"""What a stage is: a part of the traced step, and what goes in and out of it.

trainable, state, batch, carried  ->  [ stage ]  ->  sent, loss, new state, results, taps
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace._compat.jaxpr import Graph


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
