"""What `millrace benchmark` does."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from rich.console import Console

from millrace.benchmark.named import load
from millrace.benchmark.show import progress, supply_table
from millrace.benchmark.throughput import measure_dataset, measure_infeed
from millrace.benchmark.verdict import feed_verdict
from millrace.options import whole_number
from millrace.records.feed_benchmark import FeedVerdict, Supply


@dataclass(frozen=True, slots=True)
class FeedReport:
    """What was measured: of the data set always, of the rest where it was asked for."""

    dataset: Supply
    infeed: Supply | None = None
    verdict: FeedVerdict | None = None

    def as_json(self) -> str:
        """Returns the JSON of the data set, and beside it that of the others."""
        report = self.dataset.as_json()
        if self.infeed is not None:
            report["infeed"] = self.infeed.as_json()
        if self.verdict is not None:
            report["verdict"] = self.verdict.as_json()
        return json.dumps(report)

    def print(self) -> None:
        """Prints a table, and the verdict below it."""
        console = Console(highlight=False, soft_wrap=True)
        supplies = {"data set": self.dataset, "infeed": self.infeed}
        console.print(supply_table({k: v for k, v in supplies.items() if v is not None}))
        console.print(f"\nfirst element after {self.dataset.first_element_seconds:.3f} s")
        if self.verdict is not None:
            console.print(f"\n{self.verdict}", markup=False)


def benchmark_feed(
    dataset: str, epochs: int, elements: int, with_infeed: bool, model: str | None
) -> FeedReport:
    """Measures a data set by its name, and shows on a terminal how far that is.

    Args:
        dataset: `module:name` or `file.py:name`, a data set or a function that returns one.
        epochs: to time, each by itself.
        elements: of each epoch; steps of each epoch that the verdict is made of.
        with_infeed: whether to measure it through the infeed as well.
        model: of the same form, a model or a function that returns one; None for no verdict.
    """
    whole_number("--epochs", epochs, 1)
    whole_number("--elements", elements, 1)
    source = load(dataset)
    trained = None if model is None else _made(load(model))

    def run(title: str, measure: Callable[..., Supply]) -> Supply:
        with progress(title, each=epochs * elements) as (tick,):
            return measure(source, epochs, elements, tick=tick)

    return FeedReport(
        dataset=run("data set", measure_dataset),
        infeed=run("infeed", measure_infeed) if with_infeed else None,
        verdict=None if trained is None else feed_verdict(trained, source, elements),
    )


def _made(model: Any) -> Any:
    is_function = callable(model) and not isinstance(model, keras.Model)
    return model() if is_function else model
