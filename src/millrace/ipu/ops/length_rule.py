"""How many micro-batches a pipeline of the IPU may have: a multiple of those that run at once.

Grouped       the slots of one micro-batch: 2N in training, N otherwise
Interleaved   the rotations of its slots that put no two on one device: N with a device each
Sequential    1

The native schedules have no such rule; programs that kept it run the same either way.
"""

from collections.abc import Sequence

from millrace.errors import PlanError, UnsupportedError
from millrace.ipu.ops.schedules import PipelineSchedule


def concurrent_micro_batches(
    schedule: PipelineSchedule, mapping: Sequence[int], training: bool
) -> int:
    """Returns how many micro-batches run at once.

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
    rotated = (slots[turn:] + slots[:turn] for turn in range(1, len(slots)))
    return 1 + sum(all(a != b for a, b in zip(slots, other, strict=True)) for other in rotated)


def check_length(
    schedule: PipelineSchedule, mapping: Sequence[int], count: int, training: bool
) -> None:
    """Refuses a number of micro-batches that the IPU would not run.

    Raises:
        PlanError: naming the numbers.
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
            f"{length} micro-batches at once, and {count} is no multiple of that. Set "
            f"gradient_accumulation_count (in Keras gradient_accumulation_steps_per_replica; in "
            f"evaluate and predict steps_per_execution over replicas) to {fitting}."
        )
