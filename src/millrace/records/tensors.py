"""Tensors that were looked at while a model trained."""

from dataclasses import dataclass
from typing import Any

STATISTICS = ("mean", "std", "min", "max", "norm", "zeros", "nans", "infs")
COUNTS = slice(6, 8)  # the last two
# mean, standard deviation of the population, smallest, largest, Euclidean norm, share of zeros
# (0 to 1), and how many elements are NaN or infinite.


@dataclass(frozen=True, slots=True)
class Tensor:
    """An activation, the loss or a gradient, by name."""

    kind: str  # "activation", "loss" or "gradient"
    name: str  # of a layer or variable, below the layers around it: "encoder/dense/kernel"
    stage: int = 0  # of a pipeline

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"the {self.kind}"


LOSS = Tensor("loss", "")


@dataclass(frozen=True, slots=True, eq=False)
class TensorRows:
    """Statistics of some tensors, entry by entry."""

    tensors: tuple[Tensor, ...]
    values: Any  # NumPy, [entries, tensors, statistics]


@dataclass(frozen=True, slots=True, eq=False)
class StatisticsBlock:
    """What one call of compiled code has carried out."""

    steps: int
    updates: int
    of_steps: TensorRows | None  # an entry for each step (micro-batch)
    of_updates: TensorRows | None  # an entry for each update
