"""Arrays come back from a file that the library of its format reads, too."""

import json
import os

import numpy as np
import pytest

from millrace.base.checkpoints.arrays import dtype_of, read_arrays, write_arrays

NUMPY = ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128"]
JAX = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e3m4", "int4"]


def arrays_of(names):
    """Returns arrays of each dtype, of several shapes and orders in memory."""
    random = np.random.default_rng(0)
    found = []
    for name in names:
        dtype = dtype_of(name)
        some = [random.integers(0, 2, shape).astype(dtype) for shape in ((3, 4), (), (0, 3), (9,))]
        found += [*some, some[0].T, some[-1][::2]]
    return found


def layouts_of(arrays):
    return [(array.shape, array.dtype.name) for array in arrays]


def is_same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and (one == other).all()


@pytest.mark.parametrize("names", [NUMPY, JAX, [*NUMPY, *JAX], []], ids=len)
def test_arrays_come_back(tmp_path, names):
    arrays, path = arrays_of(names), tmp_path / "file"
    written = write_arrays(path, arrays)
    read, found = read_arrays(path, layouts_of(arrays))
    assert found == written
    assert written[0] == os.path.getsize(path)
    assert all(map(is_same, read, arrays))
    assert all(array.flags.writeable for array in read)


def test_arrays_of_many_chunks(tmp_path):
    arrays = [np.arange(400_000.0), np.arange(7, dtype="int8"), np.arange(300_001.0)]
    write_arrays(tmp_path / "file", arrays)
    read, _ = read_arrays(tmp_path / "file", layouts_of(arrays))
    assert all(map(is_same, read, arrays))


def test_the_format(tmp_path):
    arrays = [np.array([1, 2], "uint8"), np.array([[1.5]], "float32"), np.array(1j)]
    write_arrays(tmp_path / "file", arrays)
    content = (tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    assert json.loads(content[8 : 8 + length]) == {
        "000002": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]},
        "000001": {"dtype": "F32", "shape": [1, 1], "data_offsets": [16, 20]},
        "000000": {"dtype": "U8", "shape": [2], "data_offsets": [20, 22]},
    }
    assert content[8 + length :] == b"".join(arrays[index].tobytes() for index in (2, 1, 0))


def test_the_library_of_the_format_reads_them(tmp_path):
    library = pytest.importorskip("safetensors")
    arrays = arrays_of([*NUMPY, *JAX])
    write_arrays(tmp_path / "file", arrays)
    content = (tmp_path / "file").read_bytes()
    found = dict(library.deserialize(content))
    assert len(found) == len(arrays)
    for name, each in found.items():
        array = arrays[int(name)]
        assert bytes(each["data"]) == array.tobytes()
        assert tuple(each["shape"])[: array.ndim] == array.shape
    kinds = {each["dtype"] for each in found.values()}
    assert {"F32", "BF16", "F8_E4M3", "F8_E5M2", "C64", "BOOL"} <= kinds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layouts": [((2, 3), "float32")]}, "file begins with another header"),
        ({"layouts": [((3, 2), "int32")]}, "file begins with another header"),
        ({"layouts": [((3, 3), "float32")]}, "in place of"),
        ({"layouts": [((1 << 40,), "float32")]}, "file has 96 bytes in place of 4,398,046,"),
        ({"layouts": [((0, 1 << 62), "float32")]}, "in place of"),
        ({"content": b""}, "file has 0 bytes in place of 96"),
    ],
)
def test_other_arrays_are_refused(tmp_path, change, message):
    path = tmp_path / "file"
    write_arrays(path, [np.ones((3, 2), "float32")])
    if "content" in change:
        path.write_bytes(change["content"])
    with pytest.raises(ValueError, match=message):
        read_arrays(path, change.get("layouts", [((3, 2), "float32")]))


def test_a_file_is_not_written_over(tmp_path):
    write_arrays(tmp_path / "file", [])
    with pytest.raises(FileExistsError):
        write_arrays(tmp_path / "file", [np.ones(3)])
