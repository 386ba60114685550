"""Arrays in one file of the format `safetensors`, which many programs read.

    8 bytes      length of the header, a little-endian number
    the header   {"000000": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
    the rest     the bytes of the arrays, without gaps

Written here and not by the package of that name: it takes no checksum, so each file would be read
once more after a save and before a restoration; it writes no complex128, and reads no float8 into
NumPy. Here the bytes go straight from the arrays to the file and back.
"""

import itertools
import json
import math
import os
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes  # of JAX
import numpy as np

ArrayLayout = tuple[tuple[int, ...], str]  # shape and dtype of an array

# Names that the format has for dtypes. Other arrays, such as complex128, are stored as bytes.
_NAMES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_CHUNK = 1 << 20  # bytes at a time, which the processor's cache keeps for their checksum


def write_arrays(path: pathlib.Path, arrays: Sequence[np.ndarray]) -> tuple[int, int]:
    """Writes arrays to a file, which must not exist, until they are on the disk.

    Returns:
        The bytes of the file, and their crc32.

    Raises:
        OSError: if they cannot be written.
    """
    layouts = [(array.shape, array.dtype.name) for array in arrays]
    contents = (_bytes_of(np.ascontiguousarray(arrays[index])) for index in _order(layouts))
    nbytes = crc = 0
    with path.open("xb") as file:
        for content in itertools.chain([memoryview(_header(layouts))], contents):
            for chunk in _chunks(content):
                file.write(chunk)
                crc = zlib.crc32(chunk, crc)
            nbytes += len(content)
        file.flush()
        os.fsync(file.fileno())
    return nbytes, crc


def read_arrays(
    path: pathlib.Path, layouts: Sequence[ArrayLayout]
) -> tuple[list[np.ndarray], tuple[int, int]]:
    """Reads the arrays of a file.

    The header follows from the layouts, so it is compared and not interpreted: whoever changes what
    `write_arrays` writes there changes the version of the manifest as well.

    Args:
        path: of the file that `write_arrays` has written.
        layouts: of all arrays in it.

    Returns:
        The arrays, and what `write_arrays` has returned if the file is as it was.

    Raises:
        ValueError: if the file does not hold these arrays.
        OSError: if it cannot be read.
    """
    header = _header(layouts)
    nbytes = len(header) + sum(map(_nbytes, layouts))
    with path.open("rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != nbytes:  # before memory is taken for the arrays
            raise ValueError(f"{path.name} has {found:,} bytes in place of {nbytes:,}")
        if file.read(len(header)) != header:
            raise ValueError(f"{path.name} begins with another header")
        arrays = [np.empty(shape, dtype_of(name)) for shape, name in layouts]
        # The checksum of a chunk takes longer than to read it: another processor computes it
        # while the next one is read, and a training that continues waits for less.
        with ThreadPoolExecutor(1) as thread:
            crc = thread.submit(zlib.crc32, header)
            for index in _order(layouts):
                for chunk in _chunks(_bytes_of(arrays[index])):
                    if file.readinto(chunk) != len(chunk):
                        raise ValueError(f"{path.name} ends early")
                    crc = thread.submit(zlib.crc32, chunk, crc.result())
    return arrays, (nbytes, crc.result())


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
    is_known = dtype.name in _NAMES or dtype.type.__module__ == "ml_dtypes"
    return is_known or dtype.name == "complex128"


def _header(layouts: Sequence[ArrayLayout]) -> bytes:
    """Returns all of a file before the bytes of its arrays."""
    entries: dict[str, dict[str, object]] = {}
    begin = 0
    for index in _order(layouts):
        shape, name = layouts[index]
        end = begin + _nbytes(layouts[index])
        entries[f"{index:06d}"] = {
            "dtype": _NAMES.get(name, "U8"),
            "shape": [*shape] if name in _NAMES else [*shape, dtype_of(name).itemsize],
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the arrays begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text


def _order(layouts: Sequence[ArrayLayout]) -> list[int]:
    """Returns the order of arrays in a file: those of large items first, so all are aligned."""
    return sorted(range(len(layouts)), key=lambda index: -dtype_of(layouts[index][1]).itemsize)


def _nbytes(layout: ArrayLayout) -> int:
    shape, name = layout
    return math.prod(shape) * dtype_of(name).itemsize


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _chunks(content: memoryview) -> Iterator[memoryview]:
    return (content[begin : begin + _CHUNK] for begin in range(0, len(content), _CHUNK))
