"""What waits for its backward rests in host memory, and is back before the backward begins.

    tasks of a device group   |F0     |F1     |F2     |B0     |B1     |B2     |
    what F0 left              | device|  to host      |back   |
                              |       |  ------->   ->|used   |

A copy runs beside the tasks. One back is begun with the task before the one that takes it, so that
it has the time of a task, and no more than two micro-batches of a stage are on the device. What the
very next task takes stays: a stage that goes straight back, as the last one, moves nothing.
"""

from typing import Any

import jax

from millrace._compat.jax_memory import DEVICE, HOST, is_on_host
from millrace.pipelines.runtime.buffers import Buffers
from millrace.schedules.task import Pass, Schedule, Task
from millrace.steps.offload import SMALLEST

# The task that takes what a task leaves.
_TAKES = {
    Pass.FORWARD: (Pass.BACKWARD, Pass.BACKWARD_INPUT),
    Pass.BACKWARD_INPUT: (Pass.BACKWARD_WEIGHT,),
}


class Stash:
    """Moves what waits in the buffers of one update."""

    def __init__(self, schedule: Schedule, buffers: Buffers):
        """Makes a stash.

        Args:
            schedule: of the update: the tasks of each device group.
            buffers: where they leave what waits.
        """
        self._buffers = buffers
        self._next = {
            task: following
            for row in schedule
            for task, following in zip(row, [*row[1:], None], strict=True)
        }

    def before(self, task: Task) -> None:
        """Brings back what the task after this one takes, while this one runs."""
        following = self._next[task]
        if following is not None and following.kind is not Pass.FORWARD:
            self._buffers.replace(following.stage, following.micro_batch, _to_device)

    def after(self, task: Task) -> None:
        """Lets rest what a task has left, unless the next one takes it."""
        following, takers = self._next[task], _TAKES.get(task.kind, ())
        if takers and following not in [Task(task.stage, k, task.micro_batch) for k in takers]:
            self._buffers.replace(task.stage, task.micro_batch, _to_host)


def _to_host(waiting: Any) -> Any:
    return _moved(waiting, HOST, lambda a: a.nbytes >= SMALLEST and not is_on_host(a.sharding))


def _to_device(waiting: Any) -> Any:
    return _moved(waiting, DEVICE, lambda array: is_on_host(array.sharding))


def _moved(waiting: Any, kind: str, goes: Any) -> Any:
    """Starts copies of the arrays of a tree that go, all at once."""
    leaves, tree = jax.tree.flatten(waiting)
    places = [k for k, leaf in enumerate(leaves) if goes(leaf)]
    shardings = [leaves[k].sharding.with_memory_kind(kind) for k in places]
    moved = jax.device_put([leaves[k] for k in places], shardings)
    for k, array in zip(places, moved, strict=True):
        leaves[k] = array
    return jax.tree.unflatten(tree, leaves)
