"""Arrays on disk, by Orbax.

Orbax takes more than a second to load, so it is imported where arrays are written or read.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes  # of JAX
import numpy as np

# Errors of a process or of its rights, which say nothing about a file.
NO_DAMAGE = (
    errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE,
    errno.ETIMEDOUT, errno.EINTR,
)  # fmt: skip

_STORED = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
}  # fmt: skip
_LATE_TRIALS, _LATE_SECONDS = 20, 0.1  # for which the remains of a failed write may run on
_WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def write_arrays(directory: pathlib.Path, arrays: Sequence[np.ndarray]) -> None:
    """Writes arrays into a directory, which must not exist.

    Raises:
        OSError: or another error of Orbax, if they cannot be written.
    """
    import orbax.checkpoint as ocp

    # Uncompressed: weights shrink by 8 %, and compressing takes ten times the time of a processor.
    handler = ocp.PyTreeCheckpointHandler(
        use_compression=False, use_zarr3=True, multiprocessing_options=_alone(ocp)
    )
    tree = {_name(index): _as_stored(array) for index, array in enumerate(arrays) if array.size}
    with _quiet(), _checkpointer(ocp, handler) as checkpointer:
        checkpointer.save(directory.absolute(), args=ocp.args.PyTreeSave(tree or {"none": _NONE}))


def read_arrays(
    directory: pathlib.Path, layout: Sequence[tuple[tuple[int, ...], str]]
) -> list[np.ndarray]:
    """Reads arrays from a directory.

    Args:
        directory: that `write_arrays` has written.
        layout: shape and dtype of each array.

    Raises:
        ValueError: if the directory does not hold these arrays.
        OSError: if the system does not let them be read.
    """
    import orbax.checkpoint as ocp
    from etils import epath  # of Orbax

    handler = ocp.PyTreeCheckpointHandler(use_zarr3=True, multiprocessing_options=_alone(ocp))
    path = directory.absolute()
    present = [i for i, (shape, _) in enumerate(layout) if 0 not in shape]
    names = [_name(i) for i in present] or ["none"]
    restore = dict.fromkeys(names, ocp.RestoreArgs(restore_type=np.ndarray))
    tree: dict[str, Any] = {}
    failure = None
    with hidden_late_errors():
        try:
            with _quiet(), _checkpointer(ocp, handler) as checkpointer:
                stored = handler.metadata(epath.Path(path)).tree  # memory is taken by its shapes
                _check_layout(stored, {_name(i): layout[i] for i in present})
                tree = checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=restore))
        except MemoryError:
            raise
        except Exception as error:  # Orbax has no class of its own for damaged files
            failure = str(error) or type(error).__name__
        if failure is not None:
            forget_failed_tasks()
    if failure is not None:
        for number in NO_DAMAGE:
            if os.strerror(number) in failure:
                raise OSError(number, os.strerror(number), str(directory))
        raise ValueError(f"Orbax cannot read its arrays: {failure}")
    arrays = []
    for index, (shape, name) in enumerate(layout):
        dtype = dtype_of(name)
        if 0 in shape:
            arrays.append(np.zeros(shape, dtype))
            continue
        array = tree[_name(index)]
        if not isinstance(array, np.ndarray) or array.shape != tuple(shape):
            raise ValueError(f"array {index} has another shape than {shape}")
        arrays.append(_as_used(array, dtype))
    return arrays


def _check_layout(stored: Any, layout: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    for name, (shape, dtype) in layout.items():
        found = stored.get(name)
        if found is None:
            raise ValueError(f"array {name} is missing")
        if tuple(found.shape) != tuple(shape) or found.dtype != _storage(dtype_of(dtype)):
            raise ValueError(f"array {name} is {found.dtype}{list(found.shape)}")


@contextlib.contextmanager
def hidden_late_errors() -> Iterator[None]:
    """Surrounds a write or a read. Hides errors of the tasks that Orbax leaves after a failed one.

    They end in threads of tensorstore, or when they are freed, where their event loop is closed;
    Python and asyncio would print an error for each of them. The write or read raises its own.
    """
    _late_errors.begin()
    try:
        yield
    finally:
        _late_errors.end()


def forget_failed_tasks() -> None:
    """Waits until what a failed write or read has left has ended, and frees it."""
    for _ in range(_LATE_TRIALS):
        gc.collect()
        if not any(map(_is_left, gc.get_objects())):
            return
        time.sleep(_LATE_SECONDS)


def _is_left(value: object) -> bool:
    return isinstance(value, asyncio.Task) and not value.done() and value.get_loop().is_closed()


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.getMessage()


class _LateErrors:
    """Python's hook for errors that nobody can catch, and asyncio's log, while arrays are moved."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: Callable[[Any], Any] = sys.unraisablehook
        self._own = self._handle
        self._logger = logging.getLogger("asyncio")

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before, sys.unraisablehook = sys.unraisablehook, self._own
                self._logger.addFilter(_is_not_of_orbax)

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._logger.removeFilter(_is_not_of_orbax)
                if sys.unraisablehook is self._own:
                    sys.unraisablehook = self._before

    def _handle(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._before(unraisable)


_late_errors = _LateErrors()


def dtype_of(name: object) -> np.dtype:
    """Returns the dtype of an array that can be stored by its name, also "bfloat16" and the like.

    Raises:
        ValueError: if there is none.
    """
    if not isinstance(name, str):
        raise ValueError(f"no dtype is called {str(name)[:80]}")
    kind = getattr(ml_dtypes, name, None)
    try:
        dtype = np.dtype(kind if isinstance(kind, type) and issubclass(kind, np.generic) else name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"no dtype is called {name[:80]!r}") from error
    if not is_storable(dtype) or dtype.name != name:
        raise ValueError(f"no array that is stored has dtype {name[:80]!r}")
    return dtype


def is_storable(dtype: np.dtype) -> bool:
    """Whether arrays of a dtype can be stored: numbers of NumPy and JAX, and booleans."""
    is_of_jax = dtype.type.__module__ == "ml_dtypes" and dtype.itemsize in _WIDTHS
    return dtype.name in _STORED or is_of_jax


_NONE = np.zeros(1, np.uint8)


def _name(index: int) -> str:
    return f"a{index:06d}"


def _storage(dtype: np.dtype) -> np.dtype:
    """Returns the dtype in which an array is stored: bits of those that not every reader knows."""
    return dtype if dtype.name in _STORED else np.dtype(_WIDTHS[dtype.itemsize])


def _as_stored(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(array.shape).view(_storage(array.dtype))


def _as_used(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if array.dtype != _storage(dtype):
        raise ValueError(f"an array has dtype {array.dtype} in place of {_storage(dtype)}")
    return np.ascontiguousarray(array).reshape(array.shape).view(dtype)


def _alone(ocp: Any) -> Any:
    """Returns options by which Orbax waits for no other process: one writes for all."""
    from jax import process_index

    return ocp.options.MultiprocessingOptions(
        primary_host=process_index(), active_processes={process_index()}
    )


def _checkpointer(ocp: Any, handler: Any) -> Any:
    return ocp.Checkpointer(handler, multiprocessing_options=_alone(ocp))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides Orbax's advice about sharding, and errors that are raised as well."""
    orbax_logger = logging.getLogger("absl")
    level = orbax_logger.level
    orbax_logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        orbax_logger.setLevel(level)
