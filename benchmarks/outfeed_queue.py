"""One megabyte of every step through an OutfeedQueue, while a thread reads it.

Claim: at most 1.10x the time of the same training with a bare copy of the same bytes in every step,
the lowest cost of carrying a tensor out; a value can be read before the end of the second step
after its own; and 10,000 unread elements do not slow down training.

    without    | step | step | step |
    copy       | step, copy | step, copy | step, copy |        one step in each execution
    queue      | step | step | step |                          one execution
                 reader:  | 0 | 1    | 2
"""

import itertools
import statistics
import threading
import time

import millrace  # isort: skip
import keras
import numpy as np

import harness

CLAIM, VISIBLE = 1.10, 2.0
WIDTH, ROWS = 1024, 256  # an activation of 1 MiB


def build(queue, width: int) -> keras.Model:
    """Returns an MLP, which enqueues its first activation if there is a queue."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input((width,)), keras.layers.Dense(width, "relu")]
    if queue is not None:
        layers.append(millrace.layers.Outfeed(queue, name="first"))
    return keras.Sequential([*layers, keras.layers.Dense(width, "relu"), keras.layers.Dense(1)])


def fit(queue, steps: int, executed: int, width: int = WIDTH, rows: int = ROWS, callbacks=()):
    """Returns a function that trains `steps` steps, `executed` at a time."""
    model = millrace.Strategy(devices=1).attach(build(queue, width))
    model.compile("adam", "mse", steps_per_execution=executed)
    random = np.random.default_rng(0)
    x = random.standard_normal((steps * rows, width), "float32")
    y = random.standard_normal((steps * rows, 1), "float32")
    return lambda: model.fit(
        x, y, batch_size=rows, verbose=0, shuffle=False, callbacks=[*callbacks]
    )


class Copies(keras.callbacks.Callback):
    """Copies a megabyte after every step."""

    def __init__(self):
        super().__init__()
        self.source = np.ones((ROWS, WIDTH), "float32")
        self.target = None

    def on_train_batch_end(self, batch, logs=None):
        """Copies."""
        self.target = self.source.copy()


def reading(queue, steps: int, arrivals: list[float]):
    """Reads `steps` elements on arrival, and records the times."""

    def read():
        seen = 0
        while seen < steps:
            for _ in queue:
                arrivals.append(time.perf_counter())
                seen += 1
            time.sleep(1e-3)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def lags(arrivals: list[float], end: float) -> tuple[float, float]:
    """Returns the longest time without a new value, and the delay of the last one after fit's end.

    Both in steps. A call has two steps, whose values arrive together. So a value arrives before the
    end of the second step after its own if no gap is much longer than two steps.
    """
    step = (arrivals[-1] - arrivals[0]) / (len(arrivals) - 2)
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    return max(gaps) / step, (arrivals[-1] - end) / step


def main() -> None:
    """Measures all and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=7)
    harness.header("OutfeedQueue: one megabyte per step")
    steps = 8 if options.small else 60
    queue, behind = millrace.OutfeedQueue(), []
    train = fit(queue, steps, steps)

    def read_while_training():
        arrivals: list[float] = []
        thread = reading(queue, steps, arrivals)
        train()
        end = time.perf_counter()
        thread.join()
        behind.append(lags(arrivals, end))

    cases = {
        "without, one execution": fit(None, steps, steps),
        "without, an execution per step": fit(None, steps, 1),
        "copy after each step": fit(None, steps, 1, callbacks=[Copies()]),
        "queue, read while it runs": read_while_training,
    }
    times = harness.paired(cases, options.rounds)
    for name, values in times.items():
        harness.row(name, values, steps)
    gaps, last = zip(*behind[1:], strict=True)
    print(
        f"  longest time without a new value {statistics.median(gaps):.2f} steps "
        f"(median of {len(gaps)} runs); a call has 2 steps, claim: no value later than {VISIBLE}"
    )
    print(f"  last value {statistics.median(last):+.2f} steps after fit has returned\n")

    many = 200 if options.small else 10_000
    small = {"rows": 32, "width": 64}
    unread = millrace.OutfeedQueue()
    nobody = fit(unread, many, many, **small)
    read = millrace.OutfeedQueue()
    somebody = fit(read, many, many, **small)
    undequeued = harness.paired(
        {"nobody dequeues": nobody, "dequeued": lambda: (somebody(), read.dequeue())},
        2 if options.small else 3,
    )
    print(f"{many} elements of {small['rows'] * small['width'] * 4 // 1024} KiB")
    for name, values in undequeued.items():
        harness.row(name, values, many)
    print(f"  dropped: {unread.dropped} elements beyond max_bytes")

    print()
    for over, under in (
        ("queue, read while it runs", "copy after each step"),
        ("queue, read while it runs", "without, one execution"),
    ):
        print(harness.ratio(f"{over} / {under}", times[over], times[under])[1])
    _, line = harness.ratio(
        "nobody dequeues / dequeued", undequeued["nobody dequeues"], undequeued["dequeued"]
    )
    print(line)
    _, line = harness.ratio(
        "queue / bare copy",
        times["queue, read while it runs"],
        times["copy after each step"],
    )
    print(f"{line}   claim <= {CLAIM}x")


if __name__ == "__main__":
    main()
