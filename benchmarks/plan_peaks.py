"""The peaks that plans predict, against those of the training that they set; ten models.

Claim: the compiled peak after `plan.apply()` is within 3 % of the plan's and never above the
memory, and losses are plain Keras's to 1e-6. Memory: shares of the plain training in one piece.

    planned    compiled peak of the chosen alternative
    applied    `strategy.memory_report` of a model with the plan
    losses     largest relative difference from plain Keras over two epochs
    seconds    to plan
"""

import functools
import time

import millrace  # isort: skip
import keras
import numpy as np

import harness
import planmodels as models
from millrace.errors import PlanError

SHARES = (1.0, 0.8, 0.6, 0.4)
DEVICES = (1, 2, 4)
NEAR, SAME = 0.03, 1e-6


def main() -> None:
    """Prints each model, device count and budget."""
    options = harness.arguments(__doc__)
    harness.header("Plans: predicted and compiled peaks")
    names = [name for name in models.MODELS if options.only in name]
    devices, shares = (2,) if options.small else DEVICES, (1.0, 0.8) if options.small else SHARES
    names = names[:1] if options.small else names
    print(f"{'model':12} {'devices':>7} {'memory':>11} {'planned':>11} {'applied':>11} ", end="")
    print(f"{'error':>7} {'losses':>8} {'seconds':>7}  layout, micro-batches")
    measure = functools.partial(of_model, devices=devices, shares=shares)
    rows = [row for found in harness.side_by_side(measure, names) for row in found]
    worst, over = max(row["error"] for row in rows), sum(row["over"] for row in rows)
    losses, slowest = max(row["losses"] for row in rows), max(row["seconds"] for row in rows)
    print()
    print(f"plans that fit, of {len(names) * len(devices) * len(shares)} = {len(rows)}")
    print(f"largest error of a peak = {100 * worst:.2f}%   claim <= {100 * NEAR:.0f}%")
    print(f"peaks above the memory = {over}   claim <= 0")
    print(
        f"largest difference of a loss, in millionths = {1e6 * losses:.2f}   "
        f"claim <= {1e6 * SAME:.0f}"
    )
    print(f"longest time to plan = {slowest:.0f} s")


def of_model(name, devices, shares):
    """Returns the results of one model."""
    strategies = [millrace.Strategy(devices=f"cpu:{n}") for n in reversed(devices)]
    found = [measure(strategy, name, shares) for strategy in reversed(strategies)]
    return [row for rows in found for row in rows if row]


def measure(strategy, name, shares):
    """Yields the results of one model on the devices of a strategy; None where nothing fits."""
    x, y = models.data(models.prepared(None, name), 3 * models.ROWS)
    batch = models.first(x, models.ROWS), y[: models.ROWS]
    expected = losses_of(models.prepared(None, name), x, y, models.ROWS)
    planned = models.prepared(strategy, name)
    pieces = models.ROWS // len(strategy.devices)
    plain = strategy.memory_report(planned, (models.first(x, pieces), y[:pieces])).peak
    for share in shares:
        memory = int(plain * share)
        begin = time.perf_counter()
        try:
            plan = strategy.plan(models.prepared(strategy, name), batch, memory)
        except PlanError as error:
            text = str(error).partition("smallest takes ")[2].split()[0]
            print(f"{name:12} {len(strategy.devices):7} {memory:11,}  least {text}")
            yield None
            continue
        seconds = time.perf_counter() - begin
        model = models.prepared(strategy, name)
        rows = plan.apply(model=model)
        applied = strategy.memory_report(model, (models.first(x, rows), y[:rows])).peak
        losses = losses_of(model, x, y, rows)
        difference = np.max(np.abs(losses - expected) / np.abs(expected))
        error, update = abs(applied / plan.chosen.peak - 1), plan.chosen.update
        print(
            f"{name:12} {len(strategy.devices):7} {memory:11,} {plan.chosen.peak:11,} "
            f"{applied:11,} {error:7.2%} {difference:8.1e} {seconds:7.1f}  {update.layout}, "
            f"{update.micro_batches}{', budget' if update.budget else ''}"
            f"{', sharded' if update.shard_optimizer_state else ''}",
            flush=True,
        )
        yield {
            "error": error,
            "over": applied > memory,
            "losses": difference,
            "seconds": seconds,
        }


def losses_of(model, x, y, rows):
    """Returns the losses of two epochs."""
    keras.utils.set_random_seed(1)
    return np.array(model.fit(x, y, batch_size=rows, epochs=2, verbose=0).history["loss"])


if __name__ == "__main__":
    main()
