"""A record of the update at which training went wrong, with all data to run it again.

record.json       the tensor, its place, and the options of the update
statistics.npz    the watched tensors of the last updates
state.npz         the model's values from before the update, by role
batches.npz       its micro-batches
model.keras       the model, as Keras saves it
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np

from millrace.errors import DataError
from millrace.records.tensors import STATISTICS, NonFiniteData, Tensor

_JsonTree = int | dict[str, Any] | None  # a number of an array, or {"dict" or "list": ...}

MODEL_FILE = "model.keras"
_SHOWN = 4  # arguments and batches that are named
_RECORD, _STATISTICS, _STATE, _BATCHES = (
    "record.json", "statistics.npz", "state.npz", "batches.npz"
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightRecord:
    """The first tensor that was not finite, and its update. All numbers begin at 0."""

    model: str  # its name
    epoch: int
    step: int  # batches of this fit before those of the update, over all epochs
    update: int  # of this fit, over all epochs
    micro_batch: int | None  # of the update; None if it is not known
    tensor: Tensor | None  # None if running the update again found none
    nans: int = 0
    infs: int = 0
    stages: int = 1  # of the model as a pipeline
    micro_batches: int = 1  # that make the update
    reduction: str = "mean"  # of their gradients
    accumulator: str | None = None  # dtype of the accumulator of gradients
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    # Of the epoch, as Keras counts: that of the micro-batch, or else the first one of the update.
    batch: int | None = None
    data: tuple[NonFiniteData, ...] = ()  # arguments of the update that were not finite

    def __str__(self) -> str:
        if self.tensor is None:
            what = "a gradient is not finite, and no single tensor of it was found"
        else:
            stage = f" of stage {self.tensor.stage}" if self.stages > 1 else ""
            what = f"{self.tensor}{stage} has {self.nans} NaN and {self.infs} infinite elements"
        return f"{what} ({self._where()}, counted from 0)"

    def _where(self) -> str:
        where = f"epoch {self.epoch}, "
        if self.batch is not None and (self.micro_batch is not None or self.micro_batches == 1):
            where += f"batch {self.batch}, "
        elif self.batch is not None:
            where += f"batches {self.batch} to {self.batch + self.micro_batches - 1}, "
        where += f"update {self.update}"
        if self.micro_batch is not None and self.micro_batches > 1:
            where += f", micro-batch {self.micro_batch} of {self.micro_batches}"
        return where

    def of_data(self) -> list[str]:
        """Describes the data of the update that is not finite, a line per argument and batch."""
        first = None
        if self.batch is not None:
            first = self.batch - (self.micro_batch or 0)
        return [
            "The data is not finite: in "
            + (f"batch {first + one.micro_batch}, " if first is not None else "")
            + f"{one}, counted from 0."
            for one in self.data[:_SHOWN]
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightNote:
    """Where in a run a flight was recorded, and what it found."""

    model: str  # its name
    directory: str  # of the flight
    text: str  # of its record: the tensor and its place
    time: float  # seconds since 1970


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A flight record with its arrays."""

    record: FlightRecord
    updates: Sequence[int]  # numbers of the last updates
    tensors: Sequence[Tensor]  # that were watched in them
    statistics: np.ndarray  # [updates, tensors, 8]
    state: Mapping[str, Sequence[np.ndarray]]  # by role
    batches: Sequence[Any]  # trees of arrays


def write_flight(directory: pathlib.Path, flight: Flight) -> None:
    """Writes everything but the model."""
    directory.mkdir(parents=True, exist_ok=True)
    trees = [_without_arrays(batch) for batch in flight.batches]
    record = {
        **asdict(flight.record),
        "batches": [tree for tree, _ in trees],
        "tensors": [asdict(tensor) for tensor in flight.tensors],
        "updates": list(flight.updates),
        "columns": STATISTICS,
    }
    np.savez(directory / _STATISTICS, statistics=flight.statistics)
    _save(directory / _STATE, {role: list(values) for role, values in flight.state.items()})
    _save(directory / _BATCHES, {str(k): leaves for k, (_, leaves) in enumerate(trees)})
    # Last: a directory with a record is complete.
    (directory / _RECORD).write_text(json.dumps(record, indent=1))


def read_flight(directory: pathlib.Path) -> Flight:
    """Reads the files of `write_flight`.

    Raises:
        DataError: if there are none.
    """
    path = directory / _RECORD
    if not path.is_file():
        names = sorted(p.name for p in directory.glob("*")) if directory.is_dir() else "nothing"
        raise DataError(
            f"{directory} holds no flight record: there is no {_RECORD}, only {names}. Give the "
            "directory that NaNWatch has printed."
        )
    data = json.loads(path.read_text())
    data["data"] = tuple(NonFiniteData(**each) for each in data.get("data", ()))
    trees, tensors = data.pop("batches"), data.pop("tensors")
    updates = data.pop("updates")
    data.pop("columns")
    first = data.pop("tensor")
    leaves = _load(directory / _BATCHES)
    return Flight(
        record=FlightRecord(tensor=None if first is None else Tensor(**first), **data),
        updates=updates,
        tensors=[Tensor(**tensor) for tensor in tensors],
        statistics=np.load(directory / _STATISTICS)["statistics"],
        state=_load(directory / _STATE),
        batches=[_with_arrays(tree, leaves[str(k)]) for k, tree in enumerate(trees)],
    )


def _without_arrays(tree: object) -> tuple[Any, list[np.ndarray]]:
    """Returns a structure for JSON, with numbers in place of its arrays, and the arrays."""
    leaves: list[np.ndarray] = []

    def visit(node: object) -> object:
        if node is None:
            return None
        if isinstance(node, dict):
            items = cast(dict[object, object], node)
            return {"dict": {str(key): visit(value) for key, value in items.items()}}
        if isinstance(node, list | tuple):
            kind = "list" if isinstance(node, list) else "tuple"
            return {kind: [visit(item) for item in cast(Sequence[object], node)]}
        leaves.append(np.asarray(node))
        return len(leaves) - 1

    return visit(tree), leaves


def _with_arrays(tree: _JsonTree, leaves: Sequence[np.ndarray]) -> Any:
    if tree is None:
        return None
    if isinstance(tree, int):
        return leaves[tree]
    ((kind, items),) = tree.items()
    if kind == "dict":
        return {key: _with_arrays(value, leaves) for key, value in items.items()}
    values = [_with_arrays(value, leaves) for value in items]
    return values if kind == "list" else tuple(values)


def _save(path: pathlib.Path, groups: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Saves lists of arrays. NumPy's files have no bfloat16, so it is saved as bytes."""
    arrays: dict[str, np.ndarray] = {}
    index: dict[str, list[Any]] = {}
    for name, values in groups.items():
        index[name] = [(value.dtype.name, value.shape) for value in values]
        for number, value in enumerate(values):
            is_native = value.dtype.kind in "biufc"
            raw = value if is_native else np.frombuffer(value.tobytes(), np.uint8)
            arrays[f"{name}/{number}"] = raw
    arrays["index"] = np.array(json.dumps(index))
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _load(path: pathlib.Path) -> dict[str, list[np.ndarray]]:
    with np.load(path) as file:
        index = json.loads(str(file["index"]))
        groups: dict[str, list[np.ndarray]] = {}
        for name, specs in index.items():
            groups[name] = []
            for number, (dtype, shape) in enumerate(specs):
                raw = file[f"{name}/{number}"]
                if raw.dtype.name != dtype:
                    raw = np.frombuffer(raw.tobytes(), np.dtype(dtype))
                groups[name].append(raw.reshape(shape))
    return groups
