"""The recomputation that the options ask for, in the plan of a program."""

from millrace.base.options import Recomputation, RecomputationMode
from millrace.errors import PlanError
from millrace.programs.plan import Recompute

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
