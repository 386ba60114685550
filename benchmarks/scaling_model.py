"""The time of an update in two processes, as `simulate` predicts it from costs measured apart.

Claim. The prediction is within 5 % of the measured time.

    measured apart    tasks      both stages in one process on one core, without transfers
                      shares     of each stage and pass in them, from the records of such a run
                      one        updates of one micro-batch, in one process and in two
                      transfer   a result to the other process and back, nothing else running
    predicted         1F1B of two stages, as `millrace simulate --shared-core` does
    measured          the pipeline of pipeline_processes.py: two processes, one core each

Nothing is fitted to the time that is predicted. Rounds of all of them alternate, and each round has
its own prediction, so that a machine that gets slower does so for both sides.
"""

import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import millrace  # isort: skip
import jax
import keras
import numpy as np

import harness
import pipeline_processes
import workers
from millrace.base.devices import DeviceGroup
from millrace.base.records.run import load
from millrace.run.pipelines.runtime.transfer import Edge
from millrace.run.schedules.costs import UpdateCosts
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.task import Pass
from millrace.run.schedules.update_time import UpdateTime, update_time
from millrace.tools.reports.run_costs import costs_of_run
from pipeline_processes import STAGES, Case

BAR = "0.95-1.05"
HOPS = 40  # of a measurement of transfers
UPDATES = 6  # in a fit
PASSES = (Pass.FORWARD, Pass.BACKWARD)
SHARES = [(kind, stage) for kind in PASSES for stage in range(STAGES)]


@dataclass(frozen=True)
class Costs:
    """Measured in one round, in seconds."""

    tasks: float  # an update of both stages in one process
    one: float  # the same with one micro-batch
    one_apart: float  # an update of one micro-batch in two processes
    dispatch: float  # of a small task
    hop: float  # of a transfer, from the end of a task to the begin of the task that takes it
    work: float  # of a transfer: processor time, on each side
    shares: dict[tuple[Pass, int], float]  # of a micro-batch, by pass and stage

    def predicted(self, micro_batches: int) -> UpdateTime:
        """Returns the time of an update in two processes."""
        micro_batch = (self.tasks - self.one) / (micro_batches - 1)
        costs = UpdateCosts(
            # The measured tasks share their core with their dispatch.
            tasks={
                kind: [
                    max(micro_batch * self.shares[kind, stage] - self.dispatch, 0.0)
                    for stage in range(STAGES)
                ]
                for kind in PASSES
            },
            dispatch=self.dispatch,
            is_core_shared=True,
            transfer=max(self.hop - 2 * self.work, 0.0),
            transfer_work=self.work,
        )
        # The update, and what `fit` does besides, are there with one micro-batch, too.
        rest = self.one_apart - update_time(one_f_one_b(STAGES, 1), costs).total
        costs = replace(costs, update=max(rest, 0.0))
        return update_time(one_f_one_b(STAGES, micro_batches), costs)


def updates_of(case: Case) -> int:
    """Returns the updates of a fit: some, to divide the work of a fit by."""
    return min(max(case.updates), UPDATES)


def worker(role: str, case: Case, address: str, index: int) -> None:
    """Serves the pipeline and its transfers, or both stages in this process."""
    if role == "pipeline":
        millrace.distributed.initialize(address, STAGES, index)
        fit, one = fitting(case)[0], fitting(replace(case, micro_batches=1))[0]
        workers.serve({"pipeline": fit, "one": one, **transfers(case, index)})
        return
    with tempfile.TemporaryDirectory() as folder:
        workers.serve(tasks(case, folder))


def tasks(case: Case, folder: str) -> dict[str, Callable[[], object]]:
    """Returns the cases of a process that runs both stages."""
    fit, _ = fitting(case, [0, 0])
    one, _ = fitting(replace(case, micro_batches=1), [0, 0])
    traced, _ = fitting(case, [0, 0], folder)

    # On CPUs the host may run a task while it dispatches it, so that of small tasks is measured.
    small = next(each for each in pipeline_processes.SMALL if each.kind == case.kind)
    dispatched, strategy = fitting(small, [0, 0])

    def dispatch() -> float:
        dispatched()
        return strategy.statistics().pipeline.last_task_seconds

    def share(kind: Pass, stage: int) -> float:
        costs = costs_of_run(load(folder)).tasks
        return costs[kind][stage] / sum(sum(costs[each]) for each in PASSES)

    return {
        "tasks": fit,
        "one": one,
        "trace": traced,
        "dispatch": dispatch,
        **{f"{kind}{stage}": functools.partial(share, kind, stage) for kind, stage in SHARES},
    }


def fitting(
    case: Case, mapping: list[int] | None = None, folder: str | None = None
) -> tuple[Callable[[], object], millrace.Strategy]:
    """Returns a compiled `fit` of the pipeline, and its strategy."""
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy(report_dir=folder)
    with strategy.scope():
        model = pipeline_processes.pipelined(case)
        if mapping is not None:
            model.set_pipelining_options(device_mapping=mapping)
        steps = case.micro_batches * updates_of(case)
        model.compile(
            keras.optimizers.SGD(pipeline_processes.RATE), "mse", steps_per_execution=steps
        )
    random = np.random.default_rng(0)
    x, y = (
        random.standard_normal((steps * case.rows, *case.shape), dtype=np.float32) for _ in range(2)
    )
    fit = functools.partial(model.fit, x, y, batch_size=case.rows, shuffle=False, verbose=0)
    fit()  # compiles
    return fit, strategy


def transfers(case: Case, index: int) -> dict[str, Callable[[], object]]:
    """Returns the cases that send a result to the other process and back, many times."""
    ends = [DeviceGroup((device,)) for device in jax.devices()]
    there, back = Edge(ends[0], ends[1]), Edge(ends[1], ends[0])
    first = np.ones((case.rows, *case.shape), np.float32)
    spec = [jax.ShapeDtypeStruct(first.shape, first.dtype)]
    task = jax.jit(lambda x: x + 1.0)
    jax.block_until_ready(task(first))
    seen = {"work": 0.0}

    def hops() -> float:
        array = jax.block_until_ready(jax.device_put(first, jax.local_devices()[0]))
        begin, processor = time.perf_counter(), time.process_time()
        for _ in range(HOPS):
            mine = there.move([array] if index == 0 else None, spec)
            sent = [task(mine[0])] if mine is not None else None
            back_again = back.move(sent, spec)
            array = task(back_again[0]) if back_again is not None else (sent or [array])[0]
        jax.block_until_ready(array)
        seconds = time.perf_counter() - begin
        seen["work"] = (time.process_time() - processor) / (2 * HOPS) - alone / 2
        return seconds / (2 * HOPS) - alone

    def chain() -> float:
        array = jax.block_until_ready(jax.device_put(first, jax.local_devices()[0]))
        begin = time.perf_counter()
        for _ in range(2 * HOPS):
            array = task(array)
        jax.block_until_ready(array)
        return (time.perf_counter() - begin) / (2 * HOPS)

    alone = statistics.median(chain() for _ in range(5))
    return {"hop": hops, "work": lambda: seen["work"]}


def measure(case: Case, rounds: int) -> list[str]:
    """Prints the costs and the times of one case, and returns its ratio as a line."""
    here = os.path.abspath(__file__)
    cores = sorted(os.sched_getaffinity(0))
    pair = (cores[0], cores[-1])
    groups = {
        role: workers.Workers([here, "worker", role, *case.words, workers.free_address()], pair)
        for role in ("pipeline", "tasks")
    }
    try:
        for group in groups.values():
            group.wait()
        found = [_round(case, groups) for _ in range(rounds + 1)][1:]  # the first one warms up
    finally:
        for group in groups.values():
            group.stop()
    predictions = [costs.predicted(case.micro_batches) for costs, _ in found]
    predicted, measured = [each.total for each in predictions], [seconds for _, seconds in found]
    print(f"{case.name}, {updates_of(case)} updates; a step is an update")
    rows = {
        "both stages in one process": [costs.tasks for costs, _ in found],
        "with one micro-batch": [costs.one for costs, _ in found],
        "with one, in two processes": [costs.one_apart for costs, _ in found],
        "dispatch of a small task": [costs.dispatch for costs, _ in found],
        "transfer": [costs.hop for costs, _ in found],
        "processor time of it, on each side": [costs.work for costs, _ in found],
        "predicted": predicted,
        "measured": measured,
    }
    for name, values in rows.items():
        harness.row(name, values, 1)
    parts: dict[str, list[float]] = {}
    for each in predictions:
        for name, part in each.parts():
            parts.setdefault(name, []).append(part / each.total)
    print("  " + ", ".join(f"{name} {statistics.median(v):.1%}" for name, v in parts.items()))
    return [_line(case.name, predicted, measured)]


def _round(case: Case, groups: dict[str, workers.Workers]) -> tuple[Costs, float]:
    def mean(name: str) -> float:
        return statistics.mean(groups["tasks"].tell(name))

    one, tasks = mean("one") / updates_of(case), mean("tasks") / updates_of(case)
    one_apart = max(groups["pipeline"].tell("one")) / updates_of(case)
    measured = max(groups["pipeline"].tell("pipeline")) / updates_of(case)
    hop = max(groups["pipeline"].tell("hop"))
    work = statistics.mean(groups["pipeline"].tell("work"))
    mean("trace")
    shares = {(kind, stage): mean(f"{kind}{stage}") for kind, stage in SHARES}
    return Costs(tasks, one, one_apart, mean("dispatch"), hop, work, shares), measured


def _line(name: str, predicted: list[float], measured: list[float]) -> str:
    ratios = sorted(a / b for a, b in zip(predicted, measured, strict=True))
    spread = f"{ratios[0]:.3f}-{ratios[-1]:.3f}, n={len(ratios)}"
    best = min(predicted) / min(measured)  # least disturbed by others on the machine
    middle = statistics.median(ratios)
    return (
        f"{name}: predicted / measured = {middle:.3f} ({spread}; of the best times {best:.3f})"
        f"   claim {BAR}"
    )


def main() -> None:
    """Runs all cases and prints the ratios last."""
    options = harness.arguments(__doc__)
    harness.header("The time of an update in two processes, predicted from its costs")
    lines = []
    for case in pipeline_processes.SMALL if options.small else pipeline_processes.CASES:
        if options.only in case.name:
            lines += measure(case, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        role, kind, *sizes, address, index = sys.argv[2:]
        worker(role, Case.read(kind, *sizes), address, int(index))
    else:
        main()
