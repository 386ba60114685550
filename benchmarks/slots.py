"""Slots of fixed time: the time of a pipeline on devices whose stages take these times.

    tasks of a device     0F0 0F1 0B0     one after the other, each as long as its slot

On a machine with fewer cores than devices, the time of a pipeline says little about its schedule,
and XLA's CPU devices run any task that is ready. With slots, stages take the time and the order of
devices that run one task at a time, even when many of them work at once.

A task waits inside XLA. JAX has a public way to register a C function (`jax.ffi`), but none to
write one in Python. So the parts of the structs of XLA's C interface that such a function reads
are declared below. Checked on jax 0.10.2. A host callback does not work: programs with one run
during their dispatch, so devices would wait one after the other.
"""

import ctypes
import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from millrace.run.schedules.task import Pass, Task


class SlotDevice:
    """A device that runs the tasks of its row repeatedly, in their order.

    JAX needs a thread for each task whose inputs are ready: set `jax_num_cpu_devices` to at least
    the number of micro-batches plus stages, before JAX is used.
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
        """Waits until a task of this kind is next in the row, then for the length of its slot."""
        with self._change:
            self._change.wait_for(lambda: self._next is kind)
            time.sleep(self._seconds[kind])
            self._next = next(self._kinds)
            self._change.notify_all()


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def slot(value: Any, device: SlotDevice) -> Any:
    """Returns `value` unchanged, and makes the surrounding pass take a slot. On CPU only.

    The pass should also compute something, such as a product of 64 x 64 matrices: XLA runs smaller
    programs during their dispatch, one device after the other.

    Args:
        value: an array that the rest of the pass depends on, or that depends on it.
        device: the device of the pass.
    """
    return wait(value, functools.partial(device.run, Pass.FORWARD))


def _forward(value: Any, device: SlotDevice) -> tuple[Any, None]:
    return slot(value, device), None


def _backward(device: SlotDevice, kept: None, cotangent: Any) -> tuple[Any]:
    del kept
    return (wait(cotangent, functools.partial(device.run, Pass.BACKWARD)),)


slot.defvjp(_forward, _backward)


_METADATA = 1  # kind of call that asks for the version of a function


class _Extension(ctypes.Structure):
    pass


_Extension._fields_ = [
    ("size", ctypes.c_size_t),
    ("kind", ctypes.c_int),
    ("next", ctypes.POINTER(_Extension)),
]


class _Frame(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_Extension)),
        ("api", ctypes.c_void_p),
    )


class _Version(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class _Api(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("version", _Version),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("version", _Version))


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", ctypes.POINTER(_Metadata)))


def wait(value: Any, pause: Callable[[], None]) -> Any:
    """Returns `value`, on CPU, after a call of `pause`, which starts when the value is ready.

    Args:
        value: an array.
        pause: a function for a thread of XLA; it must not raise.
    """
    like = jax.ShapeDtypeStruct((), jnp.float32)
    nothing = jax.ffi.ffi_call(_target(pause), like, has_side_effect=True)(
        jnp.ravel(value)[0].astype(jnp.float32)
    )
    return jax.lax.optimization_barrier((value, nothing))[0]


def _target(pause: Callable[[], None]) -> str:
    name = f"millrace_wait_{next(_numbers)}"

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))
    def called(frame: Any) -> None:
        if not _is_asked_for_version(frame.contents):
            pause()

    _alive.append(called)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(called), platform="cpu")
    return name


_numbers = itertools.count()
_alive: list[Any] = []  # objects that C code points to


def _is_asked_for_version(frame: Any) -> bool:
    extension = frame.extension
    while extension:
        if extension.contents.kind == _METADATA:
            found = ctypes.cast(extension, ctypes.POINTER(_MetadataExtension)).contents
            version = found.metadata.contents.version
            if frame.api:
                own = ctypes.cast(frame.api, ctypes.POINTER(_Api)).contents.version
                version.major, version.minor = own.major, own.minor
            else:
                version.major, version.minor = 0, 1
            return True
        extension = extension.contents.next
    return False
