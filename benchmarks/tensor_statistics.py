"""One epoch with statistics of all activations and gradients of every step, and one without.

Claim, for an MLP of eight layers and a small transformer: at most 1.05x the time of the same
training without; and 1.00x for training without statistics after training with them, since both run
the same programs. No peer: Keras's own way, a callback that runs the model again for activations,
does not see those of the step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import millrace  # isort: skip
import keras
import numpy as np

import harness
from millrace.callbacks import TensorStatistics

CLAIM = 1.05


@dataclass(frozen=True)
class Size:
    """One model at one size."""

    name: str
    build: Callable[[], keras.Model]
    batch: int
    steps: int  # of an epoch, which is one execution

    def data(self) -> tuple[Any, Any]:
        """Returns x and y, of which each step takes a batch."""
        random = np.random.default_rng(0)
        model = self.build()
        x = random.standard_normal((self.batch * self.steps, *model.input_shape[1:]), "float32")
        return x, random.standard_normal((len(x), *model.output_shape[1:]), "float32")

    def model(self) -> keras.Model:
        """Returns the compiled model, with the same weights each time."""
        keras.utils.set_random_seed(0)
        model = self.build()
        model.compile("adam", "mse", steps_per_execution=self.steps)
        return model


def mlp(width: int) -> Callable[[], keras.Model]:
    """Returns a function that makes an MLP of eight layers."""
    hidden = [(width, "relu")] * 7

    def build() -> keras.Model:
        dense = [keras.layers.Dense(*options) for options in hidden]
        return keras.Sequential([keras.Input((width,)), *dense, keras.layers.Dense(10)])

    return build


def transformer(width: int = 128, length: int = 64, blocks: int = 2) -> keras.Model:
    """Returns a small transformer over vectors."""
    layers = keras.layers
    entry = values = keras.Input((length, width))
    for _ in range(blocks):
        normal = layers.LayerNormalization()(values)
        values += layers.MultiHeadAttention(4, width // 4)(normal, normal)
        inner = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(values))
        values += layers.Dense(width)(inner)
    return keras.Model(entry, layers.Dense(10)(layers.GlobalAveragePooling1D()(values)))


SIZES = (
    Size("mlp 128, batch 64", mlp(128), 64, 200),
    Size("mlp 512, batch 256", mlp(512), 256, 30),
    Size("mlp 1024, batch 1024", mlp(1024), 1024, 6),
    Size("transformer, batch 32", transformer, 32, 12),
)


def measure(size: Size, rounds: int) -> list[str]:
    """Prints the rows of one model and returns its ratios as lines."""
    x, y = size.data()
    strategy = millrace.Strategy(devices=1)

    def fit(model: keras.Model, *callbacks: Any) -> Callable[[], object]:
        options = {"batch_size": size.batch, "epochs": 1, "verbose": 0, "callbacks": [*callbacks]}
        return lambda: model.fit(x, y, **options)

    def watch(**options: Any) -> TensorStatistics:
        return TensorStatistics("*", "*", max_rows=10_000_000, **options)

    watched = strategy.attach(size.model())
    fit(watched, watch())()
    cases = {
        "never watched": fit(strategy.attach(size.model())),
        "no longer watched": fit(watched),
        "every activation and gradient": fit(strategy.attach(size.model()), watch()),
        "of every tenth step": fit(strategy.attach(size.model()), watch(every=10)),
        "gradients after_compute": fit(strategy.attach(size.model()), watch(when="after_compute")),
    }
    times = harness.paired(cases, rounds)
    print(f"{size.name}: {size.steps} steps, one execution")
    for name, values in times.items():
        harness.row(name, values, size.steps)
    plain, off, every, *_ = times.values()
    _, without = harness.ratio(f"{size.name}: no longer watched / never", off, plain)
    _, cost = harness.ratio(f"{size.name}: every tensor and step / never watched", every, plain)
    return [f"{without}   claim 1.00x", f"{cost}   claim <= {CLAIM}x"]


def main() -> None:
    """Runs all models and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=9)
    harness.header("Statistics of tensors: time per step inside fit")
    lines = []
    for size in SIZES:
        if options.only in size.name and not (options.small and "1024" in size.name):
            lines += measure(size, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
