"""What is said of a task that failed."""

from millrace._compat.jax import is_non_finite_error
from millrace.errors import MillraceError, NonFiniteError, TaskError
from millrace.schedules.task import Schedule, Task
from millrace.schedules.text import grid


def task_error(error: Exception, task: Task, schedule: Schedule) -> MillraceError:
    """Returns the error that names the task, and shows it in its schedule."""
    where = f"the {task.kind.name.lower()} pass of stage {task.stage} on micro-batch"
    where = f"{where} {task.micro_batch}"
    drawing = grid(schedule, marked=task)
    if is_non_finite_error(error):
        return NonFiniteError(
            f"A {error.args[-1]} came out of task {task}: {where}. jax_debug_nans or "
            "jax_debug_infs told JAX to look for one. The model has the weights from before this "
            "update. Look at the layers of that stage and at the data of that micro-batch, or use "
            f"keras.callbacks.TerminateOnNaN() to only stop.\n{drawing}"
        )
    return TaskError(f"Task {task} failed: {where}. {type(error).__name__}: {error}\n{drawing}")
