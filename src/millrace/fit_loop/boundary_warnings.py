"""Logs once why the recomputation boundaries of a model have no effect."""

import logging
from collections.abc import Sequence

from millrace.plan import Mode, Plan

logger = logging.getLogger("millrace")


def reason_boundaries_rest(plan: Plan) -> str | None:
    """Returns why boundaries do nothing in the programs of a plan, None if they may act."""
    recompute = plan.recompute
    if plan.mode is not Mode.TRAIN:
        return None  # there is no backward, and nobody expects one
    if recompute is None:
        return (
            "backward keeps everything. Set mode='auto' in model.set_recomputation_options(): "
            "'none' is off, and a model in one piece cannot be run again as a whole."
        )
    if recompute.budget is not None or recompute.choice is not None:
        return "the budget chooses what is kept. Leave it out to choose by boundaries."
    if recompute.whole_stages:
        return (
            "each stage is run again as a whole. Set "
            "recomputation_mode='recompute_and_backpropagate_interleaved' and a schedule that goes "
            "with it."
        )
    return None


def say_if_boundaries_rest(plan: Plan, found: Sequence[str], model: str) -> bool:
    """Logs why boundaries that were found do nothing; returns whether it did."""
    reason = reason_boundaries_rest(plan) if found else None
    if reason is not None:
        logger.info("RecomputationCheckpoint in %r does nothing: %s", model, reason)
    return reason is not None
