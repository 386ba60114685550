"""Arrays on disk, by Orbax.

Orbax takes long to load, so it is imported where arrays are written.
"""

import contextlib
import errno
import inspect
import logging
import os
import pathlib
from collections.abc import Iterator, Sequence
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
_LONGEST = 300  # characters of an error of tensorstore, which may end with a whole specification
_WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def write_arrays(directory: pathlib.Path, arrays: Sequence[np.ndarray]) -> None:
    """Writes arrays into a directory, which must not exist.

    Raises:
        OSError: or another error of Orbax, if they cannot be written.
    """
    import orbax.checkpoint as ocp

    tree = {_name(index): _as_stored(array) for index, array in enumerate(arrays) if array.size}
    with _quiet():
        # Uncompressed: weights shrink by 8 %, and compressing takes ten times the processor's time.
        handler = ocp.PyTreeCheckpointHandler(
            use_compression=False,
            use_zarr3=True,
            multiprocessing_options=_alone(ocp),
            type_handler_registry=_without_copies(ocp),
        )
        with ocp.Checkpointer(handler, multiprocessing_options=_alone(ocp)) as checkpointer:
            args = ocp.args.PyTreeSave(tree or {"none": _NONE})
            checkpointer.save(directory.absolute(), args=args)


def read_arrays(
    directory: pathlib.Path, layout: Sequence[tuple[tuple[int, ...], str]]
) -> list[np.ndarray]:
    """Reads arrays from a directory.

    By tensorstore, in which Orbax has stored them: a training that goes on waits for this, and
    Orbax takes longer to load than to read 100 MB.

    Args:
        directory: that `write_arrays` has written.
        layout: shape and dtype of each array.

    Raises:
        ValueError: if the directory does not hold these arrays.
        OSError: if the system does not let them be read.
    """
    import tensorstore

    context = tensorstore.Context()
    base = {"driver": "file", "path": f"{directory.absolute()}/"}
    files = {"driver": "ocdbt", "base": base}
    present = [index for index, (shape, _) in enumerate(layout) if 0 not in shape]
    try:
        opening = [
            tensorstore.open(
                {"driver": "zarr3", "kvstore": {**files, "path": f"{_name(index)}/"}},
                context=context,
                open=True,
                read=True,
            )
            for index in present
        ]
        stored = {index: each.result() for index, each in zip(present, opening, strict=True)}
        for index, each in stored.items():  # memory is taken by its shape
            _check_layout(index, each, layout[index])
        reading = {index: each.read() for index, each in stored.items()}
        read = {index: each.result() for index, each in reading.items()}
    except MemoryError:
        raise
    except Exception as error:  # tensorstore has no class of its own for damaged files
        failure = str(error) or type(error).__name__
        for number in NO_DAMAGE:
            if os.strerror(number) in failure:
                raise OSError(number, os.strerror(number), str(directory)) from error
        raise ValueError(f"its arrays cannot be read: {failure[:_LONGEST]}") from error
    arrays = []
    for index, (shape, name) in enumerate(layout):
        dtype = dtype_of(name)
        found = read.get(index)
        arrays.append(np.zeros(shape, dtype) if found is None else found.view(dtype))
    return arrays


def _check_layout(index: int, stored: Any, layout: tuple[tuple[int, ...], str]) -> None:
    shape, dtype = layout
    found = stored.dtype.numpy_dtype
    if tuple(stored.shape) != tuple(shape) or found != _storage(dtype_of(dtype)):
        raise ValueError(f"array {index} is {found}{list(stored.shape)}")


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


def _alone(ocp: Any) -> Any:
    """Returns options by which Orbax waits for no other process: one writes for all."""
    from jax import process_index

    return ocp.options.MultiprocessingOptions(
        primary_host=process_index(), active_processes={process_index()}
    )


def _without_copies(ocp: Any) -> Any:
    """Returns how Orbax writes arrays: from where they are, since nobody changes them meanwhile.

    Its copies take a third of the processor's time for a checkpoint. Older releases always copy.
    """
    handler = ocp.type_handlers.NumpyHandler
    can = "deepcopy_host_arrays" in inspect.signature(handler).parameters
    own = handler(**({"deepcopy_host_arrays": False} if can else {}))
    return ocp.type_handlers.create_type_handler_registry((np.ndarray, own))


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
