"""Memory of training on an accelerator: the report against the allocator, and ways to need less.

Claims: the report is within 5 % of the allocator's peak; a budget is never passed; optimizer state
in host memory frees at least nine tenths of its size on the device; activations in host memory
lower the peak. Peers: the same training with everything on the device, and without recomputation.

    plain      models as they are
    offload    adam's state (F47), the activations of four stages on one device (F48)
    budget     a transformer within shares of its plain peak

Each case is a separate process, because the allocator's peak only grows, and runs twice. Only the
second run counts: it reads the executables of the first, whose compiler tries out kernels on the
device. CPUs keep no count, so only the prediction is shown there.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import millrace  # isort: skip
import jax
import keras
import numpy as np
from keras import layers

import harness

CHILD = os.environ.get("DEVICE_MEMORY_CHILD")  # the task of a measured process, as JSON
STEPS = 4  # of an execution, which is an epoch
BUDGETS = (0.75, 0.5)
CLAIM_REPORT, CLAIM_STATE = 0.05, 0.9
MIB = 2**20


@dataclass(frozen=True)
class Case:
    """A model, the rows of a batch, and the options of the model."""

    build: Callable[[bool], keras.Model]
    rows: int
    options: Callable[[keras.Model], None] = lambda model: None
    needs_accelerator: bool = False


def mlp(small: bool) -> keras.Model:
    """Eight wide layers."""
    units = 128 if small else 4096
    dense = [layers.Dense(units, "relu") for _ in range(8)]
    return keras.Sequential([keras.Input((units,)), *dense, layers.Dense(1)])


def lstm(small: bool) -> keras.Model:
    """One layer over many steps, as a loop."""
    units, length = (16, 32) if small else (256, 1024)
    return keras.Sequential(
        [keras.Input((length, 32)), layers.LSTM(units, use_cudnn=False), layers.Dense(1)]
    )


def resnet(small: bool) -> keras.Model:
    """ResNet50, or two convolutions."""
    if small:
        stack = [layers.Conv2D(8, 3, activation="relu"), layers.GlobalAveragePooling2D()]
        return keras.Sequential([keras.Input((16, 16, 3)), *stack, layers.Dense(1)])
    return keras.applications.ResNet50(
        weights=None, input_shape=(96, 96, 3), classes=1, classifier_activation=None
    )


def transformer(small: bool) -> keras.Model:
    """Blocks of attention and dense layers."""
    blocks, length, width = (2, 16, 32) if small else (12, 256, 512)
    x = inputs = keras.Input((length, width))
    for _ in range(blocks):
        hidden = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(8, width // 8)(hidden, hidden)
        hidden = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(hidden)
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))


def accumulate(offload: bool) -> Callable[[keras.Model], None]:
    """Returns a function that sets the memory of adam's state between updates."""
    return lambda model: model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=STEPS, offload_weight_update_variables=offload
    )


def stages(offload: bool) -> Callable[[keras.Model], None]:
    """Returns a function that cuts the MLP into four stages on one device."""

    def set_options(model: keras.Model) -> None:
        model.set_pipeline_stage_assignment([0, 0, 1, 1, 2, 2, 3, 3, 3])
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=STEPS,
            device_mapping=[0, 0, 0, 0],
            offload_activations=offload,
            offload_weight_update_variables=False,
        )

    return set_options


def within(budget: float) -> Callable[[keras.Model], None]:
    """Returns a function that sets a budget."""
    return lambda model: model.set_recomputation_options(budget=budget)


GROUPS: dict[str, dict[str, Case]] = {
    "plain": {
        "mlp": Case(mlp, 4096),
        "lstm": Case(lstm, 64),
        "resnet": Case(resnet, 64),
        "transformer": Case(transformer, 32),
    },
    "offload": {
        "state on the device": Case(mlp, 512, accumulate(False)),
        "state in host memory": Case(mlp, 512, accumulate(True), True),
        "activations on the device": Case(mlp, 8192, stages(False)),
        "activations in host memory": Case(mlp, 8192, stages(True), True),
    },
    "budget": {
        "no budget": Case(transformer, 32),
        **{f"budget {share}": Case(transformer, 32, within(share)) for share in BUDGETS},
    },
}


def child(group: str, case: str, cache: str, small: bool, rounds: int) -> None:
    """Trains one case in this process and prints its costs as JSON."""
    chosen = GROUPS[group][case]
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy(devices=1, cache_dir=cache)
    with strategy.scope():
        model = chosen.build(small)
    model.compile("adam", "mse", steps_per_execution=STEPS)
    chosen.options(model)
    rows = 8 if small else chosen.rows
    x = np.random.default_rng(0).standard_normal((STEPS * rows, *model.input_shape[1:]), "float32")
    y = x.reshape(len(x), -1)[:, :1]
    predicted = strategy.memory_report(model, (x[:rows], y[:rows])).peak

    def fit() -> list[float]:
        return model.fit(x, y, batch_size=rows, verbose=0, shuffle=False).history["loss"]

    loss = fit()[0]
    seconds = [harness.seconds(fit) for _ in range(rounds)]
    found = jax.devices()[0].memory_stats() or {}
    state = sum(variable.value.nbytes for variable in model.optimizer.variables)
    print(
        json.dumps(
            {
                "predicted": predicted,
                "peak": found.get("peak_bytes_in_use"),
                "after": found.get("bytes_in_use"),
                "state": state,
                "seconds": statistics.median(seconds) / STEPS,
                "loss": loss,
            }
        )
    )


def measure(group: str, case: str, small: bool, rounds: int) -> dict[str, Any]:
    """Runs a case in two processes, and returns the results of the second."""
    with tempfile.TemporaryDirectory() as cache:
        task = {"group": group, "case": case, "cache": cache, "small": small, "rounds": rounds}
        for _ in range(1 if small else 2):
            done = subprocess.run(
                [sys.executable, str(pathlib.Path(__file__).resolve())],
                env={**os.environ, "DEVICE_MEMORY_CHILD": json.dumps(task)},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        found = json.loads(done.stdout.splitlines()[-1])
    peak, after = (
        "not counted" if found[key] is None else f"{found[key] / MIB:.1f} MiB"
        for key in ("peak", "after")
    )
    print(
        f"  {case:<27} predicted {found['predicted'] / MIB:9.1f} MiB, allocator's peak {peak}, "
        f"after {after}; {found['seconds'] * 1e6:.1f} us/step, loss {found['loss']:.7g}",
        flush=True,
    )
    return found


def compared(group: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the ratios as lines."""
    lines = [
        f"{case}: predicted / allocator's peak = {each['predicted'] / each['peak']:.3f}x   "
        f"claim {1 - CLAIM_REPORT:.2f}-{1 + CLAIM_REPORT:.2f}x"
        for case, each in found.items()
        if each["peak"]
    ]
    first, *others = found
    pairs = [(other, first) for other in others] if group == "budget" else []
    if group == "offload":
        names = list(found)
        pairs = [(b, a) for a, b in pairwise(names) if "host" in b]
    for case, peer in pairs:
        one, other = found[case], found[peer]
        lines.append(f"{case} / {peer}: time = {one['seconds'] / other['seconds']:.2f}x")
        if one["peak"]:
            lines.append(f"{case} / {peer}: peak = {one['peak'] / other['peak']:.3f}x")
            if case.startswith("state"):
                saved = (other["after"] - one["after"]) / one["state"]
                lines.append(
                    f"{case}: share of it that is saved = {saved:.2f}   claim >= {CLAIM_STATE}"
                )
        if one["loss"] != other["loss"]:
            lines.append(f"{case}: loss {one['loss']!r}, of the peer {other['loss']!r}")
    return lines


def main() -> None:
    """Runs the groups and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=5)
    harness.header("Memory of the device: predicted, and as the allocator counts it")
    on_cpu = jax.devices()[0].platform == "cpu"
    lines: list[str] = []
    for group, cases in GROUPS.items():
        if options.only not in group:
            continue
        print(f"{group}: {STEPS} steps")
        found = {}
        for case, chosen in cases.items():
            if options.small and case == f"budget {BUDGETS[-1]}":
                continue  # the weights of the small model alone take more
            if chosen.needs_accelerator and on_cpu:
                print(f"  {case:<27} needs an accelerator: a CPU has one memory")
            else:
                found[case] = measure(group, case, options.small, options.rounds)
        lines += compared(group, found)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    if CHILD:
        child(**json.loads(CHILD))
    else:
        main()
