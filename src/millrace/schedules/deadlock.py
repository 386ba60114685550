"""Why a schedule stops before its end, and which task to move.

row 0   0F0 0B0     next is 0B0, which waits for 1B0
row 1   1B0 1F0     next is 1B0, which waits for 1F0: put 1F0 before 1B0
"""

from collections.abc import Collection, Mapping

from millrace.schedules.task import Schedule, Task


def deadlock_message(
    schedule: Schedule, waits: Mapping[Task, tuple[Task, ...]], done: Collection[Task]
) -> str:
    """Says why no row of a stuck schedule goes on, and which task to move.

    Args:
        schedule: one that stops before its end.
        waits: its `dependencies`.
        done: the tasks that could run. At least one is left.
    """
    heads = {
        number: next(task for task in row if task not in done)
        for number, row in enumerate(schedule)
        if any(task not in done for task in row)
    }
    places = {task: number for number, row in enumerate(schedule) for task in row}

    def first_missing(task: Task) -> Task | None:
        return next((other for other in waits.get(task, ()) if other not in done), None)

    stuck = "; ".join(
        f"row {row} has {task} next, which waits for {first_missing(task)}"
        for row, task in heads.items()
    )
    # The first undone task of a chain has all it waits for. It does not run, so it is not the
    # next one of its row: it is behind the one that is, or nowhere.
    task = next(iter(heads.values()))
    while (other := first_missing(task)) is not None:
        task = other
    remedy = f"Add {task}."
    if task in places:
        remedy = f"In row {places[task]}, put {task} before {heads[places[task]]}."
    return f"The schedule stops after {len(done)} of {len(places)} tasks: {stuck}. {remedy}"
