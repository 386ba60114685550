"""A line in the log where a model has boundaries that its programs ignore."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.programs.plan import Mode, Plan
from millrace.programs.recomputation.boundaries import collected_boundaries

logger = logging.getLogger("millrace")


class IgnoredBoundaries:
    """Watches the traces of a model, and says once why boundaries in it have no effect."""

    def __init__(self, model: str):
        """Begins to watch the model of this name."""
        self._model = model
        self._has_said = False

    @contextmanager
    def watched(self, plan: Plan) -> Iterator[None]:
        """Surrounds a trace of a step of a plan."""
        with collected_boundaries() as boundaries:
            yield
        reason = why_ignored(plan) if boundaries and not self._has_said else None
        if reason is not None:
            self._has_said = True
            logger.info("RecomputationCheckpoint in %r has no effect: %s", self._model, reason)


def why_ignored(plan: Plan) -> str | None:
    """Returns why the programs of a plan ignore boundaries; None if they may use them."""
    recompute = plan.recompute
    if plan.mode is not Mode.TRAIN:
        return None  # nobody expects boundaries to act without a backward
    if recompute is None:
        return (
            "backward recomputes nothing. Set mode='auto' in model.set_recomputation_options(): "
            "'none' is off, and a model in one piece cannot be recomputed as a whole."
        )
    if recompute.budget is not None or recompute.choice is not None:
        return "the budget decides what is recomputed. Leave it out to recompute by boundaries."
    if recompute.whole_stages:
        return (
            "each stage is recomputed as a whole. Set "
            "recomputation_mode='recompute_and_backpropagate_interleaved' and a schedule that "
            "supports it."
        )
    return None
