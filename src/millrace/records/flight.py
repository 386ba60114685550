"""A record of the update at which training went wrong, with all data to run it again.

record.json       the tensor, its place, and the options of the update
statistics.npz    the watched tensors of the last updates
state.npz         the model's values from before the update, by role
batches.npz       its micro-batches
model.keras       the model, as Keras saves it
"""

import contextlib
import json
import pathlib
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np

from millrace.errors import DataError
from millrace.records.arrays import read_arrays
from millrace.records.codec import decode
from millrace.records.json_text import parse_json
from millrace.records.printable import printable
from millrace.records.tensors import STATISTICS, NonFiniteData, Tensor

MODEL_FILE = "model.keras"
_DTYPE = re.compile(r"bool|(u?int|b?float|complex)\d+(_\w+)?")  # names of plain numbers
_LONGEST = 300  # characters of a reason in an error
_SHOWN = 4  # arguments and batches that are named
_RECORD, _STATISTICS, _STATE, _BATCHES = (
    "record.json", "statistics.npz", "state.npz", "batches.npz"
)  # fmt: skip
FILES = (_RECORD, _STATISTICS, _STATE, _BATCHES, MODEL_FILE)


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
    synchronized: bool = False  # whether its micro-batches shared batch statistics
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
        DataError: if there are none, or they are damaged.
    """
    path = directory / _RECORD
    if not path.is_file():
        names = sorted(p.name for p in directory.glob("*")) if directory.is_dir() else "nothing"
        raise DataError(
            f"{directory} holds no flight record: there is no {_RECORD}, only {names}. Give the "
            "directory that NaNWatch has printed."
        )
    try:
        return _flight(directory)
    except (OSError, ValueError) as error:
        raise DataError(
            f"The flight record {directory} cannot be read: {error}. Copy it again from where "
            "NaNWatch wrote it, and read it with the millrace that wrote it, or a newer one."
        ) from error


def _flight(directory: pathlib.Path) -> Flight:
    """Reads a flight record.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if one is damaged; the message names it.
    """
    with _names(_RECORD):
        data = parse_json((directory / _RECORD).read_bytes())
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")
        values = cast(dict[str, Any], data)
        record, rows = decode(FlightRecord, values), decode(_Rows, values)
        trees: object = values.get("batches")
        if not isinstance(trees, list):
            raise ValueError("it has no batches")
    with _names(_STATISTICS):
        statistics = read_arrays(directory / _STATISTICS).get("statistics", np.zeros(0))
        shape = len(rows.updates), len(rows.tensors), len(STATISTICS)
        if statistics.shape != shape or statistics.dtype.kind != "f" or not rows.updates:
            raise ValueError(f"it has statistics of the shape {statistics.shape}, not {shape}")
    with _names(_STATE):
        state = _load(directory / _STATE)
    with _names(_BATCHES):
        leaves = _load(directory / _BATCHES)
        batches = [
            _with_arrays(tree, leaves.get(str(k), []))
            for k, tree in enumerate(cast(list[object], trees))
        ]
    return Flight(
        record=record,
        updates=rows.updates,
        tensors=rows.tensors,
        statistics=statistics,
        state=state,
        batches=batches,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the rows and columns of the statistics are of."""

    updates: tuple[int, ...]
    tensors: tuple[Tensor, ...]


@contextlib.contextmanager
def _names(file: str) -> Generator[None]:
    """Names the file in errors about it.

    Raises:
        ValueError: in place of one without the name.
    """
    try:
        yield
    except ValueError as error:
        # zipfile repeats the bytes of the file.
        raise ValueError(f"{file}: {printable(str(error)[:_LONGEST])}") from error


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


def _with_arrays(tree: object, leaves: Sequence[np.ndarray]) -> Any:
    """Returns a structure with its arrays.

    Raises:
        ValueError: if `_without_arrays` has not returned it.
    """
    if tree is None:
        return None
    if isinstance(tree, int) and not isinstance(tree, bool) and 0 <= tree < len(leaves):
        return leaves[tree]
    if isinstance(tree, dict) and len(cast(dict[str, Any], tree)) == 1:
        ((kind, items),) = cast(dict[str, Any], tree).items()
        if kind == "dict" and isinstance(items, dict):
            named = cast(dict[str, object], items)
            return {key: _with_arrays(value, leaves) for key, value in named.items()}
        if kind in ("list", "tuple") and isinstance(items, list):
            values = [_with_arrays(value, leaves) for value in cast(list[object], items)]
            return values if kind == "list" else tuple(values)
    raise ValueError(f"a batch with {len(leaves)} arrays has another structure")


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
    """Reads the arrays that `_save` has written.

    Raises:
        ValueError: if they are damaged.
    """
    arrays = read_arrays(path)
    specs = decode(_Index, {"groups": parse_json(str(arrays.get("index", "")))})
    groups: dict[str, list[np.ndarray]] = {}
    for name, entries in specs.groups.items():
        groups[name] = []
        for number, (dtype, shape) in enumerate(entries):
            raw = arrays.get(f"{name}/{number}")
            if raw is None or not _DTYPE.fullmatch(dtype) or min(shape, default=0) < 0:
                raise ValueError(f"it has no array {number} of the group {name[:80]!r}")
            if raw.dtype.name != dtype:
                raw = np.frombuffer(raw.tobytes(), _dtype(dtype))
            groups[name].append(raw.reshape(shape))
    return groups


@dataclass(frozen=True, slots=True)
class _Index:
    """The dtype and the shape of each array of each group."""

    groups: Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]]


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError as error:
        raise ValueError(f"there is no dtype {name[:80]!r}") from error
