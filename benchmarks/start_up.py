"""Start of a process that has run before: seconds to the end of the first training step.

Claims for a second process: it compiles nothing; it needs at most 0.35x the time of the first one
with executables from the cache, and at most 0.25x with exported ones, which also avoid tracing and
lowering. The peer is the first process, with an empty cache.

    cold        nothing on disk
    cached      the cache of the cold process
    exported    that cache, for Keras's own programs, and the export of the cold process

Each is a fresh process, timed from before its start: imports, building the model, one step of
`fit`. Cases: ResNet50 for images of 32 x 32, and twelve transformer blocks in four stages.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import millrace  # isort: skip
import jax
import keras
import numpy as np
from keras import layers

import harness

IMPORTED = time.time()
CHILD = os.environ.get("START_UP_CHILD")  # the task of a timed process, as JSON
CACHED, EXPORTED = 0.35, 0.25  # claims
FORMS = ("cold", "cached", "exported")
CASES = ("resnet50", "pipeline")
BATCH = 8


@dataclass(frozen=True)
class Start:
    """Seconds of one process, and its compilations."""

    total: float  # from before the start of the process to the end of the step
    importing: float
    building: float
    tracing: float
    lowering: float
    making: float  # by XLA, or reading; the sum over threads
    fitting: float  # of which these are a part, with all that is around them
    compilations: int  # by XLA, Keras's included
    loss: float


def resnet(strategy: millrace.Strategy, small: bool) -> tuple[keras.Model, tuple[int, ...]]:
    """Returns ResNet50, or a few of its layers, and the shape of an image."""
    with strategy.scope():
        if small:
            stack = [layers.Conv2D(8, 3, activation="relu"), layers.GlobalAveragePooling2D()]
            model = keras.Sequential([keras.Input((32, 32, 3)), *stack, layers.Dense(10)])
        else:
            model = keras.applications.ResNet50(
                weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation=None
            )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, (32, 32, 3)


def pipeline(strategy: millrace.Strategy, small: bool) -> tuple[keras.Model, tuple[int, ...]]:
    """Returns transformer blocks in four stages, and the shape of a row."""
    length, width = 16, 64
    with strategy.scope():
        x = inputs = keras.Input((length, width))
        for stage in range(4):
            with millrace.PipelineStage(stage):
                for _ in range(1 if small else 3):
                    x = block(x, width)
        with millrace.PipelineStage(3):
            outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
        model = keras.Model(inputs, outputs)
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=4,
    )
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    return model, (length, width)


def block(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
    """One transformer block."""
    hidden = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(4, width // 4)(hidden, hidden)
    hidden = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(width)(hidden)


def child(case: str, form: str, root: str, began: float, small: bool) -> None:
    """Runs one step in this process and prints a `Start`."""
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: events.append(event)
    )
    keras.utils.set_random_seed(0)
    pipelined = case == "pipeline"
    strategy = millrace.Strategy("cpu:4" if pipelined else 1, cache_dir=f"{root}/cache")
    if form == "exported":
        strategy.load_executables(f"{root}/exported")
    model, shape = (pipeline if pipelined else resnet)(strategy, small)
    built = time.time()
    rows = BATCH * (4 if pipelined else 1)
    x = np.random.default_rng(0).random((rows, *shape), np.float32)
    y = np.arange(rows) % 10
    history = model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False).history
    jax.block_until_ready([variable.value for variable in model.variables])
    done = time.time()
    compiled = events.count("/jax/core/compile/backend_compile_duration")
    log = [record for record in strategy.compile_log if record.is_executable]
    start = Start(
        total=done - began,
        importing=IMPORTED - began,
        building=built - IMPORTED,
        tracing=sum(record.trace_seconds for record in log),
        lowering=sum(record.lower_seconds for record in log),
        making=sum(record.compile_seconds for record in log),
        fitting=done - built,
        compilations=compiled - events.count("/jax/compilation_cache/cache_hits"),
        loss=history["loss"][0],
    )
    if form == "cold":
        strategy.export_executables(f"{root}/exported")
    print(json.dumps(start.__dict__))


def start(case: str, form: str, root: str, small: bool) -> Start:
    """Runs a process, and returns its costs."""
    task = {"case": case, "form": form, "root": root, "began": time.time(), "small": small}
    done = subprocess.run(
        [sys.executable, str(pathlib.Path(__file__).resolve())],
        env={**os.environ, "START_UP_CHILD": json.dumps(task)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Start(**json.loads(done.stdout.splitlines()[-1]))


def measure(case: str, rounds: int, small: bool) -> list[str]:
    """Prints the rows of one case and returns its ratios as lines."""
    starts: dict[str, list[Start]] = {form: [] for form in FORMS}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as root:
            for form in FORMS:
                starts[form].append(start(case, form, root, small))
    print(f"{case}: medians in seconds, of n={rounds}")
    names = ("total", "importing", "building", "fitting", "tracing", "lowering", "making")
    print("  " + " ".join(f"{name:>10}" for name in ("", *names, "compiled")))
    for form, found in starts.items():
        middle = [statistics.median(getattr(each, name) for each in found) for name in names]
        count = max(each.compilations for each in found)
        print(f"  {form:>10} " + " ".join(f"{value:10.2f}" for value in middle) + f" {count:10}")
    losses = {each.loss for found in starts.values() for each in found}
    if len(losses) > 1:
        sys.exit(f"The forms have different losses: {losses}.")
    cold = [each.total for each in starts["cold"]]
    lines = []
    for form, claim in (("cached", CACHED), ("exported", EXPORTED)):
        count = max(each.compilations for each in starts[form])
        lines.append(f"{case}: compilations by XLA, {form} = {count}   claim 0")
        totals = [each.total for each in starts[form]]
        line = harness.ratio(f"{case}: {form} / cold, to the first step", totals, cold)[1]
        lines.append(f"{line}   claim <= {claim}x")
    return lines


def main() -> None:
    """Runs the cases and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=5)
    harness.header("Starting up: seconds to the first finished step")
    rounds = 1 if options.small else options.rounds
    lines = []
    for case in CASES:
        if options.only in case:
            lines += measure(case, rounds, options.small)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    if CHILD:
        child(**json.loads(CHILD))
    else:
        main()
