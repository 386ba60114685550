"""The most rows that a step can compute at a time within a limit of memory: `micro_batch="auto"`.

    rows        256    128    64    32    ...    compiled for their memory, until one fits;
                            ^ 96 ^ 80            then those between it and the one before

Nothing runs before the choice. The limit is a recomputation budget in bytes, or else the memory of
the strategy and of the device; where none is known, as on a CPU, a batch is not divided. A budget
recomputes only where not even one row at a time stays within it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from millrace._compat.jax_memory import memory_limit
from millrace.base.records.memory_report import BudgetChoice
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.progress import search
from millrace.programs.plan import Mode, Plan, divided, with_choice, with_micro_batch
from millrace.run.compiled_loop.budget import announce, attempt

logger = logging.getLogger("millrace")


def is_undecided(plan: Plan) -> bool:
    """Whether the rows that a step computes at a time are still to be chosen."""
    return plan.mode is Mode.TRAIN and plan.accumulation.micro_batch == "auto"


def candidates(plan: Plan) -> list[Plan]:
    """Returns the plans to choose among, from the whole batch down to one row at a time."""
    rows, plan = plan.batch.rows, replace(plan, chooses_rows=True)
    divisions = {divided(rows, -(-rows // parts)): None for parts in range(1, rows + 1)}
    return [
        with_micro_batch(plan, division.rows if division.parts > 1 else "whole")
        for division in sorted(divisions, key=lambda each: -each.rows)
    ]


def limit_of(plan: Plan, blocks_ahead: int, memory: int | None) -> int | None:
    """Returns the bytes that a program may take; None if no limit is known.

    Args:
        plan: of the program.
        blocks_ahead: blocks of batches that wait on the device meanwhile.
        memory: bytes of a device that training may take; None for all that the device has.
    """
    budget = plan.recompute.budget if plan.recompute is not None else None
    if isinstance(budget, int):
        return budget
    reported = [memory_limit(device) for device in plan.group.devices]
    limits = [limit for limit in (memory, *reported) if limit is not None]
    if not limits:
        return None
    on_device = 0 if plan.group.platform == "cpu" else blocks_ahead
    return min(limits) - on_device * plan.capacity * plan.batch.nbytes // plan.replicas


def most_that_fit(
    plans: Sequence[Plan], limit: int, measure: Callable[[Plan], int], model: str, log: CompileLog
) -> Plan:
    """Compiles plans until it knows the first that stays within a limit, and logs it.

    Args:
        plans: in falling order of their memory.
        limit: bytes.
        measure: compiles the program of a plan, and returns its bytes without a budget.
        model: name of the model.
        log: records the choice.

    Returns:
        The plan; the last one if none fits.
    """
    peaks: dict[int, int] = {}

    def fits(number: int) -> bool:
        if number not in peaks:
            plan = plans[number]
            tick(attempt([*peaks.values()], f"{plan.division.rows} rows at a time"))
            peaks[number] = measure(plan)
        return peaks[number] <= limit

    with (
        log.timed(),
        search(f"planning {model!r} for the memory of its device") as tick,
        log.trying(plans[0], model) as trial,
    ):
        number = first_that_fits([plan.division.rows for plan in plans], fits)
        if number is not None:
            trial.chosen = with_choice(plans[number], 0)
    last = len(plans) - 1
    chosen = plans[last if number is None else number]
    peak, division = peaks[last if number is None else number], chosen.division
    if number is None and not chosen.has_budget:
        logger.warning(
            "%r takes %s bytes even with one row at a time, and the device has %s. Set "
            "model.set_recomputation_options(budget=%d), or build a smaller model.",
            model,
            f"{peak:,}",
            f"{limit:,}",
            limit,
        )
    at_a_time = f"{division.rows} at a time" if division.parts > 1 else "at once"
    text = f"a step computes its {division.batch_rows} rows {at_a_time}"
    if number is not None:
        announce(BudgetChoice(model, limit, peak, 0.0, text), log)
    return chosen


def first_that_fits(rows: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Returns the number of the largest rows that fit; None if not even the last do.

    Args:
        rows: in falling order.
        fits: whether the rows of a number fit; if they do, all fewer rows do.
    """
    before, number = -1, 0
    while not fits(number):
        if number == len(rows) - 1:
            return None
        before = number
        half = rows[number] // 2
        number = next((k for k in range(number + 1, len(rows)) if rows[k] <= half), len(rows) - 1)
    while number - before > 1:
        middle = (before + number) // 2
        before, number = (before, middle) if fits(middle) else (middle, number)
    return number
