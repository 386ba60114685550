"""The chosen plan's time per update, against the best of all alternatives that were compiled.

Goal: within 10 % of the best. On CPU two virtual devices share the threads of one process, so that
an update of several devices takes other times than its costs say; the figure with `measure=True`
shows what measuring gains.

    counted    the first alternative of strategy.plan(...)
    measured   that of strategy.plan(..., measure=True)
    best       the fastest of all alternatives of both, each trained by fit
"""

import millrace  # isort: skip
import statistics
import time

import harness
import planmodels as models

UPDATES = 12
GOAL = 1.10


def main() -> None:
    """Prints the times of each model on one and two devices."""
    options = harness.arguments(__doc__, rounds=5)
    strategies = {number: millrace.Strategy(devices=f"cpu:{number}") for number in (2, 1)}
    harness.header("Plans: time per update of the chosen and of the best alternative")
    names = [name for name in models.MODELS if options.only in name]
    names = names[:1] if options.small else names
    ratios: dict[str, list[float]] = {"counted": [], "measured": []}
    for name in names:
        for number in (2,) if options.small else (1, 2):
            for share in (1e6,) if options.small else (1e6, 0.8):
                found = compare(strategies[number], name, share, options.rounds)
                for how, ratio in found.items():
                    ratios[how].append(ratio)
    print()
    for how, found in ratios.items():
        near = sum(ratio <= GOAL for ratio in found)
        print(
            f"{how}: chosen / best = {statistics.median(found):.2f}x "
            f"({min(found):.2f}-{max(found):.2f}, n={len(found)}), within 10 %: {near}"
        )


def compare(strategy, name, share, rounds):
    """Returns the time of the chosen alternative over the best, by the kind of costs."""
    x, y = models.data(models.prepared(None, name), UPDATES * models.ROWS)
    batch = models.first(x, models.ROWS), y[: models.ROWS]
    pieces = models.ROWS // len(strategy.devices)
    model = models.prepared(strategy, name)
    plain = strategy.memory_report(model, (models.first(x, pieces), y[:pieces])).peak
    memory = int(plain * share)
    try:
        plans = {
            "counted": strategy.plan(model, batch, memory),
            "measured": strategy.plan(model, batch, memory, measure=True),
        }
    except millrace.errors.PlanError:
        print(f"{name}, {len(strategy.devices)} devices: nothing fits into {memory:,}")
        return {}
    updates = list(dict.fromkeys(a.update for plan in plans.values() for a in plan.alternatives))
    times: dict[object, list[float]] = {update: [] for update in updates}
    models_of = {}
    for plan in plans.values():
        for number, alternative in enumerate(plan.alternatives, 1):
            if alternative.update not in models_of:
                trained = models_of[alternative.update] = models.prepared(strategy, name)
                plan.apply(number, model=trained)
                trained.steps_per_execution *= UPDATES
    for turn in range(rounds + 1):
        for update, trained in models_of.items():
            begin = time.perf_counter()
            trained.fit(x, y, batch_size=update.batch_size, verbose=0)
            if turn:
                times[update].append((time.perf_counter() - begin) / UPDATES)
    medians = {update: statistics.median(found) for update, found in times.items()}
    best = min(medians, key=lambda update: medians[update])
    ratios = {}
    for how, plan in plans.items():
        chosen = plan.chosen.update
        ratios[how] = medians[chosen] / medians[best]
        print(
            f"{name:12} {len(strategy.devices)} devices, {memory:13,} bytes, {how:8}: "
            f"{medians[chosen] * 1e3:7.2f} ms ({chosen.layout}, {chosen.micro_batches}), best "
            f"{medians[best] * 1e3:7.2f} ms ({best.layout}, {best.micro_batches}): "
            f"{ratios[how]:.2f}x of {len(updates)}",
            flush=True,
        )
    return ratios


if __name__ == "__main__":
    main()
