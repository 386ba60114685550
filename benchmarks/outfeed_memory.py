"""All gradients of every step through a queue that is read once an epoch: memory and time.

Claims: the peak of the process is above that of the same training without a queue by at most three
times the bytes of the elements that wait to be read, plus 200 MB, however many steps an execution
has; and a step takes the same time in an execution of 2,000 steps as in one of 100, within 1.2x.

    execution     |-------------------------- steps --------------------------|
    calls         |-- 2 MiB of gradients --|-- 2 MiB --|-- 2 MiB --|   ...
    queue                                  [e e e e e] [e e e e e] ...         dequeue()

A dense network 784-128-10, batch 32, one execution an epoch; each run is a process of its own.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import millrace  # isort: skip
import keras
import numpy as np

import harness

ROWS, INPUTS, UNITS, OUTPUTS = 32, 784, 128, 10
TIMES, MORE, SAME = 3, 200e6, 1.2  # the claims
EPOCHS = 5  # of which the first two compile, and find the length of calls

CASES = {
    "resident, 100 steps": {"steps": 100},
    "resident, 400 steps": {"steps": 400},
    "resident, 2000 steps": {"steps": 2000},
    "streamed, 400 steps": {"steps": 400, "streamed": True},
    "functional, 400 steps": {"steps": 400, "functional": True},
    "pipeline, 400 steps": {"steps": 400, "stages": 2},
    "functional pipeline, 400 steps": {"steps": 400, "functional": True, "stages": 2},
}
SMALL = {"resident, 40 steps": {"steps": 40}}


def build(functional: bool, stages: int) -> keras.Model:
    """Returns a network of two layers, in one piece or with a stage for each."""
    keras.utils.set_random_seed(0)
    hidden, last = keras.layers.Dense(UNITS, "relu"), keras.layers.Dense(OUTPUTS)
    inputs = keras.Input((INPUTS,))
    if functional:
        model = keras.Model(inputs, last(hidden(inputs)))
    else:
        model = keras.Sequential([inputs, hidden, last])
    millrace.Strategy(devices=stages).attach(model)
    if stages > 1:
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        assignment = model.get_pipeline_stage_assignment() if functional else [0, 1]
        if functional:
            for layer, stage in zip(assignment, (0, 1), strict=True):
                layer.pipeline_stage = stage
        model.set_pipeline_stage_assignment(assignment)
    return model


def batches(steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches without end, from few rows."""
    random = np.random.default_rng(0)
    x = random.standard_normal((64, ROWS, INPUTS), np.float32)
    y = random.integers(0, OUTPUTS, (64, ROWS))
    while True:
        yield from zip(x, y, strict=True)


class Reader(keras.callbacks.Callback):
    """Times epochs, and dequeues after each."""

    def __init__(self, queue: millrace.OutfeedQueue | None):
        super().__init__()
        self._queue, self._begin = queue, 0.0
        self.seconds: list[float] = []
        self.nbytes = 0

    def on_epoch_begin(self, epoch: int, logs=None) -> None:
        """Starts the clock."""
        self._begin = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs=None) -> None:
        """Stops the clock, and reads."""
        self.seconds.append(time.perf_counter() - self._begin)
        if self._queue is not None:
            self.nbytes = sum(value.nbytes for value in self._queue.dequeue().values())


def train(
    queued: bool, steps: int, streamed: bool = False, functional: bool = False, stages: int = 1
) -> None:
    """Trains in this process, and prints its peak, the bytes of an epoch's elements, and times."""
    model = build(functional, stages)
    optimizer, queue = keras.optimizers.SGD(0.01), None
    if queued:
        queue = millrace.MaybeOutfeedQueue()
        optimizer = millrace.optimizers.OutfeedOptimizer(
            optimizer, queue, "after_compute" if stages > 1 else "before_apply", model=model
        )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, steps_per_execution=steps)
    reader, data = Reader(queue), batches(steps)
    rest = {"epochs": EPOCHS, "verbose": 0, "callbacks": [reader]}
    if streamed:
        model.fit(data, steps_per_epoch=steps, **rest)
    else:
        x, y = (np.concatenate(a) for a in zip(*[next(data) for _ in range(steps)], strict=True))
        model.fit(x, y, batch_size=ROWS, shuffle=False, **rest)
    with open("/proc/self/status") as file:
        peak = int(file.read().split("VmHWM:")[1].split()[0]) * 1024
    print(json.dumps([peak, reader.nbytes, statistics.median(reader.seconds[2:])]))


def run(queued: bool, case: dict[str, int]) -> tuple[int, int, float]:
    """Trains in a new process."""
    command = [sys.executable, __file__, "--case", json.dumps({"queued": queued, **case})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measures all cases, and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=3, case="train in this process, as JSON says")
    if options.case:
        train(**json.loads(options.case))
        return
    harness.header("Outfeed queues: memory of all gradients, and time per step")
    lines, times = [], {}
    for name, case in (SMALL if options.small else CASES).items():
        if options.only not in name:
            continue
        pairs = [(run(False, case), run(True, case)) for _ in range(options.rounds)]
        nbytes = pairs[0][1][1]
        print(f"{name}: elements of {nbytes / 1e6:.0f} MB an execution")
        for label, index in (("without a queue", 0), ("with a queue", 1)):
            peaks = sorted(pair[index][0] / 1e6 for pair in pairs)
            print(
                f"  peak {label:<29} {statistics.median(peaks):10.0f} MB"
                f"        ({peaks[0]:.0f}-{peaks[-1]:.0f}, n={len(peaks)})"
            )
            times[name, index] = [pair[index][2] for pair in pairs]
            harness.row(label, times[name, index], case["steps"])
        more = [queued[0] - without[0] for without, queued in pairs]
        allowed = [TIMES * nbytes + MORE] * len(more)
        text = f"{name}: peak above that without / {TIMES} times the elements and 200 MB"
        lines.append(f"{harness.ratio(text, more, allowed)[1]}   claim <= 1x")
    print()
    first, last = "resident, 100 steps", "resident, 2000 steps"
    if (first, 1) in times and (last, 1) in times:
        over = [seconds / 2000 for seconds in times[last, 1]]
        under = [seconds / 100 for seconds in times[first, 1]]
        text = "a step with a queue, of 2000 / of 100"
        lines.append(f"{harness.ratio(text, over, under)[1]}   claim <= {SAME}x")
    for name in dict.fromkeys(name for name, _ in times):
        text = f"{name}: time with a queue / without"
        lines.append(harness.ratio(text, times[name, 1], times[name, 0])[1])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
