"""Train an LSTM over a long sequence in a fraction of the memory.

    slice 0 -> LSTM -> [h, c] -> boundary -> slice 1 -> LSTM -> [h, c] -> boundary -> ...

One LSTM layer is called once per slice. Between two calls its state passes a
`RecomputationCheckpoint`: backward keeps these states, and runs the LSTM over one slice at a time
again, the last one first. The loss is that of one call over the whole sequence.

    python examples/recompute_lstm.py --seq-len 2048 --checkpoints 7
"""

import argparse

import millrace  # isort: skip  (picks the JAX backend, before Keras does)
import keras
import numpy as np
from rich.console import Console

UNITS, FEATURES, BATCH = 256, 32, 64


def make_model(length: int, checkpoints: int) -> keras.Model:
    """An LSTM over `checkpoints + 1` slices of a sequence, and the mean of a dense layer."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((length, FEATURES))
    lstm = keras.layers.LSTM(UNITS, return_state=True, use_cudnn=False)
    ends = [length * (k + 1) // (checkpoints + 1) for k in range(checkpoints + 1)]
    outputs, state = [], None
    for begin, end in zip([0, *ends], ends, strict=False):
        output, *state = lstm(inputs[:, begin:end], initial_state=state)
        outputs.append(output)
        if end < length:
            state = millrace.layers.RecomputationCheckpoint()(state)
    x = keras.layers.Concatenate()(outputs) if checkpoints else outputs[0]
    model = keras.Model(inputs, keras.layers.Dense(1)(x), name=f"lstm_{checkpoints}_checkpoints")
    model.compile(keras.optimizers.SGD(0.001), "mse", steps_per_execution=2)
    return model


def draw(console: Console, title: str, curve: tuple[int, ...], top: int) -> None:
    """Draws the live bytes over the operations of a program, in 72 columns."""
    columns = [max(part) for part in np.array_split(np.array(curve), 72) if len(part)]
    console.print(f"\n{title}: {max(curve) / 2**20:.0f} MiB at its peak", highlight=False)
    for level in range(8, 0, -1):
        shares = [8 * 8 * column / top - 8 * (level - 1) for column in columns]
        console.print("".join(" ▁▂▃▄▅▆▇█"[int(min(max(share, 0), 8))] for share in shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seq-len", type=int, default=2048, help="steps of a sequence")
    parser.add_argument("--checkpoints", type=int, default=7, help="boundaries within it")
    parser.add_argument("--small", action="store_true", help="64 steps, for a quick run")
    options = parser.parse_args()
    length = 64 if options.small else options.seq_len
    if length % (options.checkpoints + 1):
        print(
            f"{length} steps can't be evenly divided into {options.checkpoints + 1} slices: code "
            "for two lengths is compiled."
        )
    random = np.random.default_rng(0)
    x = random.normal(size=(2 * BATCH, length, FEATURES)).astype("float32")
    y = np.full((2 * BATCH, 1), 0.2, "float32")

    devices = {}
    for recomputes in (False, True):
        strategy = millrace.Strategy(devices=1)
        with strategy.scope():
            model = make_model(length, options.checkpoints)
        if recomputes:
            model.set_recomputation_options()
        report = strategy.memory_report(model, (x[:BATCH], y[:BATCH]))
        devices[recomputes] = report.devices[0]
        history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        name = "with" if recomputes else "without"
        print(
            f"{name} recomputation: loss: {history.history['loss'][-1]:.6f}, compiled peak "
            f"{report.peak / 2**20:.1f} MiB, of it "
            f"{report.devices[0].stages[0].temporaries / 2**20:.1f} temporary"
        )
    console, top = Console(), max(max(device.curve) for device in devices.values())
    draw(console, "without recomputation", devices[False].curve, top)
    draw(console, "with recomputation", devices[True].curve, top)


if __name__ == "__main__":
    main()
