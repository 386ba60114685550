"""One epoch with the optimizer state in host memory, compared with one with it on the device.

Needs an accelerator: CPUs have one memory. Claim, for an MLP of eight layers that accumulates 32
micro-batches per update: at most 1.25x the time, and between updates, device memory lower by at
least nine tenths of the state. The peer is the same training without offload, in the same rounds.
"""

import millrace  # isort: skip
import jax
import keras
import numpy as np

import harness

CLAIM, SHARE = 1.25, 0.9
MIB = 2**20


def build(
    strategy: millrace.Strategy, units: int, micro_batches: int, offload: bool
) -> keras.Model:
    """Returns a compiled model of `units` per layer."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        dense = [keras.layers.Dense(units, activation="relu") for _ in range(8)]
        model = keras.Sequential([keras.Input((units,)), *dense, keras.layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=4 * micro_batches)
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=micro_batches,
        offload_weight_update_variables=offload,
    )
    return model


def in_use() -> int:
    """Returns the bytes in use on the first device."""
    return jax.devices()[0].memory_stats()["bytes_in_use"]


def main() -> None:
    """Trains with and without offload, and prints the ratio last."""
    options = harness.arguments(__doc__)
    if jax.devices()[0].platform == "cpu":
        print(
            "optimizer_offload.py needs an accelerator: a CPU has one memory. Nothing to measure."
        )
        return
    harness.header("Optimizer state in host memory: time per step inside fit")
    units, micro_batches, rows = (512, 4, 64) if options.small else (4096, 32, 512)
    x = np.random.default_rng(0).normal(size=(4 * micro_batches * rows, units)).astype("float32")
    y = x[:, :1]
    strategy = millrace.Strategy(devices=1)
    cases, used, state = {}, {}, 0
    for name, offload in (("on the device", False), ("in host memory", True)):
        before = in_use()
        model = build(strategy, units, micro_batches, offload)

        def fit(model=model):
            model.fit(x, y, batch_size=rows, verbose=0)

        fit()
        used[name] = in_use() - before
        state = sum(v.value.nbytes for v in model.optimizer.variables)
        cases[name] = fit
    times = harness.paired(cases, options.rounds)
    print(
        f"{8 * units * units / 1e6:.0f} M weights, "
        f"{micro_batches} steps of {rows} rows in an update"
    )
    for name, values in times.items():
        harness.row(name, values, 4 * micro_batches)
        print(f"    {used[name] / MIB:10.1f} MiB of the device in use after training")
    saved = (used["on the device"] - used["in host memory"]) / state
    print(f"\nstate {state / MIB:.1f} MiB, of which saved {saved:.2f}   claim >= {SHARE}")
    over, under = times["in host memory"], times["on the device"]
    print(f"{harness.ratio('in host memory / on the device', over, under)[1]}   claim <= {CLAIM}x")


if __name__ == "__main__":
    main()
