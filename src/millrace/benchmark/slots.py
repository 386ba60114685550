"""Slots of fixed time: what a pipeline would take on devices with stages of these times.

    tasks of a device     0F0 0F1 0B0     one after the other, each as long as its slot

On a machine with fewer cores than devices the time of a pipeline says little about its schedule,
and XLA's CPU devices run whatever is ready. With slots, stages take the time and the order of
devices that have one task at a time, however many of them work at once.
"""

import functools
import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax

from millrace._compat.jax_wait import wait
from millrace.schedules.task import Pass, Task


class SlotDevice:
    """A device that runs the tasks of its row in their order, again and again.

    JAX needs a thread for each task whose inputs are there: set `jax_num_cpu_devices` to at least
    the number of micro-batches and stages together, before JAX is used.
    """

    def __init__(self, row: Sequence[Task], forward: float, backward: float):
        """Makes a device of one stage.

        Args:
            row: tasks of one update, in the order of a schedule.
            forward: seconds of a forward.
            backward: seconds of a backward.
        """
        self._seconds = {Pass.FORWARD: forward, Pass.BACKWARD: backward}
        self._kinds = itertools.cycle([task.kind for task in row])
        self._next = next(self._kinds)
        self._change = threading.Condition()

    def run(self, kind: Pass) -> None:
        """Waits for the turn of a task of this kind, and lets its time pass."""
        with self._change:
            self._change.wait_for(lambda: self._next is kind)
            time.sleep(self._seconds[kind])
            self._next = next(self._kinds)
            self._change.notify_all()


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def slot(value: Any, device: SlotDevice) -> Any:
    """Returns `value` unchanged, and lets the pass that it is in take a slot. On CPU only.

    The pass should compute something besides, such as a product of 64 x 64 matrices: XLA runs what
    is smaller while it is dispatched, one device after the other.

    Args:
        value: an array that the rest of the pass follows from, or that follows from it.
        device: that the pass is on.
    """
    return wait(value, functools.partial(device.run, Pass.FORWARD))


def _forward(value: Any, device: SlotDevice) -> tuple[Any, None]:
    return slot(value, device), None


def _backward(device: SlotDevice, kept: None, cotangent: Any) -> tuple[Any]:
    del kept
    return (wait(cotangent, functools.partial(device.run, Pass.BACKWARD)),)


slot.defvjp(_forward, _backward)
