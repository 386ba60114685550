"""The speed of a data set, alone and together with its model."""

from dataclasses import dataclass
from typing import Literal

from millrace.records.table_text import TextRecord

UNLIMITED = 0.95  # a model that runs at this share of its own speed does not wait for its data

Bottleneck = Literal["model", "input pipeline", "overlap"]


@dataclass(frozen=True, slots=True)
class SupplyEpoch:
    """The elements of one epoch of a benchmark. An element is one batch."""

    elements_processed: float
    total_bytes_processed: float
    time_elapsed: float  # seconds

    @property
    def elements_per_second(self) -> float:
        """Elements over seconds."""
        return self.elements_processed / self.time_elapsed

    @property
    def bandwidth(self) -> float:
        """1e9 bytes per second."""
        return self.total_bytes_processed / (1e9 * self.time_elapsed)

    def as_json(self) -> dict[str, float]:
        """Returns the five numbers by name."""
        return {
            "elements_processed": self.elements_processed,
            "total_bytes_processed": self.total_bytes_processed,
            "time_elapsed": self.time_elapsed,
            "elements_per_second": self.elements_per_second,
            "bandwidth": self.bandwidth,
        }

    def __str__(self) -> str:
        return f"{self.elements_per_second:,.1f} elements/s, {self.bandwidth:.3f} GB/s"


@dataclass(frozen=True, slots=True)
class Supply:
    """The result of a benchmark of a data set or of an infeed."""

    epochs: tuple[SupplyEpoch, ...]
    first_element_seconds: float  # from the opening of the data set; part of the first epoch

    def as_json(self) -> dict[str, object]:
        """Returns everything by name; times and rates are of each epoch."""
        return {
            "epochs": [epoch.as_json() for epoch in self.epochs],
            "first_element_seconds": self.first_element_seconds,
        }


@dataclass(frozen=True, slots=True)
class FeedVerdict(TextRecord):
    """Seconds per step of loading, of training, and of both together. Prints with the verdict."""

    steps: int  # in each epoch that was measured
    loader_seconds: float  # the data set alone
    model_seconds: float  # fit on one batch, repeated
    both_seconds: float  # fit on the data set

    @property
    def model_share(self) -> float:
        """Share of the model's own speed at which it trains on the data set, at most 1."""
        return min(1.0, self.model_seconds / self.both_seconds)

    @property
    def bottleneck(self) -> Bottleneck:
        """The bottleneck: the slower of the two, or their missing overlap."""
        if self.model_share >= UNLIMITED:
            return "model"
        return "overlap" if self.loader_seconds < self.model_seconds else "input pipeline"

    def as_json(self) -> dict[str, object]:
        """Returns everything by name."""
        return {
            "steps": self.steps,
            "loader_seconds": self.loader_seconds,
            "model_seconds": self.model_seconds,
            "both_seconds": self.both_seconds,
            "model_share": self.model_share,
            "bottleneck": self.bottleneck,
        }

    @property
    def advice(self) -> str:
        """A change to make; empty where faster loading would gain nothing."""
        return _ADVICE[self.bottleneck]

    def __str__(self) -> str:
        rows = {
            "loading alone": self.loader_seconds,
            "the model alone": self.model_seconds,
            "both together": self.both_seconds,
        }
        lines = [f"{name:<15} {seconds * 1e3:10.3f} ms/step" for name, seconds in rows.items()]
        return "\n".join([*lines, self.verdict])

    @property
    def verdict(self) -> str:
        """The share, the bottleneck, and a change to make."""
        return (
            f"Your input pipeline limits training to {self.model_share:.0%} of what the model "
            f"could do. {_REASON[self.bottleneck]}"
        ) + (f" {self.advice}" if self.advice else "")


_REASON = {
    "model": "The bottleneck is the model: faster loading would gain nothing.",
    "input pipeline": "The bottleneck is the input pipeline.",
    "overlap": (
        "The bottleneck is neither of them alone, but that they do not overlap: loading would keep "
        "up, and takes processor time from the model."
    ),
}
_ADVICE = {
    "model": "",
    "input pipeline": (
        "Load several batches at once: keras.utils.PyDataset(workers=4), "
        "torch.utils.data.DataLoader(num_workers=4), grain's dataset.mp_prefetch(), "
        "or tf.data's map(..., num_parallel_calls=tf.data.AUTOTUNE). Or prepare less per batch, "
        "or keep what was prepared: arrays that fit in memory, or dataset.cache()."
    ),
    "overlap": (
        "Leave loading cores of its own: worker processes, fewer workers than cores. (A model "
        "without a strategy loads between its steps: attach it.)"
    ),
}
