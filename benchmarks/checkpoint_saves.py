"""What checkpoints cost a training: a save, the steps beside it, and a restart.

Claims, for a model of 100 MB (8 dense layers of 1024, with Adam):

    the training waits for a save at most 1.10x as long as for a bare copy of its values to the host
    with a save in the background about every 5 seconds, a step takes at most 1.03x the time
    the first step ends at most 1.2x as late after a restart as without a checkpoint: counted from
        the start of the process, and from the beginning of fit

The bare copy is NumPy's, of each value of the same run into fresh memory. The peer of the steps is
plain Keras with BackupAndRestore(save_freq=...), with as many saves, which restores neither the
data's position nor callbacks. A restart is a process with a warm cache of executables; the peer is
the same process without the checkpoint.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import millrace  # isort: skip
import jax
import keras
import numpy as np

import harness
from millrace._compat.keras_loops import loop_state
from millrace.api.checkpoints.fit_checkpoints import FitCheckpoints

BLOCKED, BESIDE, RESTARTED = 1.10, 1.03, 1.2  # claims
SECONDS = 5.0  # from one save to the next
BATCH, STARTING = 64, 5  # rows of a step; steps of a fit before the timed ones
CHILD = os.environ.get("CHECKPOINT_CHILD")  # the task of a restarted process, as JSON


def build(small: bool, strategy: millrace.Strategy | None) -> keras.Model:
    """Returns the compiled model, with the same weights each time."""
    width, depth = (128, 2) if small else (1024, 8)
    keras.utils.set_random_seed(0)
    stack = [keras.layers.Dense(width, "relu") for _ in range(depth)]
    model = keras.Sequential([keras.Input((width,)), *stack], name="mlp")
    model.compile("adam", "mse")
    if strategy is not None:
        strategy.attach(model)
    return model


def data(model: keras.Model, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows for a number of steps."""
    random = np.random.default_rng(0)
    x = random.standard_normal((BATCH * steps, model.input_shape[-1]), "float32")
    return x, x[:, ::-1]


def megabytes(model: keras.Model) -> float:
    """Returns the size of the values that are saved."""
    values = [*model.variables, *model.optimizer.variables]
    return sum(value.value.nbytes for value in values) / 1e6


# A save.


def blocking(rounds: int, small: bool) -> list[str]:
    """Prints the times for which saves keep a training waiting, and returns the ratio as a line."""
    saves: list[float] = []
    copies: list[float] = []
    inside: list[float] = []
    original = FitCheckpoints.between_executions

    def between(self: FitCheckpoints, *position: Any) -> None:
        """Times a save after every other step, and a bare copy after those in between."""
        self._saver.writer.wait()  # as if the one before had ended long ago
        state = loop_state(self._controller.model)
        values = jax.tree.leaves(jax.block_until_ready(state))
        begin = time.perf_counter()
        if position[-1] % 2:  # nothing is due
            copied = [np.array(value) for value in values]
            copies.append(time.perf_counter() - begin)
            del copied
            original(self, *position)
        else:
            original(self, *position)
            saves.append(time.perf_counter() - begin)
            inside.append(self.blocked_seconds)

    model = build(small, millrace.Strategy(devices=1))
    x, y = data(model, 2 * rounds + 4)
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(FitCheckpoints, "between_executions", between),
    ):
        checkpoint = millrace.callbacks.Checkpoint(directory, every_steps=2)
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[checkpoint])
    pairs = min(len(saves), len(copies)) - 1  # the first of each is for memory and imports
    saves, copies, inside = saves[1:][:pairs], copies[1:][:pairs], inside[1:][:pairs]
    print(f"a save of {megabytes(model):.1f} MB, in milliseconds for which the training waits")
    for name, times in (("save", saves), ("of it for values", inside), ("bare copy", copies)):
        _milliseconds(name, times)
    print()
    line = harness.ratio("blocked by a save / a bare copy to the host", saves, copies)[1]
    return [f"{line}   claim <= {BLOCKED:.2f}x"]


def _milliseconds(name: str, times: list[float]) -> None:
    ordered = sorted(1e3 * each for each in times)
    print(
        f"  {name:<34} {statistics.median(ordered):10.1f} ms"
        f"   ({ordered[0]:.1f}-{ordered[-1]:.1f}, n={len(ordered)})"
    )


# The steps beside it.


class Stopwatch(keras.callbacks.Callback):
    """Times the steps of an epoch but the first ones. First of the callbacks of a fit."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.processor_seconds = 0.0  # of all threads, which other programs disturb less
        self._begin = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Begins."""
        if batch == STARTING - 1:
            jax.block_until_ready(logs)
            self._begin, self.processor_seconds = time.perf_counter(), -time.process_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Ends, before the checkpoint at the end of fit."""
        self.seconds = time.perf_counter() - self._begin
        self.processor_seconds += time.process_time()


def beside(rounds: int, small: bool) -> list[str]:
    """Prints the times of steps with and without saves, and returns the ratios as lines."""
    strategy = millrace.Strategy(devices=1)
    models = {"millrace": build(small, strategy), "keras": build(small, None)}
    model = models["millrace"]
    x, y = data(model, 40)
    watch = Stopwatch()
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[watch])
    each = watch.seconds / (40 - STARTING)
    every = 20 if small else max(round(SECONDS / each), 20)
    steps = STARTING + round(2.5 * every)
    print(
        f"{steps - STARTING} steps beside saves of {megabytes(model):.1f} MB after every "
        f"{every} steps, that is every {every * each:.1f} s"
    )
    x, y = data(model, steps)

    def fit(kind: str, callback: Callable[[pathlib.Path], Any] | None) -> Callable[[], Stopwatch]:
        def run() -> Stopwatch:
            watch = Stopwatch()
            with tempfile.TemporaryDirectory() as directory:
                more = [] if callback is None else [callback(pathlib.Path(directory))]
                models[kind].fit(
                    x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[watch, *more]
                )
            return watch

        return run

    def ours(directory: pathlib.Path) -> Any:
        return millrace.callbacks.Checkpoint(directory, every_steps=every)

    def backup(directory: pathlib.Path) -> Any:
        return keras.callbacks.BackupAndRestore(str(directory), save_freq=every)

    cases = {
        "millrace": fit("millrace", None),
        "millrace, Checkpoint": fit("millrace", ours),
        "keras": fit("keras", None),
        "keras, BackupAndRestore": fit("keras", backup),
    }
    for case in cases.values():
        case()
    watches: dict[str, list[Stopwatch]] = {name: [] for name in cases}
    for number in range(rounds):
        for name in list(cases) if number % 2 == 0 else reversed(cases):
            watches[name].append(cases[name]())
    times = {name: [watch.seconds for watch in found] for name, found in watches.items()}
    for name, values in times.items():
        harness.row(name, values, steps - STARTING)
    print()
    saving, without = "millrace, Checkpoint", "millrace"
    lines = [harness.ratio("steps: with saves / without", times[saving], times[without])]
    work = [[each.processor_seconds for each in watches[name]] for name in (saving, without)]
    lines.append(harness.ratio("steps: processor time with saves / without", *work))
    peer = "keras, BackupAndRestore"
    lines.append(harness.ratio(f"steps: {peer} / without", times[peer], times["keras"]))
    texts = [line for _, line in lines]
    texts[0] += f"   claim <= {BESIDE:.2f}x"
    return texts


# The first step after a restart.


class FirstStep(keras.callbacks.Callback):
    """Ends the process after the first step, and prints the seconds since fit began."""

    def __init__(self, begin: float, checkpoint: Any):
        super().__init__()
        self._begin, self._checkpoint = begin, checkpoint

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Prints the seconds, and leaves."""
        jax.block_until_ready(logs)
        end, seconds = time.time(), time.perf_counter() - self._begin
        found = getattr(self._checkpoint, "_checkpoints", None)
        restore = 0.0 if found is None else found.restore_seconds
        figures = {"seconds": seconds, "restore": restore, "end": end, "batch": batch}
        print(json.dumps(figures), flush=True)
        os._exit(0)


def child(form: str, root: str, small: bool) -> None:
    """Runs fit in this process: all of it to fill cache and directory, or to its first step."""
    model = build(small, millrace.Strategy(devices=1, cache_dir=f"{root}/cache"))
    x, y = data(model, 12)
    more: list[Any] = []
    if form != "without":
        more = [millrace.callbacks.Checkpoint(f"{root}/checkpoints", every_steps=5, keep=None)]
    if form == "first":
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=more)
        return
    begin = time.perf_counter()
    more.append(FirstStep(begin, more[0] if more else None))
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=more)


def restarting(rounds: int, small: bool) -> list[str]:
    """Prints the times of restarts, and returns the ratios as lines."""

    def start(form: str, root: str) -> dict[str, float]:
        task = {"form": form, "root": root, "small": small}
        begin = time.time()
        done = subprocess.run(
            [sys.executable, str(pathlib.Path(__file__).resolve())],
            env={**os.environ, "CHECKPOINT_CHILD": json.dumps(task)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        if form == "first":
            return {}
        figures = json.loads(done.stdout.splitlines()[-1])
        return {**figures, "process": figures["end"] - begin}

    found: dict[str, list[dict[str, float]]] = {"without": [], "resumed": []}
    with tempfile.TemporaryDirectory() as root:
        start("first", root)
        checkpoints = sorted(pathlib.Path(root, "checkpoints").glob("step-*"))
        for each in checkpoints[1:]:  # the one within the epoch stays
            each.rename(pathlib.Path(root, each.name))
        start("without", root)
        for number in range(rounds):
            for form in list(found) if number % 2 == 0 else reversed(found):
                found[form].append(start(form, root))
    assert {each["batch"] for each in found["resumed"]} == {5}  # noqa: S101
    lines: list[str] = []
    for name, since in (("process", "the start of the process"), ("seconds", "the start of fit")):
        print(f"from {since} to the end of the first step")
        times = {form: [each[name] for each in starts] for form, starts in found.items()}
        _milliseconds("without a checkpoint", times["without"])
        _milliseconds("resumed", times["resumed"])
        print()
        text = f"resumed / without, from {since} to the first step"
        line = harness.ratio(text, times["resumed"], times["without"])[1]
        lines.append(f"{line}   claim <= {RESTARTED:.1f}x")
    _milliseconds("of it to restore", [each["restore"] for each in found["resumed"]])
    print()
    return lines


def main() -> None:
    """Runs the three parts and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=7)
    harness.header("Checkpoints: what a save, the steps beside it, and a restart take")
    small = options.small
    lines = []
    if options.only in "blocking":
        lines += blocking(options.rounds * (1 if small else 5), small)
    if options.only in "beside":
        lines += beside(options.rounds, small)
    if options.only in "restarting":
        lines += restarting(options.rounds, small)
    print("\n".join(lines))


if __name__ == "__main__":
    if CHILD:
        child(**json.loads(CHILD))
    else:
        main()
