"""A batch in parts: compiled peak and time per step at R, R/2, R/4 and R/8 rows at a time.

Claim, for a transformer and a convolutional net whose activations outweigh their weights: halving
the rows leaves at most 0.65x of the memory besides weights and optimizer state, and a step in two
parts takes at most 1.15x the time of plain Keras with the whole batch.
"""

import millrace  # isort: skip
import functools
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
from keras import layers

import harness

DIVISORS = (1, 2, 4, 8)
MEMORY, TIME = 0.65, 1.15
STEPS = 4


@dataclass(frozen=True)
class Size:
    """A model with its data."""

    name: str
    model: Callable[[], keras.Model]
    shape: tuple[int, ...]  # of a row
    rows: int  # of a batch

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of an epoch with their targets."""
        random = np.random.default_rng(0)
        x = random.normal(size=(self.rows * STEPS, *self.shape)).astype("float32")
        return x, random.integers(0, 10, size=len(x))


def transformer(width: int, depth: int, length: int) -> keras.Model:
    """Returns a transformer over sequences of vectors."""
    inputs = x = keras.Input((length, width))
    for _ in range(depth):
        attended = layers.MultiHeadAttention(4, width // 4)(x, x)
        x = layers.LayerNormalization()(x + attended)
        hidden = layers.Dense(2 * width, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(width)(hidden))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, outputs)


def convnet(width: int, depth: int, side: int) -> keras.Model:
    """Returns a convolutional net over small images."""
    inputs = x = keras.Input((side, side, 3))
    for _ in range(depth):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs)


SIZES = (
    Size("transformer", functools.partial(transformer, 64, 2, 32), (32, 64), 64),
    Size("convnet", functools.partial(convnet, 16, 3, 16), (16, 16, 3), 64),
)
SMALL = (
    Size("transformer", functools.partial(transformer, 16, 1, 8), (8, 16), 16),
    Size("convnet", functools.partial(convnet, 4, 2, 8), (8, 8, 3), 16),
)


def compiled(model: keras.Model) -> keras.Model:
    """Compiles a model."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return model


def measure(size: Size, rounds: int) -> list[str]:
    """Prints the rows of one model and returns its ratios as lines."""
    x, y = size.data()
    fits, peaks = {}, {}

    def fit(model: keras.Model) -> Callable[[], object]:
        return lambda: model.fit(x, y, batch_size=size.rows, epochs=1, verbose=0)

    keras.utils.set_random_seed(1)
    fits["keras"] = fit(compiled(size.model()))
    for divisor in DIVISORS:
        strategy = millrace.Strategy(devices=1)
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = size.model()
        rows = size.rows // divisor
        model.set_gradient_accumulation_options(micro_batch=rows)
        compiled(model)
        report = strategy.memory_report(model, (x[: size.rows], y[: size.rows]))
        (stage,) = report.devices[0].stages
        fits[f"{rows} rows"], peaks[f"{rows} rows"] = fit(model), (report.peak, stage.temporaries)
    times = harness.paired(fits, rounds)
    print(f"{size.name}: {STEPS} steps of {size.rows} rows, one step per execution")
    for name, values in times.items():
        harness.row(name, values, STEPS)
    for name, (peak, temporary) in peaks.items():
        print(f"  {name:<12} compiled peak {peak:>12,} bytes, {temporary:>12,} of them temporary")
    whole, halves = (f"{size.rows // divisor} rows" for divisor in DIVISORS[:2])
    lines = [
        f"{size.name}: temporary bytes of {name} / {whole} = "
        f"{peaks[name][1] / peaks[whole][1]:.2f}x"
        + (f"   claim <= {MEMORY}x" if name == halves else "")
        for name in peaks
        if name != whole
    ]
    for name in peaks:
        _, cost = harness.ratio(f"{size.name}: {name} / keras", times[name], times["keras"])
        lines.append(cost + (f"   claim <= {TIME}x" if name == halves else ""))
    return lines


def main() -> None:
    """Runs both models and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=9)
    harness.header("Batches in parts: compiled peak, and time per step inside fit")
    lines: list[str] = []
    for size in SMALL if options.small else SIZES:
        if options.only in size.name:
            lines += measure(size, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
