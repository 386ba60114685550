"""The device of each stage of a pipeline where the user chooses none.

zb_v, v_half, v_min                   0 1 1 0     two stages on each device, as a V
several micro-batches at a time       0 0 0 0
all others                            0 1 2 3
"""

V_SHAPED = ("zb_v", "v_half", "v_min")  # names of schedules, with files in schedules/


def is_v_shaped(schedule: object) -> bool:
    """Whether a choice of the user is one of the V-shaped schedules, whose names have any case."""
    return isinstance(schedule, str) and schedule.lower() in V_SHAPED


def v_devices(num_stages: int) -> tuple[int, ...]:
    """Returns the devices of a V: out to the last one, and back to the first."""
    return tuple(min(stage, num_stages - 1 - stage) for stage in range(num_stages))


def default_devices(
    schedule: object, num_stages: int, batch_serialization: int = 1
) -> tuple[int, ...]:
    """Returns the device of each stage.

    Args:
        schedule: that the user chose, in any form.
        num_stages: stages in the pipeline.
        batch_serialization: micro-batches that a stage runs before the next stage starts.
    """
    if batch_serialization > 1:
        return (0,) * num_stages
    return v_devices(num_stages) if is_v_shaped(schedule) else tuple(range(num_stages))
