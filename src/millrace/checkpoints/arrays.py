"""Arrays on disk, by Orbax.

Orbax takes more than a second to load, so it is imported where arrays are written or read.
"""

import asyncio
import contextlib
import gc
import logging
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes  # of JAX
import numpy as np

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
    """
    import orbax.checkpoint as ocp

    handler = ocp.PyTreeCheckpointHandler(use_zarr3=True, multiprocessing_options=_alone(ocp))
    names = [_name(i) for i, (shape, _) in enumerate(layout) if 0 not in shape]
    restore = dict.fromkeys(names or ["none"], ocp.RestoreArgs(restore_type=np.ndarray))
    with _quiet(), _checkpointer(ocp, handler) as checkpointer:
        try:
            tree: dict[str, Any] = checkpointer.restore(
                directory.absolute(), args=ocp.args.PyTreeRestore(restore_args=restore)
            )
        except Exception as error:  # Orbax has no class of its own for damaged files
            raise ValueError(f"Orbax cannot read its arrays: {error}") from error
    arrays = []
    for index, (shape, dtype) in enumerate(layout):
        stored = tree.get(_name(index))
        if 0 in shape:
            stored = np.zeros(shape, _storage(dtype_of(dtype)))
        if not isinstance(stored, np.ndarray) or stored.shape != tuple(shape):
            raise ValueError(f"array {index} is missing, or has another shape than {shape}")
        arrays.append(_as_used(stored, dtype_of(dtype)))
    return arrays


@contextlib.contextmanager
def hidden_late_errors() -> Iterator[None]:
    """Surrounds a write. Hides errors of the tasks that a failed write of Orbax leaves.

    They end in threads of tensorstore, or when they are freed, where their event loop is closed;
    Python and asyncio would print an error for each of them. The write raises its own.
    """
    asyncio_logger = logging.getLogger("asyncio")
    _late_errors.begin()
    asyncio_logger.addFilter(_is_not_of_orbax)
    try:
        yield
    finally:
        asyncio_logger.removeFilter(_is_not_of_orbax)
        _late_errors.end()


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.getMessage()


def forget_failed_write() -> None:
    """Waits until what a failed write has left has ended, and frees it."""
    for _ in range(_LATE_TRIALS):
        gc.collect()
        if not any(map(_is_left, gc.get_objects())):
            return
        time.sleep(_LATE_SECONDS)


def _is_left(value: object) -> bool:
    return isinstance(value, asyncio.Task) and not value.done() and value.get_loop().is_closed()


class _LateErrors:
    """Python's hook for errors that nobody can catch, while arrays are written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes = 0
        self._before: Callable[[Any], Any] = sys.unraisablehook
        self._own = self._handle

    def begin(self) -> None:
        with self._lock:
            self._writes += 1
            if self._writes == 1:
                self._before, sys.unraisablehook = sys.unraisablehook, self._own

    def end(self) -> None:
        with self._lock:
            self._writes -= 1
            if not self._writes and sys.unraisablehook is self._own:
                sys.unraisablehook = self._before

    def _handle(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._before(unraisable)


_late_errors = _LateErrors()


def dtype_of(name: str) -> np.dtype:
    """Returns a dtype by its name, also those of JAX such as "bfloat16".

    Raises:
        ValueError: if there is none.
    """
    try:
        return np.dtype(name)
    except TypeError:
        kind = getattr(ml_dtypes, name, None)
        if not isinstance(kind, type) or not issubclass(kind, np.generic):
            raise ValueError(f"there is no dtype {name!r}") from None
        return np.dtype(kind)


_NONE = np.zeros(1, np.uint8)


def _name(index: int) -> str:
    return f"a{index:06d}"


def _storage(dtype: np.dtype) -> np.dtype:
    """Returns the dtype in which an array is stored: bits of those that not every reader knows."""
    return dtype if dtype.kind in "biufc" else np.dtype(_WIDTHS[dtype.itemsize])


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
