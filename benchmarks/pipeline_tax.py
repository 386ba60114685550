"""Cost of cutting a model into stages: time on one core, dispatch per task, memory in flight.

Claims. Tax: all stages on one device, one core, take at most 1.10x the time of the same updates in
one piece. Dispatch: the host spends at most 60 us on a task (median, small stages). Memory: 1F1B
holds as much with 64 micro-batches as with 16, where GPipe holds 4x. Peers: the unpipelined program
with the same accumulation, and a handwritten scan of gradients in JAX without Keras.

    in one piece   | scan of 16 gradients                  | update |
    pipelined      | 0F0 1F0 1B0 0B0 ... one at a time     | update of each stage |

With `device_mapping=[0, 0]` tasks run one after the other, so the wall-clock time of `fit` is the
sum of the stages' times. It includes transfers within the device, dispatch and Keras's loop.
"""

import argparse
import multiprocessing
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import millrace  # isort: skip
import jax
import jax.numpy as jnp
import keras
from jax import lax

import harness
import models
from millrace.run.pipelines.runtime import update_tasks
from millrace.run.pipelines.runtime.buffers import Buffers

LAYERS = 8
MICRO_BATCHES = 16  # micro-batches in one update
ROWS = 64  # of a micro-batch
WIDTHS = {512: 8, 1024: 2}  # and how many updates one fit makes
STAGES = (2, 4)
SCHEDULES = ("1f1b", "grouped", "zero_bubble", "gpipe")
MEMORY_AT = (4, 16, 64)  # micro-batches
TAX, DISPATCH = 1.10, 60  # the latter in microseconds


def dense_case(width: int, batch: int, updates: int) -> models.Case:
    """Returns a model of equal layers, and the rows of its updates."""

    def build() -> keras.Model:
        hidden = [keras.layers.Dense(width, "tanh") for _ in range(LAYERS)]
        return keras.Sequential([keras.Input((width,)), *hidden])

    def forward(weights: list[Any], x: Any) -> Any:
        for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
            x = jnp.tanh(x @ kernel + bias)
        return x

    rows = batch * MICRO_BATCHES * updates
    return models.Case(f"width {width}", rows, batch, (width,), (width,), build, forward)


def cut(
    model: keras.Model,
    stages: int,
    micro_batches: int = MICRO_BATCHES,
    schedule: str = "1f1b",
    **options: Any,
) -> keras.Model:
    """Puts the layers of a model on stages of equal size."""
    model.set_pipeline_stage_assignment([k * stages // LAYERS for k in range(LAYERS)])
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=micro_batches, pipeline_schedule=schedule, **options
    )
    return model


def tax(strategy: millrace.Strategy, case: models.Case, rounds: int) -> list[str]:
    """Prints the times of one width and returns its ratios as lines."""
    x, y = case.data()

    def fit(model):
        arguments = {"batch_size": case.batch, "shuffle": False, "verbose": 0}
        return lambda: model.fit(x, y, **arguments)

    whole = strategy.attach(case.model(steps_per_execution=case.steps))
    whole.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=MICRO_BATCHES)
    cases = {"in one piece": fit(whole)}
    for stages in STAGES:
        model = strategy.attach(case.model(steps_per_execution=case.steps))
        cases[f"{stages} stages"] = fit(cut(model, stages, device_mapping=[0] * stages))

    batches = models.stacked(case)
    states, updates = [models.handwritten_state(case)], updates_by_scan(case)

    def scan():
        states[0] = jax.block_until_ready(updates(states[0], batches))

    cases["jax scan"] = scan
    times = harness.paired(cases, rounds)
    print(
        f"{case.name}: {LAYERS} layers, "
        f"{case.steps // MICRO_BATCHES} updates of {MICRO_BATCHES} x {case.batch}"
    )
    for name, values in times.items():
        harness.row(name, values, case.steps)
    lines = []
    for stages in STAGES:
        own, name = times[f"{stages} stages"], f"{case.name}, {stages} stages"
        _, line = harness.ratio(f"{name}: pipelined / in one piece", own, times["in one piece"])
        # With small layers, as with --small, dispatch takes most of the time.
        lines.append(line + (f"   claim <= {TAX:.2f}x" if case.inputs[0] in WIDTHS else ""))
        lines.append(harness.ratio(f"{name}: pipelined / jax scan", own, times["jax scan"])[1])
    return lines


def updates_by_scan(case: models.Case) -> Any:
    """Returns whole updates in one dispatch, with the arithmetic of `models`."""

    def loss_of(weights, batch):
        x, y = batch
        return jnp.mean((case.forward(weights, x) - y) ** 2)

    def update(state, micro_batches):
        weights, first, second, count, total, seen = state

        def micro_batch(carry, batch):
            summed, total = carry
            loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
            return (jax.tree.map(jnp.add, summed, gradients), total + loss * case.batch), None

        carry = (jax.tree.map(jnp.zeros_like, weights), total)
        (summed, total), _ = lax.scan(micro_batch, carry, micro_batches)
        gradients = [g / MICRO_BATCHES for g in summed]
        weights, first, second, count = models.adam(weights, first, second, count, gradients)
        return (weights, first, second, count, total, seen + case.batch * MICRO_BATCHES), None

    def updates(state, batches):
        grouped = jax.tree.map(lambda a: a.reshape(-1, MICRO_BATCHES, *a.shape[1:]), batches)
        return lax.scan(update, state, grouped)[0]

    return jax.jit(updates, donate_argnums=0)


def small_case(micro_batches: int, updates: int) -> models.Case:
    """Returns stages that compute almost nothing."""
    case = dense_case(64, 8, 1)
    return replace(case, rows=case.batch * micro_batches * updates)


def dispatch(strategy: millrace.Strategy, rounds: int) -> str:
    """Returns the host's time per task, of small stages on four devices and all cores."""
    case = small_case(MICRO_BATCHES, updates=4)
    model = cut(strategy.attach(case.model(steps_per_execution=case.steps)), 4)
    medians = []
    for turn in range(rounds + 1):
        model.fit(*case.data(), batch_size=case.batch, verbose=0)
        if turn:  # the first one compiles
            medians.append(strategy.statistics().pipeline.last_task_seconds * 1e6)
    return (
        f"dispatch per task = {statistics.median(medians):.1f} us "
        f"({min(medians):.1f}-{max(medians):.1f}, n={len(medians)})   claim <= {DISPATCH} us"
    )


class WatchedBuffers(Buffers):
    """Counts the bytes held between tasks, each array once, as seen by the host."""

    most = 0

    def hold(self, stage: int, micro_batch: int, arrays: Any) -> None:
        """Holds an array, and updates the peak."""
        super().hold(stage, micro_batch, arrays)
        WatchedBuffers.most = max(WatchedBuffers.most, self.nbytes())


@dataclass(frozen=True)
class Held:
    """Peak memory of one schedule."""

    sets: tuple[int, ...]  # activation sets of each stage
    nbytes: int  # of all stages together


def held(strategy: millrace.Strategy, schedule: str, micro_batches: int) -> Held:
    """Runs one update on four devices."""
    case = small_case(micro_batches, updates=1)
    model = strategy.attach(case.model(steps_per_execution=micro_batches))
    cut(model, 4, micro_batches, schedule)
    WatchedBuffers.most = 0
    model.fit(*case.data(), batch_size=case.batch, verbose=0)
    return Held(strategy.statistics().pipeline.last_in_flight, WatchedBuffers.most)


def memory(
    strategy: millrace.Strategy, schedules: Sequence[str], counts: Sequence[int]
) -> list[str]:
    """Prints the memory of each schedule, and returns its growth."""
    case = small_case(1, 1)
    print(f"held in flight: {case.name}, micro-batches of {case.batch} rows, 4 stages")
    print("  schedule      micro-batches   activation sets of each stage      KiB")
    lines = []
    update_tasks.Buffers = WatchedBuffers  # type: ignore[misc]
    for schedule in schedules:
        peaks = {micro_batches: held(strategy, schedule, micro_batches) for micro_batches in counts}
        for micro_batches, each in peaks.items():
            sets = ", ".join(map(str, each.sets))
            print(f"  {schedule:14}{micro_batches:13}   {sets:30}{each.nbytes / 1024:8.0f}")
        *_, fewer, more = counts
        growth = peaks[more].nbytes / peaks[fewer].nbytes
        claims = {"1f1b": "   claim = 1.00x", "gpipe": f"   claim = {more / fewer:.2f}x"}
        name = f"{schedule}: bytes in flight, {more} / {fewer} micro-batches"
        lines.append(f"{name} = {growth:.2f}x{claims.get(schedule, '')}")
    update_tasks.Buffers = Buffers  # type: ignore[misc]
    return lines


def tax_and_memory(options: argparse.Namespace) -> list[str]:
    """Runs the parts for one core, and returns their ratios as lines."""
    strategy = millrace.Strategy(devices="cpu:4")
    lines = []
    for width, updates in {64: 1}.items() if options.small else WIDTHS.items():
        case = dense_case(width, ROWS, updates)
        if options.only in case.name:
            lines += tax(strategy, case, options.rounds)
    if options.only in "memory":
        schedules = ("1f1b", "gpipe") if options.small else SCHEDULES
        lines += memory(strategy, schedules, MEMORY_AT[: 2 if options.small else None])
    return lines


def on_one_core(function: Any, *arguments: Any) -> Any:
    """Calls a function in a separate process, which sees one core when it imports JAX."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # of this thread, from which the process inherits it
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()
    finally:
        os.sched_setaffinity(0, cores)


def main() -> None:
    """Runs all parts and prints the ratios last."""
    options = harness.arguments(__doc__)
    strategy = millrace.Strategy(devices="cpu:4")  # before the header, which starts JAX
    harness.header("The pipeline tax: stages on one core, dispatch, and memory in flight")
    print("on one core:", flush=True)
    lines = on_one_core(tax_and_memory, options)
    if options.only in "dispatch":
        lines.append(dispatch(strategy, options.rounds))
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
