"""Statistics of tensors from training, and the parts of an update's data that are not finite."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from millrace.base.records.table_text import TableRecord

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
    values: np.ndarray  # [entries, tensors, statistics]


@dataclass(frozen=True, slots=True, eq=False)
class StatisticsBlock:
    """The statistics that one call of compiled code has returned."""

    steps: int
    updates: int
    of_steps: TensorRows | None  # an entry for each step (micro-batch)
    of_updates: TensorRows | None  # an entry for each update


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TensorSeries(TableRecord):
    """The statistics of one tensor over some steps, or over some updates."""

    model: str  # its name
    tensor: Tensor
    epoch: int  # from 1
    steps: tuple[int, ...]  # from 0, over all epochs and fits; the last step of an update
    # A row for each step or update, a column for each of `STATISTICS`.
    values: tuple[tuple[float, ...], ...]


_ARGUMENTS = ("x", "y", "sample_weight")


@dataclass(frozen=True, slots=True)
class NonFiniteData:
    """One argument of `fit` in one micro-batch, with NaNs or infinities in it."""

    argument: str  # "y", "sample_weight", "x['image']"
    micro_batch: int  # of the update
    row: int  # of the micro-batch, the first with such an element
    rows: int  # of the micro-batch
    nans: int  # elements
    infs: int

    def __str__(self) -> str:
        return (
            f"{self.argument} has {self.nans} NaN and {self.infs} infinite elements, "
            f"the first in row {self.row} of {self.rows}"
        )


def non_finite_data(batches: Iterable[Iterable[object]]) -> tuple[NonFiniteData, ...]:
    """Returns the arguments with NaNs or infinities in some micro-batches, in their order.

    Args:
        batches: as Keras's data adapters yield them: x, y and sample weights, each a tree.
    """
    return tuple(
        non_finite
        for number, batch in enumerate(batches)
        for name, leaf in named_arrays(batch)
        if (non_finite := _look(name, number, leaf)) is not None
    )


def named_arrays(batch: Iterable[object]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays of a batch by the arguments of `fit`, such as "y" or "x['image']".

    Args:
        batch: as Keras's data adapters yield it: x, y and sample weights, each a tree.
    """
    for argument, tree in zip(_ARGUMENTS, batch, strict=False):
        yield from _leaves(argument, tree)


def _leaves(name: str, tree: object) -> Iterator[tuple[str, np.ndarray]]:
    if tree is None:
        return
    if isinstance(tree, Mapping):
        for key, item in cast(Mapping[object, object], tree).items():
            yield from _leaves(f"{name}[{key!r}]", item)
    elif isinstance(tree, list | tuple):
        for key, item in enumerate(cast(Sequence[object], tree)):
            yield from _leaves(f"{name}[{key}]", item)
    else:
        yield name, np.asarray(tree)


def _look(name: str, number: int, leaf: np.ndarray) -> NonFiniteData | None:
    if leaf.dtype.kind in "iubOSU" or not leaf.ndim:
        return None
    values = leaf if leaf.dtype.kind == "f" else leaf.astype(np.float32)  # of bfloat16, say
    nans, infs = np.isnan(values), np.isinf(values)
    bad = (nans | infs).reshape(len(leaf), -1).any(axis=1)
    if not bad.any():
        return None
    counts = int(nans.sum()), int(infs.sum())
    return NonFiniteData(name, number, int(bad.argmax()), len(leaf), *counts)
