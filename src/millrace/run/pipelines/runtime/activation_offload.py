"""Activations that wait for their backward in host memory, and return before it begins.

    tasks of a device group   |F0     |F1     |F2     |B0     |B1     |B2     |
    activations of F0         | device|  to host      |back   |
                              |       |  ------->   ->|used   |

Copies run beside the tasks. A copy back starts with the task before the one that takes it, so that
it has the time of a task, and at most two micro-batches of a stage are on the device. Activations
that the very next task takes stay: a stage that goes straight back, as the last one, moves nothing.
"""

from collections.abc import Callable
from typing import TypeVar

import jax

from millrace._compat.jax_memory import DEVICE, HOST, is_on_host
from millrace.base.pytrees import ArrayTree
from millrace.programs.steps.offload import SMALLEST
from millrace.run.pipelines.runtime.buffers import Buffers
from millrace.run.schedules.task import Pass, Schedule, Task

T = TypeVar("T", bound=ArrayTree)

# The tasks that take what a task has left in the buffers.
_TAKES = {
    Pass.FORWARD: (Pass.BACKWARD, Pass.BACKWARD_INPUT),
    Pass.BACKWARD_INPUT: (Pass.BACKWARD_WEIGHT,),
}


class ActivationOffload:
    """Moves the arrays that wait in the buffers of one update to host memory and back."""

    def __init__(self, schedule: Schedule, buffers: Buffers):
        """Prepares the moves of one update.

        Args:
            schedule: of the update: the tasks of each device group.
            buffers: in which the tasks leave their arrays.
        """
        self._buffers = buffers
        self._next = {
            task: following
            for row in schedule
            for task, following in zip(row, [*row[1:], None], strict=True)
        }

    def before(self, task: Task) -> None:
        """Starts to bring back the arrays of the next task, while this one runs."""
        following = self._next[task]
        if following is not None and following.kind is not Pass.FORWARD:
            self._buffers.replace(following.stage, following.micro_batch, _to_device)

    def after(self, task: Task) -> None:
        """Starts to move the arrays that a task has left, unless the next task takes them."""
        following, takers = self._next[task], _TAKES.get(task.kind, ())
        if takers and following not in [Task(task.stage, k, task.micro_batch) for k in takers]:
            self._buffers.replace(task.stage, task.micro_batch, _to_host)


def _to_host(waiting: T) -> T:
    return _moved(waiting, HOST, lambda a: a.nbytes >= SMALLEST and not is_on_host(a.sharding))


def _to_device(waiting: T) -> T:
    return _moved(waiting, DEVICE, lambda array: is_on_host(array.sharding))


def _moved(waiting: T, kind: str, must_move: Callable[[jax.Array], bool]) -> T:
    """Starts copies of those arrays of a tree that must move, all at once."""
    leaves, tree = jax.tree.flatten(waiting)
    indices = [k for k, leaf in enumerate(leaves) if must_move(leaf)]
    shardings = [leaves[k].sharding.with_memory_kind(kind) for k in indices]
    moved = jax.device_put([leaves[k] for k in indices], shardings)
    for k, array in zip(indices, moved, strict=True):
        leaves[k] = array
    return jax.tree.unflatten(tree, leaves)
