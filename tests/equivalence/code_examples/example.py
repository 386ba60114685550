"""What a code example is here: a model, data of its shapes, and how it is compiled.

@example("Text", "bidirectional LSTM")
def bidirectional_lstm() -> Case: ...

EXAMPLES["bidirectional_lstm"].subject() -> what against_keras compares
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from against_keras import Subject

# What a `train_step` of one's own does that no stages can.
IN_TURN = {"cut": "does not define call(), so it calls no layers"}
AFTER_UPDATE = {"cut": "follows from its gradients, and stages update weights alone"}
GROUPS = (
    "Text",
    "Vision",
    "Images",
    "Shapes",
    "Audio",
    "Time series",
    "Graphs",
    "Structured data",
    "Recommendations",
    "Generators",
    "Adversaries",
    "Mechanics",
)
ROWS = 16  # four batches, so two updates of two batches in each of two epochs


@dataclass(frozen=True)
class Case:
    """A model and its training.

    build: makes the model.
    data: makes the arguments of `fit` that are data, of so many rows.
    optimizer: a name, or a function that makes it and passes its arguments on.
    loss: a name, None, or a function that makes what `compile` takes.
    metrics: names, or a function that makes them.
    fit, compile: further arguments of these.
    batch_size: rows of a batch.
    by_hand: as in Subject.
    refused: of ways in which the model cannot be trained, a part of the error.
    """

    build: Callable[[], keras.Model]
    data: Callable[[int], dict[str, Any]]
    optimizer: Any = "adam"
    loss: Any = None
    metrics: Any = None
    fit: dict[str, Any] = field(default_factory=dict)
    compile: dict[str, Any] = field(default_factory=dict)
    batch_size: int = 4
    by_hand: Any = False
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """A case with its names: that of its function, and that of the table."""

    name: str
    group: str
    title: str
    make: Callable[[], Case]

    def subject(self, **changes: Any) -> Subject:
        """Returns what is compared; `changes` are further arguments of the optimizer."""
        case = self.make()

        def compile_arguments(**more: Any) -> dict[str, Any]:
            made = {
                "optimizer": _optimizer(case.optimizer, {**changes, **more}),
                "loss": _made(case.loss),
                "metrics": _made(case.metrics),
                **{name: _made(value) for name, value in case.compile.items()},
            }
            return {name: value for name, value in made.items() if value is not None}

        return Subject(
            self.name,
            case.build,
            lambda: case.data(case.batch_size * ROWS // 4),
            compile_arguments,
            batch_size=case.batch_size,
            fit=case.fit,
            by_hand=case.by_hand,
        )


EXAMPLES: dict[str, Example] = {}


def example(group: str, title: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Puts a case into EXAMPLES."""

    def put(make: Callable[[], Case]) -> Callable[[], Case]:
        name = make.__name__
        assert name not in EXAMPLES
        EXAMPLES[name] = Example(name, group, title, make)
        return make

    return put


def random_of(seed: int) -> np.random.Generator:
    """Random numbers that are the same for each model of a case."""
    return np.random.default_rng(seed)


def _made(value: Any) -> Any:
    return value() if callable(value) else value


def _optimizer(value: Any, more: dict[str, Any]) -> Any:
    if callable(value):
        return value(**more)
    return keras.optimizers.get({"class_name": value, "config": dict(more)})
