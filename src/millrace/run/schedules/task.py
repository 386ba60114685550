"""The task, of which schedules consist: one pass of one stage on one micro-batch.

2F0 ── micro-batch 0
│└──── F forward, B backward, or B in halves: I for the inputs, W for the weights
└───── stage 2
"""

import enum
import re
from dataclasses import dataclass

from millrace.errors import ScheduleError

_LONGEST_WORD = 80  # of a message


class Pass(enum.StrEnum):
    """The computation of a stage on a micro-batch."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"  # cotangents of the inputs: the stage before waits for them
    BACKWARD_WEIGHT = "W"  # gradients of the weights: only the update waits for them

    @property
    def program(self) -> str:
        """The name of the program of a stage that computes it: `backward_input`, say."""
        return self.name.lower()

    # That of `Enum` is Python, and takes most of the time of a simulation.
    __hash__ = str.__hash__  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Task:
    """One pass of one stage on one micro-batch. Prints as `2F0`."""

    stage: int
    kind: Pass
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Schedule = tuple[tuple[Task, ...], ...]
"""For each device group its tasks in order. Idle time follows from the dependencies."""


def parse_task(word: str) -> Task:
    """Returns the task that prints as `word`.

    Raises:
        ScheduleError: if `word` is not a task.
    """
    match = re.fullmatch(r"([0-9]{1,9})([FBIW])([0-9]{1,9})", word)
    if match is None:
        raise ScheduleError(
            f"{_shortened(word)} is no task. Write stage, pass and micro-batch, such as 2F0 for "
            "the forward of stage 2 on micro-batch 0. The passes are F, B, I and W."
        )
    stage, letter, micro_batch = match.groups()
    return Task(int(stage), Pass(letter), int(micro_batch))


def _shortened(word: str) -> str:
    """Returns a word for a message: the file of a schedule may have anything in it."""
    return repr(word) if len(word) <= _LONGEST_WORD else f"{word[:_LONGEST_WORD]!r}..."


def check_sizes(schedule: str, **sizes: int) -> None:
    """Refuses sizes for which there is no schedule.

    Args:
        schedule: name of the schedule, for the message.
        **sizes: the arguments of its function, each of which must be 1 or more.

    Raises:
        ScheduleError: if one of them is below 1.
    """
    if min(sizes.values()) < 1:
        received = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise ScheduleError(
            f"{schedule} needs at least one of each: {', '.join(sizes)}. Received: {received}. "
            "On a model, num_micro_batches is set by `gradient_accumulation_steps_per_replica`."
        )
