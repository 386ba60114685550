"""The chosen plan's time per update, against the best of all plans that fit.

Claim: within 10 % of the best. For one device, on one core: every alternative of the plans. For two
devices: up to 40 of the candidates that a plan compares, trained by two processes, each on a core
of its own; two devices of one process would share its threads. Left out are those that only save
more memory than one that fits, and those with a budget that processes refuse because each of them
also holds the weights of the stages of others.

    counted     the first alternative of strategy.plan(...)
    measured    that of strategy.plan(..., measure=True); on one device only
    best        the fastest of all that fit, each trained by fit
"""

import millrace  # isort: skip
import contextlib
import functools
import os
import statistics
import sys
import tempfile
from unittest import mock

import harness
import planmodels as models
import workers
from millrace.errors import PlanError
from millrace.tools.planning import search

UPDATES = 12
CLAIM = 1.10
SHARES = (1e6, 0.8)  # of the memory of plain training
# Few enough trainings to compile all.
PAIRED = ("mlp", "residual", "lstm", "transformer")


def main() -> None:
    """Prints the times of each model on one device, and in two processes."""
    options = harness.arguments(__doc__, rounds=5)
    pair, alone = millrace.Strategy(devices="cpu:2"), millrace.Strategy(devices="cpu:1")
    harness.header("Plans: time per update of the chosen and of the best alternative")
    names = [name for name in models.MODELS if options.only in name]
    ratios: dict[str, list[float]] = {}
    shares = SHARES
    if options.small:
        names, shares = names[:1], SHARES[:1]
    for name in names:
        for share in shares:
            with _on_one_core():
                found = on_one_device(alone, name, share, options.rounds)
            if name in PAIRED:
                found |= in_two_processes(pair, name, share, options.rounds, options.small)
            for how, ratio in found.items():
                ratios.setdefault(how, []).append(ratio)
    print()
    for how, found in ratios.items():
        near = sum(ratio <= CLAIM for ratio in found)
        print(
            f"{how}: chosen / best = {statistics.median(found):.2f}x "
            f"({min(found):.2f}-{max(found):.2f}, n={len(found)})"
        )
        print(f"{how}: within 10 % = {100 * near / len(found):.0f}%   claim >= 100%")


@contextlib.contextmanager
def _on_one_core():
    """Keeps the threads of JAX, which has started already, on one core."""
    cores = os.sched_getaffinity(0)
    threads = [int(each) for each in os.listdir("/proc/self/task")]
    _pin(threads, {min(cores)})
    try:
        yield
    finally:
        _pin([int(each) for each in os.listdir("/proc/self/task")], cores)


def _pin(threads, cores):
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores)


def prepared(strategy, name, share):
    """Returns a model, data, the batch of an update and the memory."""
    x, y = models.data(models.prepared(None, name), UPDATES * models.ROWS)
    batch = models.first(x, models.ROWS), y[: models.ROWS]
    pieces = models.ROWS // len(strategy.devices)
    model = models.prepared(strategy, name)
    plain = strategy.memory_report(model, (models.first(x, pieces), y[:pieces])).peak
    return model, (x, y), batch, int(plain * share)


def on_one_device(strategy, name, share, rounds):
    """Returns the time of the chosen alternative over the best, by the kind of costs."""
    model, (x, y), batch, memory = prepared(strategy, name, share)
    try:
        plans = {
            "counted": strategy.plan(model, batch, memory),
            "measured": strategy.plan(model, batch, memory, measure=True),
        }
    except PlanError:
        print(f"{name}, one device: nothing fits into {memory:,}")
        return {}
    fits = {}
    for plan in plans.values():
        for number, alternative in enumerate(plan.alternatives, 1):
            if alternative.update not in fits:
                trained = models.prepared(strategy, name)
                rows = plan.apply(number, model=trained)
                trained.steps_per_execution *= UPDATES
                fits[alternative.update] = functools.partial(
                    trained.fit, x, y, batch_size=rows, verbose=0
                )
    times = harness.paired(fits, rounds)
    return {
        how: said(name, "1 device", memory, how, plan.chosen.update, times)
        for how, plan in plans.items()
    }


def in_two_processes(strategy, name, share, rounds, small):
    """Returns the time of the chosen alternative over the best of the candidates."""
    model, _, batch, memory = prepared(strategy, name, share)
    every = dict.fromkeys(
        ("MOST_TRIED", "MOST_FOR_SHOW", "SHOWN", "MOST_SHOWN"), 6 if small else 40
    )
    try:
        chosen = strategy.plan(model, batch, memory).chosen.update
        with mock.patch.multiple(search, **every):
            plan = strategy.plan(models.prepared(strategy, name), batch, memory)
    except PlanError:
        print(f"{name}, two processes: nothing fits into {memory:,}")
        return {}
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        plan.save(path)
        command = [os.path.abspath(__file__), "worker", name, path, workers.free_address()]
        group = workers.Workers(command, (cores[0], cores[-1]))
        try:
            numbers = group.wait().about.split(",")
            times = {plan.alternative(int(number)).update: [] for number in numbers}
            for turn in range(rounds):
                for number in numbers if turn % 2 == 0 else reversed(numbers):
                    seconds = max(group.tell(number))
                    times[plan.alternative(int(number)).update].append(seconds)
        finally:
            group.stop()
    if chosen not in times:
        print(f"{name}, two processes: {_described(chosen)} is chosen, which they cannot run")
        return {}
    return {"two processes": said(name, "2 processes", memory, "counted", chosen, times)}


def said(name, where, memory, how, chosen, times):
    """Prints and returns the time of the chosen update over the best."""
    medians = {update: statistics.median(found) / UPDATES for update, found in times.items()}
    best = min(medians, key=lambda update: medians[update])
    ratio = medians[chosen] / medians[best]
    print(
        f"{name:12} {where:11}, {memory:17,} bytes, {how:8}: {medians[chosen] * 1e3:7.2f} ms "
        f"({_described(chosen)}), best {medians[best] * 1e3:7.2f} ms ({_described(best)}): "
        f"{ratio:.2f}x of {len(times)}",
        flush=True,
    )
    return ratio


def _described(update):
    schedule = f", {update.schedule}" if update.schedule else ""
    budget = ", budget" if update.budget is not None else ""
    return f"{update.layout}, {update.micro_batches}{schedule}{budget}"


def worker(name: str, path: str, address: str, index: int) -> None:
    """Trains by each alternative that two processes can run, together with the other process."""
    millrace.distributed.initialize(address, 2, index)
    strategy, plan = millrace.Strategy(), millrace.TrainingPlan.load(path)
    x, y = models.data(models.prepared(None, name), UPDATES * models.ROWS)
    fits = {}
    for number, alternative in enumerate(plan.alternatives, 1):
        if not alternative.fits:
            continue
        model = models.prepared(strategy, name)
        rows = plan.apply(number, model=model)
        model.steps_per_execution *= UPDATES
        fit = functools.partial(model.fit, x, y, batch_size=rows, shuffle=False, verbose=0)
        try:
            fit()  # compiles
        except PlanError:  # with the weights of other stages, more than the budget
            continue
        fits[str(number)] = fit
    workers.serve(fits, ",".join(fits))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:5], int(sys.argv[5]))
    else:
        main()
