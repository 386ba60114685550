"""The speed of a data set."""

from dataclasses import dataclass


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
