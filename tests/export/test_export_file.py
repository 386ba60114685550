"""The format of an export, and what damage to it is told by."""

import dataclasses
import struct

import jax
import pytest

from millrace.base.records.compilation import Aspect, KeyField, ProgramKey
from millrace.compilation.cache.entry import DamagedEntryError
from millrace.compilation.export.file import (
    EXECUTABLE,
    Header,
    differences,
    environment,
    pack,
    read_header,
    unpack,
)

KEY = ProgramKey(
    "net",
    "train_run",
    (
        KeyField(Aspect.ARGUMENT, "argument x: shape", "(32, 8)"),
        KeyField(Aspect.CODE, "loss()", "a\0b\n\N{GREEK SMALL LETTER ALPHA}" * 100, "file.py:12"),
    ),
)
HEADER = Header(EXECUTABLE, KEY, {"jax": "0.10.2"}, ("dense", "dense_1"), unroll=8)
CONTENT = {"data": b"code" * 100}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "one.mrexport"
    path.write_bytes(pack(HEADER, CONTENT))
    return path


def test_what_is_packed_is_unpacked(file):
    assert read_header(file) == HEADER
    assert unpack(file.read_bytes(), HEADER) == CONTENT
    loop = dataclasses.replace(HEADER, unroll=None)
    file.write_bytes(pack(loop, CONTENT))
    assert read_header(file) == loop


def test_a_header_is_read_without_the_content(file):
    file.write_bytes(file.read_bytes()[:-300])
    assert read_header(file) == HEADER


@pytest.mark.parametrize("place", [0, 20, 25, 200, -200, -1])
def test_a_flipped_bit_is_found(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    with pytest.raises(DamagedEntryError):
        unpack(bytes(data), HEADER)


@pytest.mark.parametrize("length", [0, 5, 20, 100, -100, -1])
def test_a_file_that_ends_early_is_found(file, length):
    with pytest.raises(DamagedEntryError):
        unpack(file.read_bytes()[:length], HEADER)


def test_a_file_of_something_else_is_none(file):
    file.write_bytes(b"PK\3\4 something else")
    with pytest.raises(DamagedEntryError, match=r"not an export of millrace, or is of another"):
        read_header(file)
    file.write_bytes(b"")
    with pytest.raises(DamagedEntryError, match=r"empty"):
        read_header(file)
    file.write_bytes(b"MILLRACE-EXPORT-1\n" + struct.pack(">I", 1 << 30))
    with pytest.raises(DamagedEntryError, match=r"header is damaged"):
        read_header(file)
    file.write_bytes(b"MILLRACE-EXPORT-1\n" + struct.pack(">I", 2) + b"{}")
    with pytest.raises(DamagedEntryError, match=r"header is damaged"):
        read_header(file)


def test_a_file_that_took_the_place_of_another_is_found(file):
    other = dataclasses.replace(HEADER, layers=("other",))
    with pytest.raises(DamagedEntryError, match=r"replaced"):
        unpack(pack(other, CONTENT), HEADER)


def test_environments_are_compared_in_words():
    here = environment(jax.devices()[0])
    assert not differences(here, dict(here))
    assert differences({**here, "jax": "0.9.0"}, here) == [f"jax 0.9.0 -> {jax.__version__}"]
    assert {"processor", "code of millrace", "kind of device", "jaxlib"} <= set(here)
