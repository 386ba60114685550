"""Checked schedules from all forms in which a user may give one.

"1f1b"                     a name of SCHEDULES, in any case
my_schedule                a function (num_stages, num_micro_batches) -> rows of tasks, or text
"0F0 0F1 ..."              text, one line for each device group
Path("my_schedule.txt")    a file of such text
"""

import difflib
import functools
import inspect
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence

from millrace.base.options.default_devices import is_v_shaped
from millrace.errors import ScheduleError, UnsupportedError
from millrace.run.schedules.check import check
from millrace.run.schedules.concurrent import concurrent
from millrace.run.schedules.gpipe import gpipe
from millrace.run.schedules.looped import looped
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.sequential import batch_serialized, sequential
from millrace.run.schedules.task import Schedule, Task, parse_task
from millrace.run.schedules.text import DrawnSchedule, parse
from millrace.run.schedules.v_half import v_half
from millrace.run.schedules.v_min import v_min
from millrace.run.schedules.v_shape import check_v_groups
from millrace.run.schedules.zb_v import zb_v
from millrace.run.schedules.zero_bubble import zero_bubble

TaskRows = str | Sequence[str | Sequence[Task | str]]
ScheduleFunction = Callable[[int, int], TaskRows]
ScheduleChoice = str | pathlib.Path | ScheduleFunction

SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "1f1b_slack": functools.partial(one_f_one_b, slack=1),
    "grouped": functools.partial(one_f_one_b, run_ahead=2),
    "sequential": sequential,
    "looped": looped,  # the only one that also takes the number of device groups
    "zero_bubble": zero_bubble,
    "zb_v": zb_v,
    "v_half": v_half,
    "v_min": v_min,
}


def make_schedule(
    choice: ScheduleChoice,
    num_stages: int,
    num_micro_batches: int,
    groups: tuple[int, ...],
    batch_serialization: int = 1,
    levels: Sequence[int] | None = None,
) -> Schedule:
    """Makes the schedule of one weight update.

    Args:
        choice: a name, a function, a text or a path, as above. A text for more micro-batches is
            cut to the first `num_micro_batches`, since the last update of an epoch may be shorter.
        num_stages: stages in the pipeline.
        num_micro_batches: micro-batches accumulated into the update, per replica.
        groups: the device group of each stage. Only names with several stages on a group read it:
            "looped", "zb_v", "v_half" and "v_min". Their row r is the group that comes r-th in
            `groups`. The other names have a row for each stage.
        batch_serialization: micro-batches that a stage runs before the next stage starts. More
            than one makes "sequential" one row.
        levels: of each stage, if several stages run at the same time as one stage of the schedule;
            `num_stages` and `groups` are then those of the schedule.

    Returns:
        Rows of tasks that have passed `check`.

    Raises:
        ScheduleError: if the choice has none of these forms, does not fit, or fails the check.
        UnsupportedError: if the choice and `batch_serialization` do not go together.
    """
    check_batch_serialization(choice, groups, batch_serialization)
    if batch_serialization > 1:
        schedule = batch_serialized(num_stages, num_micro_batches, batch_serialization)
    elif callable(choice):
        schedule = _of_function(choice, num_stages, num_micro_batches)
    elif name := _name(choice):
        more = (_num_groups(groups, num_stages),) if name == "looped" else ()
        schedule = SCHEDULES[name](num_stages, num_micro_batches, *more)
        if is_v_shaped(name):
            check_v_groups(name, groups, num_stages)
    else:
        schedule = _shortened(parse(_text(choice)), num_micro_batches)
    check(schedule, num_stages, num_micro_batches)
    return DrawnSchedule(schedule) if levels is None else concurrent(schedule, levels)


def check_choice(choice: object) -> None:
    """Refuses a choice that is invalid for every number of stages and micro-batches.

    Raises:
        ScheduleError: if it is not a name, a function, a file or a text of tasks.
    """
    if not callable(choice) and not _name(choice):
        parse(_text(choice))


def check_batch_serialization(
    choice: object, groups: Sequence[int], batch_serialization: int
) -> None:
    """Refuses batch serialization for stages that do not run one after another on one device.

    Args:
        choice: of a schedule.
        groups: the device group of each stage; empty if not chosen.
        batch_serialization: micro-batches that a stage runs before the next stage starts.

    Raises:
        UnsupportedError: for another schedule than "sequential", and for several device groups.
    """
    if batch_serialization == 1:
        return
    if _name(choice) != "sequential":
        raise UnsupportedError(
            f"batch_serialization_iterations={batch_serialization} is a form of the schedule "
            f"'sequential'. Received: pipeline_schedule={choice!r}. Set "
            f"pipeline_schedule='sequential'; or leave out batch_serialization_iterations, and set "
            f"{batch_serialization} times as many "
            "gradient_accumulation_steps_per_replica: the update is the same in every schedule."
        )
    if len(set(groups)) > 1:
        raise UnsupportedError(
            f"batch_serialization_iterations={batch_serialization} lets the stages of one device "
            f"take turns, and device_mapping={list(groups)} has {len(set(groups))} devices. Set "
            f"device_mapping={[groups[0]] * len(groups)}; or leave out "
            f"batch_serialization_iterations, and set {batch_serialization} times as many "
            "gradient_accumulation_steps_per_replica."
        )


def name_of(choice: object) -> str:
    """Returns the name of a schedule in SCHEDULES; "own" for one that has none."""
    return _name(choice) or "own"


def _name(choice: object) -> str:
    """Returns the name of `choice` in SCHEDULES; an empty string if it is not one."""
    return choice.lower() if isinstance(choice, str) and choice.lower() in SCHEDULES else ""


def _text(choice: object) -> str:
    if isinstance(choice, str | pathlib.Path) and os.path.isfile(choice):
        try:
            text = pathlib.Path(choice).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            text = ""
        except OSError as error:
            raise ScheduleError(
                f"schedule={str(choice)!r} is a file that cannot be read: {error.strerror}. Give "
                "one that you may read, or the text itself."
            ) from error
        if not text.strip():
            raise ScheduleError(
                f"schedule={str(choice)!r} is a file without tasks. Write a line for each device "
                "group, such as 0F0 0F1 0B0 0B1."
            )
        return text
    if isinstance(choice, str) and re.search(r"\s|^[0-9]+[FBIW][0-9]+", choice):
        return choice
    names = ", ".join(SCHEDULES)
    near = difflib.get_close_matches(str(choice).lower(), SCHEDULES, n=1)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    raise ScheduleError(
        f"schedule={choice!r} is no schedule and no file. {meant}Use one of {names}; a function "
        "(num_stages, num_micro_batches) of your own; or text such as '0F0 0B0', or its file."
    )


def _of_function(function: ScheduleFunction, num_stages: int, num_micro_batches: int) -> Schedule:
    try:
        inspect.signature(function).bind(num_stages, num_micro_batches)
    except TypeError as error:
        raise ScheduleError(
            f"The schedule function {function!r} does not take two numbers ({error}). Write it as "
            "schedule(num_stages, num_micro_batches)."
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    rows = function(num_stages, num_micro_batches)
    try:
        if isinstance(rows, str):
            return parse(rows)
        return tuple(tuple(map(_task, r.split() if isinstance(r, str) else r)) for r in rows)
    except TypeError:
        raise ScheduleError(
            f"The schedule function {function!r} returned {rows!r}. Return a list of rows, each "
            "a list of tasks or a text such as '0F0 0B0'."
        ) from None


def _task(task: Task | str) -> Task:
    return task if isinstance(task, Task) else parse_task(task)


def _shortened(schedule: Schedule, num_micro_batches: int) -> Schedule:
    """Removes all later micro-batches, for which no earlier task waits."""
    available = max((task.micro_batch + 1 for row in schedule for task in row), default=0)
    if available < num_micro_batches:
        raise ScheduleError(
            f"The schedule is written for {available} micro-batches, and the update has "
            f"{num_micro_batches}. Add the tasks of the others, or set "
            f"gradient_accumulation_steps_per_replica={max(available, 1)}."
        )
    return tuple(tuple(t for t in row if t.micro_batch < num_micro_batches) for row in schedule)


def _num_groups(groups: tuple[int, ...], num_stages: int) -> int:
    order = list(dict.fromkeys(groups))  # by first appearance
    count = max(len(order), 1)
    if [order.index(group) for group in groups] != [s % count for s in range(num_stages)]:
        raise ScheduleError(
            f"The looped schedule goes round the device groups, stage by stage. Received: "
            f"device groups {list(groups)} for {num_stages} stages. "
            f"Set device_mapping={[s % count for s in range(num_stages)]}."
        )
    return count
