"""Schedules and recomputation modes by their IPU names.

PipelineSchedule.Grouped        -> "grouped"      1F1B with twice the run-ahead; the default
PipelineSchedule.Interleaved    -> "1f1b"
PipelineSchedule.Sequential     -> "sequential"
RecomputationMode               -> the mode of `set_recomputation_options`
"""

import enum
from typing import Any

from millrace.errors import DTypeError, UnsupportedError


class PipelineSchedule(enum.IntEnum):
    """The order of a pipeline's tasks."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(enum.Enum):
    """What backward computes again."""

    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2


NATIVE = {
    PipelineSchedule.Grouped: "grouped",
    PipelineSchedule.Interleaved: "1f1b",
    PipelineSchedule.Sequential: "sequential",
}
_THEN, _MIXED = (
    RecomputationMode.RecomputeThenBackpropagate,
    RecomputationMode.RecomputeAndBackpropagateInterleaved,
)
_NATIVE_MODE = {
    _THEN: "recompute_then_backpropagate",
    _MIXED: "recompute_and_backpropagate_interleaved",
}
_ILLEGAL = {(_THEN, PipelineSchedule.Sequential), (_MIXED, PipelineSchedule.Interleaved)}


def schedule_of(value: Any, batch_serialization: int = 1) -> PipelineSchedule:
    """Returns a schedule; None is Grouped, and Sequential with batch serialization.

    Raises:
        TypeError: if it is no member of `PipelineSchedule`.
    """
    if value is None:
        sequential = batch_serialization > 1
        return PipelineSchedule.Sequential if sequential else PipelineSchedule.Grouped
    return _member(PipelineSchedule, "pipeline_schedule", value)


def recomputation_of(value: Any, schedule: PipelineSchedule, allowed: bool) -> str:
    """Returns the native mode; "none" unless the configuration allows recomputation.

    Raises:
        TypeError: if it is no member of `RecomputationMode`.
        NotImplementedError: for a mode that does not go with the schedule.
    """
    mode = (
        RecomputationMode.Auto
        if value is None
        else _member(RecomputationMode, "recomputation_mode", value)
    )
    if mode is RecomputationMode.Auto:
        mode = _MIXED if schedule is PipelineSchedule.Sequential else _THEN
    if (mode, schedule) in _ILLEGAL:
        raise UnsupportedError(
            f"recomputation_mode={mode.name} does not go with pipeline_schedule={schedule.name}. "
            "RecomputeThenBackpropagate goes with Grouped and Interleaved, "
            "RecomputeAndBackpropagateInterleaved with Grouped and Sequential; "
            "RecomputationMode.Auto takes the one that does."
        )
    return _NATIVE_MODE[mode] if allowed else "none"


def _member(kind: Any, name: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise DTypeError(
            f"{name} must be a member of {kind.__name__}, one of {[m.name for m in kind]}. "
            f"Received: {value!r} of type {type(value).__name__}."
        )
    return value
