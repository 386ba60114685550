"""Schedules and recomputation modes by their IPU names, and the micro-batches that they allow.

PipelineSchedule.Grouped        -> "grouped"      1F1B with twice the run-ahead; the default
PipelineSchedule.Interleaved    -> "1f1b"
PipelineSchedule.Sequential     -> "sequential"
RecomputationMode               -> the mode of `set_recomputation_options`

With N stages, the number of micro-batches must be a multiple of those that run at once:

Grouped       the slots of one micro-batch: 2N in training, N otherwise
Interleaved   the rotations of its slots that put no two on one device: N for N devices
Sequential    1

The native schedules have no such rule, and run such numbers in the same order.
"""

import enum
from collections.abc import Sequence

from millrace.errors import PlanError, UnsupportedError
from millrace_ipu.ipu.enums import member


class PipelineSchedule(enum.IntEnum):
    """The order of a pipeline's tasks."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(enum.Enum):
    """The way in which backward recomputes activations."""

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


def schedule_of(value: object, batch_serialization: int = 1) -> PipelineSchedule:
    """Returns a schedule; None is Grouped, and Sequential with batch serialization.

    Raises:
        DTypeError: unless it is None or a member of `PipelineSchedule`.
    """
    if value is None:
        is_serialized = batch_serialization > 1
        return PipelineSchedule.Sequential if is_serialized else PipelineSchedule.Grouped
    return member(PipelineSchedule, "pipeline_schedule", value)


def recomputation_of(value: object, schedule: PipelineSchedule, allowed: bool) -> str:
    """Returns the native mode; "none" unless the configuration allows recomputation.

    Raises:
        DTypeError: unless it is None or a member of `RecomputationMode`.
        UnsupportedError: for a mode that does not go with the schedule.
    """
    mode = (
        RecomputationMode.Auto
        if value is None
        else member(RecomputationMode, "recomputation_mode", value)
    )
    if mode is RecomputationMode.Auto:
        mode = _MIXED if schedule is PipelineSchedule.Sequential else _THEN
    if (mode, schedule) in _ILLEGAL:
        raise UnsupportedError(
            f"recomputation_mode={mode.name} does not go with pipeline_schedule={schedule.name}. "
            "RecomputeThenBackpropagate goes with Grouped and Interleaved, "
            "RecomputeAndBackpropagateInterleaved with Grouped and Sequential; "
            "RecomputationMode.Auto selects a mode that does."
        )
    return _NATIVE_MODE[mode] if allowed else "none"


def concurrent_micro_batches(
    schedule: PipelineSchedule, mapping: Sequence[int], training: bool
) -> int:
    """Returns the number of micro-batches that run at once.

    Args:
        schedule: of the pipeline.
        mapping: the device of each stage.
        training: whether there is a backward.
    """
    slots = [*mapping, *reversed(mapping)] if training else list(mapping)
    if schedule is PipelineSchedule.Sequential:
        return 1
    if schedule is PipelineSchedule.Grouped:
        return len(slots)
    rotated = (slots[shift:] + slots[:shift] for shift in range(1, len(slots)))
    return 1 + sum(all(a != b for a, b in zip(slots, other, strict=True)) for other in rotated)


def check_length(
    schedule: PipelineSchedule, mapping: Sequence[int], count: int, training: bool
) -> None:
    """Refuses a number of micro-batches that the IPU would not run.

    Args:
        schedule: of the pipeline.
        mapping: the device of each stage.
        count: number of micro-batches.
        training: whether there is a backward.

    Raises:
        PlanError: with the nearest number that fits.
        UnsupportedError: for Interleaved training with two stages on one device.
    """
    interleaved = schedule is PipelineSchedule.Interleaved
    if interleaved and training and len(set(mapping)) < len(mapping):
        raise UnsupportedError(
            f"device_mapping={list(mapping)} puts several stages on one device, which Interleaved "
            "does not train. Set pipeline_schedule to PipelineSchedule.Grouped or "
            "PipelineSchedule.Sequential."
        )
    length = concurrent_micro_batches(schedule, mapping, training)
    if count < length or count % length:
        fitting = max(count // length, 1) * length
        raise PlanError(
            f"A pipeline with the schedule {schedule.name} and {len(mapping)} stages runs "
            f"{length} micro-batches at once, and {count} is not a multiple of {length}. Set "
            "gradient_accumulation_count (in Keras gradient_accumulation_steps_per_replica; in "
            f"evaluate and predict steps_per_execution divided by replicas) to {fitting}."
        )
