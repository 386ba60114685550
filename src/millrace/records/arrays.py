"""Arrays in a file of `numpy.savez`, whoever has written it.

`numpy.load` allocates as many bytes as a header claims, and an archive may expand to a thousand
times its size. Here the bytes of all arrays must be in the file, as `numpy.savez` writes them.
"""

import io
import math
import pathlib
import zipfile

import numpy as np

_KINDS = "biufcU"  # of dtypes: plain numbers and texts, and no Python objects
_SUFFIX = ".npy"


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file by name.

    Raises:
        ValueError: if it is no such file, or damaged; the message says why.
    """
    if not path.is_file():  # a pipe would wait for its writer
        raise ValueError("it is missing" if not path.exists() else "it is not a file")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise ValueError("it is compressed, and NaNWatch compresses no arrays")
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise ValueError("its arrays are larger than the file")
            return {
                member.filename.removesuffix(_SUFFIX): _array(archive.read(member))
                for member in members
            }
    except ValueError:
        raise
    except Exception as error:  # zipfile and NumPy raise errors of many classes
        raise ValueError(str(error) or type(error).__name__) from error


def _array(data: bytes) -> np.ndarray:
    file = io.BytesIO(data)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    reader = readers.get(np.lib.format.read_magic(file))
    if reader is None:
        raise ValueError("an array in it has an unknown format")
    shape, is_fortran, dtype = reader(file)
    if dtype.kind not in _KINDS or dtype.fields is not None or dtype.subdtype is not None:
        raise ValueError(f"an array in it has the dtype {str(dtype)[:80]}")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(data) - file.tell():
        raise ValueError("an array in it has fewer or more bytes than its shape")
    array = np.frombuffer(data, dtype, count, file.tell()) if count else np.empty(0, dtype)
    return array.reshape(shape, order="F" if is_fortran else "C").copy()
