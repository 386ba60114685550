"""Two choices that matter most on an accelerator: data that stays there, and stages that share it.

Claims: an epoch with arrays that stay on the device is no slower than with arrays that are sent,
and faster than in plain Keras; two stages on one device take at most 1.10x the time of the same
updates in one piece. Peers: plain Keras on the same arrays; the same accumulation in one piece.
"""

from collections.abc import Callable

import millrace  # isort: skip
import keras
import numpy as np

import harness

CLAIM_STAGES = 1.10
MICRO_BATCHES = 16  # micro-batches in one update


def dense(units: int, depth: int, steps: int) -> keras.Model:
    """Returns a compiled model of equal layers."""
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(units, "tanh") for _ in range(depth)]
    model = keras.Sequential([keras.Input((units,)), *hidden, keras.layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=steps)
    return model


def arrays(rows: int, units: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns x and y."""
    x = np.random.default_rng(0).standard_normal((rows, units), "float32")
    return x, x[:, :1]


def fit(model: keras.Model, x: np.ndarray, y: np.ndarray, rows: int) -> Callable[[], object]:
    """Returns one epoch."""
    return lambda: model.fit(x, y, batch_size=rows, verbose=0)


def resident(rounds: int, small: bool) -> list[str]:
    """Times an epoch of many short steps, with arrays that stay and arrays that are sent."""
    units, batch, steps = (64, 16, 32) if small else (1024, 64, 512)
    x, y = arrays(steps * batch, units)
    strategy = millrace.Strategy(devices=1)

    cases = {"keras": fit(dense(units, 2, 32), x, y, batch)}
    for name, limit in (("arrays stay on the device", 2**40), ("arrays are sent", 0)):
        model = strategy.attach(dense(units, 2, steps))
        model.set_infeed_queue_options(max_resident_bytes=limit)
        cases[name] = fit(model, x, y, batch)
    times = harness.paired(cases, rounds)
    print(f"resident: {steps} steps of {batch} x {units}, {x.nbytes / 2**20:.0f} MiB")
    for name, values in times.items():
        harness.row(name, values, steps)
    plain, stay, sent = times.values()
    return [
        f"{harness.ratio('resident: staying / sent', stay, sent)[1]}   claim <= 1.00x",
        harness.ratio("resident: keras / staying", plain, stay)[1],
    ]


def stages(rounds: int, small: bool) -> list[str]:
    """Times updates in one piece and as two stages of one device."""
    lines = []
    strategy = millrace.Strategy(devices=1)
    for units, rows in [(64, 8)] if small else [(1024, 256), (4096, 512)]:
        x, y = arrays(2 * MICRO_BATCHES * rows, units)
        cases = {}
        for name in ("in one piece", "1f1b", "grouped", "sequential"):
            model = strategy.attach(dense(units, 8, 2 * MICRO_BATCHES))
            if name == "in one piece":
                model.set_gradient_accumulation_options(
                    gradient_accumulation_steps_per_replica=MICRO_BATCHES,
                    offload_weight_update_variables=False,
                )
            else:
                model.set_pipeline_stage_assignment([0] * 4 + [1] * 5)
                model.set_pipelining_options(
                    gradient_accumulation_steps_per_replica=MICRO_BATCHES,
                    device_mapping=[0, 0],
                    pipeline_schedule=name,
                    offload_weight_update_variables=False,
                    offload_activations=False,
                )
            cases[name] = fit(model, x, y, rows)
        times = harness.paired(cases, rounds)
        print(
            f"stages, width {units}: 2 updates of {MICRO_BATCHES} x {rows}, "
            "two stages on one device"
        )
        for name, values in times.items():
            harness.row(name, values, 2 * MICRO_BATCHES)
        whole = times.pop("in one piece")
        for name, values in times.items():
            line = harness.ratio(f"width {units}: {name} / in one piece", values, whole)[1]
            lines.append(f"{line}   claim <= {CLAIM_STAGES}x")
    return lines


PARTS = {"resident": resident, "stages": stages}


def main() -> None:
    """Runs both parts and prints the ratios last."""
    options = harness.arguments(__doc__)
    harness.header("One device: data that stays on it, stages that share it")
    lines = []
    for name, part in PARTS.items():
        if options.only in name:
            lines += part(options.rounds, options.small)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
