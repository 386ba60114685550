"""A language model of two LSTM layers over a long text, with recomputation and offloading.

    letters  -> embedding -> slice 0 -> LSTM, LSTM -> states -> boundary -> slice 1 -> ...

Backward keeps the states between slices and runs each slice again, the last one first. Between two
updates the optimizer's momenta stay in the memory of the host, if the device has a memory of its
own (a CPU has not). The text is drawn from a grammar: brackets open, and close in the right order.
Plain Keras trains the same model for comparison; losses should agree to 1e-6.

    python examples/lstm_language_model.py --length 1024 --slices 8
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import argparse
import sys

import keras
import numpy as np

layers = keras.layers
BRACKETS = "()[]{}<>"
BATCH, ACCUMULATION = 16, 4


def brackets(rows: int, length: int, random: np.random.Generator) -> np.ndarray:
    """Draws rows of brackets that are closed in the right order, as indices of `BRACKETS`."""
    text = np.empty((rows, length), "int32")
    for row in text:
        opened: list[int] = []
        for place in range(length):
            if opened and (random.random() < 0.5 or len(opened) == 8):
                row[place] = 2 * opened.pop() + 1
            else:
                opened.append(int(random.integers(len(BRACKETS) // 2)))
                row[place] = 2 * opened[-1]
    return text


def build(length: int, slices: int, units: int) -> keras.Model:
    """Two LSTM layers, called once for each slice of a row; each letter predicts the next."""
    keras.utils.set_random_seed(0)
    letters = keras.Input((length,), dtype="int32")
    embedded = layers.Embedding(len(BRACKETS), units)(letters)
    lower = layers.LSTM(units, return_sequences=True, return_state=True, use_cudnn=False)
    upper = layers.LSTM(units, return_sequences=True, return_state=True, use_cudnn=False)
    boundary = millrace.layers.RecomputationCheckpoint()
    lower_state: list[keras.KerasTensor] | None = None
    upper_state: list[keras.KerasTensor] | None = None
    outputs, size = [], length // slices
    for begin in range(0, length, size):
        if begin:
            lower_state, upper_state = boundary([lower_state, upper_state])
        x, *lower_state = lower(embedded[:, begin : begin + size], initial_state=lower_state)
        x, *upper_state = upper(x, initial_state=upper_state)
        outputs.append(layers.Dropout(0.1)(x))
    x = layers.Concatenate(axis=1)(outputs) if slices > 1 else outputs[0]
    return keras.Model(letters, layers.Dense(len(BRACKETS), name="next_letter")(x))


def compile_model(model: keras.Model, **optimizer: int) -> None:
    model.compile(
        keras.optimizers.Adam(0.01, global_clipnorm=1.0, **optimizer),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=ACCUMULATION,
    )


def fit(model: keras.Model, text: np.ndarray, epochs: int) -> list[float]:
    """Trains a model to predict each next letter, and returns its losses."""
    keras.utils.set_random_seed(1)  # of the order of rows, and of dropout
    history = model.fit(text[:, :-1], text[:, 1:], batch_size=BATCH, epochs=epochs, verbose=0)
    return history.history["loss"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=256, help="letters in a row")
    parser.add_argument("--slices", type=int, default=8, help="of a row, a divisor of its length")
    parser.add_argument("--units", type=int, default=64, help="width of both layers")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="short rows, for a quick run")
    options = parser.parse_args()
    length, slices, units, epochs = options.length, options.slices, options.units, options.epochs
    if options.small:
        length, slices, units, epochs = 64, 4, 16, 2
    if length % slices:
        parser.error(f"--slices {slices} does not divide --length {length}")
    text = brackets(512 if not options.small else 256, length + 1, np.random.default_rng(0))

    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model = build(length, slices, units)
    compile_model(model)
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=ACCUMULATION,
        offload_weight_update_variables="auto",  # True is an error on devices without host memory
    )
    batch = (text[:BATCH, :-1], text[:BATCH, 1:])
    whole = strategy.memory_report(model, batch).peak
    model.set_recomputation_options()
    peak = strategy.memory_report(model, batch).peak
    losses = fit(model, text, epochs)

    stock = build(length, slices, units)
    compile_model(stock, gradient_accumulation_steps=ACCUMULATION)
    plain = fit(stock, text, epochs)
    for epoch, (loss, other) in enumerate(zip(losses, plain, strict=True)):
        print(f"epoch {epoch}: loss {loss:.7f}, plain Keras {other:.7f}")
    kinds = {variable.value.sharding.memory_kind for variable in model.optimizer.variables}
    print(f"the optimizer's values are in memory of kind {', '.join(sorted(map(str, kinds)))}")
    print(f"compiled peak: {peak / 2**20:.1f} MiB, without recomputation {whole / 2**20:.1f} MiB")
    if not np.allclose(losses, plain, rtol=1e-6, atol=0):
        print("the losses should agree to 1e-6")
        return 1
    if peak >= whole or losses[-1] >= losses[0]:
        print("recomputation should take less memory, and the loss should fall")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
