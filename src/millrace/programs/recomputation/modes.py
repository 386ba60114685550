"""The recomputation that the options ask for, in the plan of a program.

And a line in the log where a model has boundaries that its programs ignore.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.base.options import Recomputation, RecomputationMode
from millrace.errors import PlanError
from millrace.programs.plan import Mode, Plan, Recompute
from millrace.programs.recomputation.boundaries import collected_boundaries

THEN = RecomputationMode.RECOMPUTE_THEN_BACKPROPAGATE
INTERLEAVED = RecomputationMode.RECOMPUTE_AND_BACKPROPAGATE_INTERLEAVED

# The schedules that do not take every mode, with those that they take.
_MODES = {"1f1b": (THEN,), "grouped": (THEN, INTERLEAVED), "sequential": (INTERLEAVED,)}


def recompute_of(recomputation: Recomputation, schedule: object) -> Recompute | None:
    """Returns the recomputation of a plan; None: nothing runs again.

    Args:
        recomputation: the options.
        schedule: of a pipeline; None for a model in one piece.

    Raises:
        PlanError: if the schedule and the mode do not go together.
    """
    mode = recomputation.mode
    if recomputation.budget is not None:
        return Recompute(budget=recomputation.budget)
    if mode is RecomputationMode.NONE:
        return None
    name = schedule.lower() if isinstance(schedule, str) else None
    legal = _MODES.get(name or "", (THEN, INTERLEAVED))
    if mode is RecomputationMode.AUTO:
        mode = THEN if schedule is not None and THEN in legal else INTERLEAVED
    if schedule is not None and mode not in legal:
        others = [option for option, modes in _MODES.items() if mode in modes]
        raise PlanError(
            f"recomputation_mode={mode.value!r} does not go with pipeline_schedule={schedule!r}. "
            f"Set recomputation_mode={legal[0].value!r}, or one of the schedules {others}."
        )
    if schedule is None and mode is THEN:
        return None  # the only stage is the last: its backward follows its forward immediately
    return Recompute(whole_stages=mode is THEN)


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
