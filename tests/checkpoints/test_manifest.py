import json
import zlib

import pytest

from millrace.base.checkpoints.manifest import DamagedError, Manifest, check_files, checksum

MANIFEST = Manifest(
    step=7,
    epoch=1,
    epoch_step=2,
    kind="fit",
    written="2026-11-24T12:00:00",
    is_finite=True,
    tree=[{"array": 0}, None],
    arrays=(((2, 3), "float32"), ((), "bfloat16")),
    files={"arrays.safetensors": (3, zlib.crc32(b"abc"))},
)


def write(directory, text):
    (directory / "checkpoint.json").write_text(text)
    return directory


def changed(**fields):
    values = json.loads(MANIFEST.to_text().splitlines()[0])
    body = json.dumps({**values, **fields})
    return f"{body}\n{zlib.crc32(body.encode()):08x}\n"


def test_a_manifest_comes_back(tmp_path):
    assert Manifest.read(write(tmp_path, MANIFEST.to_text())) == MANIFEST
    assert MANIFEST.nbytes == 3


def test_unknown_fields_are_left_out(tmp_path):
    assert Manifest.read(write(tmp_path, changed(later=1))) == MANIFEST


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "other"}, "its format is not"),
        ({"version": 1}, "its version is 1, and this millrace reads 2"),
        ({"version": 3}, "its version is 3, and this millrace reads 2"),
        ({"version": True}, "its version is True"),
        ({"step": -1}, "step is -1"),
        ({"step": True}, "step is True"),
        ({"step": 1 << 70}, "step is"),
        ({"epoch_step": 1.5}, "epoch_step is 1.5"),
        ({"kind": 3}, "kind is 3"),
        ({"is_finite": 1}, "is_finite is 1"),
        ({"arrays": [[[-1], "float32"]]}, "no shape"),
        ({"arrays": [["ab", "float32"]]}, "no shape"),
        ({"arrays": [[[2], "object"]]}, "object"),
        ({"arrays": [[[2], "V16"]]}, "V16"),
        ({"arrays": [[[2], "i4,f4"]]}, "i4,f4"),
        ({"arrays": [[[2], None]]}, "no dtype"),
        ({"arrays": [[[2]]]}, "not enough values"),
        ({"arrays": 3}, "not iterable"),
        ({"files": {"../x": [1, 1]}}, "no file is called"),
        ({"files": {"/etc/passwd": [1, 1]}}, "no file is called"),
        ({"files": {"a": [1, "1"]}}, "a has"),
        ({"files": []}, "no attribute"),
    ],
)
def test_other_fields_are_refused(tmp_path, fields, message):
    with pytest.raises(DamagedError, match=r"checkpoint.json is no manifest") as error:
        Manifest.read(write(tmp_path, changed(**fields)))
    assert message in str(error.value)


@pytest.mark.parametrize("field", ["tree", "step", "files", "arrays", "format", "kind"])
def test_a_field_that_is_missing(tmp_path, field):
    values = json.loads(MANIFEST.to_text().splitlines()[0])
    del values[field]
    body = json.dumps(values)
    with pytest.raises(DamagedError, match="no manifest"):
        Manifest.read(write(tmp_path, f"{body}\n{zlib.crc32(body.encode()):08x}\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not complete"),
        (MANIFEST.to_text()[:-1], "is not complete"),
        (MANIFEST.to_text().replace("7", "8", 1), "does not match its checksum"),
        ("[" * 100_000 + f"\n{zlib.crc32(b'[' * 100_000):08x}\n", "no manifest"),
        ("[1]" + f"\n{zlib.crc32(b'[1]'):08x}\n", "no manifest"),
    ],
    ids=["empty", "cut", "changed", "deep", "list"],
)
def test_other_texts_are_refused(tmp_path, text, message):
    with pytest.raises(DamagedError, match=message):
        Manifest.read(write(tmp_path, text))


def test_a_manifest_that_is_missing(tmp_path):
    with pytest.raises(DamagedError, match=r"checkpoint.json is missing"):
        Manifest.read(tmp_path)


def test_files_are_compared(tmp_path):
    path = tmp_path / "arrays.safetensors"
    with pytest.raises(DamagedError, match=r"arrays.safetensors is missing"):
        check_files(tmp_path, MANIFEST)
    path.write_bytes(b"abc")
    assert checksum(path) == MANIFEST.files["arrays.safetensors"]
    check_files(tmp_path, MANIFEST)
    path.write_bytes(b"abd")
    check_files(tmp_path, MANIFEST, contents=False)
    with pytest.raises(DamagedError, match=r"arrays.safetensors does not match its checksum"):
        check_files(tmp_path, MANIFEST)
    path.write_bytes(b"abcd")
    with pytest.raises(DamagedError, match=r"arrays.safetensors has 4 bytes in place of 3"):
        check_files(tmp_path, MANIFEST)
