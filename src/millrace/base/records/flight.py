"""A record of the update at which training went wrong, with its batches.

record.json       the tensor and its place
statistics.npz    the watched tensors of the last updates
batches.npz       the micro-batches of the update: "0/x", "0/y", "1/x['image']", ...
model.keras       the model as it was before the update, as Keras saves it
"""

import contextlib
import json
import pathlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from millrace.base.records.tensors import STATISTICS, NonFiniteData, Tensor, named_arrays

MODEL_FILE = "model.keras"
_SHOWN = 4  # arguments and batches that are named
_RECORD, _STATISTICS, _BATCHES = "record.json", "statistics.npz", "batches.npz"


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
        first = None if self.batch is None else self.batch - (self.micro_batch or 0)
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
    batches: Sequence[Iterable[object]]  # x, y and sample weights, each a tree of arrays


def write_flight(directory: pathlib.Path, flight: Flight) -> None:
    """Writes everything but the model."""
    directory.mkdir(parents=True, exist_ok=True)
    record = {
        **asdict(flight.record),
        "tensors": [asdict(tensor) for tensor in flight.tensors],
        "updates": list(flight.updates),
        "columns": STATISTICS,
    }
    np.savez(directory / _STATISTICS, statistics=flight.statistics)
    arrays = {
        f"{number}/{name}": _plain(leaf)
        for number, batch in enumerate(flight.batches)
        for name, leaf in named_arrays(batch)
    }
    np.savez(directory / _BATCHES, **arrays)  # type: ignore[arg-type]
    # Last: a directory with a record is complete.
    (directory / _RECORD).write_text(json.dumps(record, indent=1))


def _plain(array: np.ndarray) -> np.ndarray:
    """Returns an array of a dtype that NumPy can read without JAX: bfloat16 as float32."""
    return array if array.dtype.kind in "biufcSU" else array.astype(np.float32)


FLIGHTS = "flights"  # in the directory of a run
_LONGEST = 80  # characters of a model's name


def make_flight(parent: pathlib.Path, model: str, update: int) -> pathlib.Path:
    """Makes a directory for a flight, which only its user can enter.

    Args:
        parent: that exists.
        model: its name.
        update: number of the update.

    Raises:
        OSError: if it cannot be made.
    """
    start = re.sub(r"[^\w-]", "_", model)[:_LONGEST] or "_"
    name = f"{start}-update{update}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        path = parent / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path
    raise FileExistsError(f"{parent / name}")
