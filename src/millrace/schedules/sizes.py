"""The numbers that every schedule is made from."""

from millrace.errors import ScheduleError


def check_sizes(schedule: str, **sizes: int) -> None:
    """Refuses to make a schedule of nothing.

    Args:
        schedule: its name, for the message.
        **sizes: the arguments of its function, each to be 1 or more.

    Raises:
        ScheduleError: if one of them is below 1.
    """
    if min(sizes.values()) < 1:
        received = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise ScheduleError(
            f"{schedule} needs at least one of each: {', '.join(sizes)}. Received: {received}. "
            "On a model, num_micro_batches is set by `gradient_accumulation_steps_per_replica`."
        )
