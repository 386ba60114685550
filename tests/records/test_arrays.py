"""Files of arrays: nothing is allocated that is not in the file, and no code runs."""

import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest

from millrace.records.arrays import read_arrays

pytestmark = pytest.mark.quick


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def header(shape, dtype="<f8", data=b"", order=False):
    file = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": order, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue() + data


def archive(path, method=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def test_what_numpy_has_saved_is_read(tmp_path):
    arrays = {
        "scalar": np.array(3),
        "text": np.array("some"),
        "empty": np.zeros((0, 4)),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "flags": np.array([True, False]),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    read = read_arrays(tmp_path / "a.npz")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype
        assert read[name].flags.writeable


def test_objects_are_refused_and_no_code_runs(tmp_path):
    mark = tmp_path / "mark"
    np.savez(tmp_path / "a.npz", a=np.array([Bomb(str(mark))], object))
    with pytest.raises(ValueError, match="has the dtype object"):
        read_arrays(tmp_path / "a.npz")
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        header((10**12,)),
        header((2**40, 2**40)),
        header((10**30,), "<f8", bytes(8)),
        header((-1,), "<f8", bytes(8)),
        header((2,), "<f8", bytes(8)),
        header((1,), "<U1000000000"),
        header((1,), [("a", "<f8")], bytes(8)),
        header((1,), "<M8[s]", bytes(8)),
        b"",
        b"\x93NUMPY\x09\x00",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        b"\x93NUMPY\x01\x00\x20\x00" + b"(" * 32,
    ],
    ids=range(12),
)
def test_what_a_header_claims_is_not_allocated(tmp_path, data):
    path = archive(tmp_path / "a.npz", a=data)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"\w"):
        read_arrays(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


def test_a_small_file_does_not_become_a_large_one(tmp_path):
    path = archive(tmp_path / "a.npz", zipfile.ZIP_DEFLATED, a=bytes(10_000_000))
    assert path.stat().st_size < 20_000
    with pytest.raises(ValueError, match="compressed"):
        read_arrays(path)
    stored = archive(tmp_path / "b.npz", a=header((1,), data=bytes(8)))
    sizes = b"\x88\0\0\0" * 2
    claims = stored.read_bytes().replace(sizes, b"\xff\xff\xff\x7f" * 2)
    assert claims != stored.read_bytes()
    stored.write_bytes(claims)
    with pytest.raises(ValueError, match=r"\w"):
        read_arrays(stored)


def test_what_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="it is missing"):
        read_arrays(tmp_path / "a.npz")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is not a file"):
        read_arrays(tmp_path / "pipe")
    (tmp_path / "text").write_text("text")
    with pytest.raises(ValueError, match="zip"):
        read_arrays(tmp_path / "text")
