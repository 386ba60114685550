"""Processes one after the other, and at once, with one cache on disk."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

import millrace
from case_marks import exhaustive
from millrace.compilation.cache import files as cache_files
from millrace.compilation.cache.entry import unpack
from millrace.errors import OptionError
from quick_compiler import compiler

SCRIPT = pathlib.Path(__file__).parent / "cached_fit.py"


def start(environment, options):
    found = compiler.environment()
    kept = {name: value for name, value in found.items() if not name.startswith("MILLRACE_")}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=kept | environment,
    )


def finish(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def train(root):
    return finish(start({}, {"cache_dir": str(root)}))


def executables(root):
    return sorted(pathlib.Path(root).glob("*/*.mrx"))


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A directory that one process has filled, and what it says of itself."""
    root = tmp_path_factory.mktemp("warm")
    return root, finish(start({"MILLRACE_CACHE_DIR": str(root)}, {}))


@pytest.fixture
def copy(warm, tmp_path):
    return pathlib.Path(shutil.copytree(warm[0], tmp_path / "copy"))


@pytest.mark.slow
def test_a_second_process_compiles_nothing(warm):
    root, first = warm
    assert first["hits"] == 0
    assert first["written"] == len(executables(root)) > 5
    second = train(root)
    assert second == {**first, "hits": first["written"], "written": 0}
    assert second["warnings"] == []


def damaged(kind, content):
    if kind == "truncated":
        return content[: len(content) // 2]
    if kind == "flipped":
        return content[:-9] + bytes([content[-9] ^ 4]) + content[-8:]
    return b"" if kind == "emptied" else b"To whom it may concern"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["truncated", "flipped", exhaustive("emptied"), exhaustive("foreign")]
)
def test_damaged_files_are_compiled_again_with_one_warning(warm, copy, kind):
    for path in executables(copy):
        path.write_bytes(damaged(kind, path.read_bytes()))
    found = train(copy)
    assert found["losses"] == warm[1]["losses"]
    assert (found["hits"], found["written"]) == (0, warm[1]["written"])
    (warning,) = found["warnings"]
    assert "It was removed, and the program is compiled again." in warning
    for path in executables(copy):  # whole again
        assert unpack(path.read_bytes(), path.stem, path.parent.name)
    assert [p.name for p in executables(copy)] == [p.name for p in executables(warm[0])]


@pytest.mark.slow
def test_the_process_after_the_repair_compiles_nothing(warm, copy):
    for path in executables(copy):
        path.write_bytes(damaged("truncated", path.read_bytes()))
    assert train(copy)["hits"] == 0
    assert train(copy) == {**warm[1], "hits": warm[1]["written"], "written": 0}


@pytest.mark.slow
def test_entries_of_another_version_are_left_alone(warm, copy):
    (directory,) = {path.parent for path in executables(copy)}
    other = directory.rename(copy / "0.9.0-cpu-12345678")
    assert train(copy) == warm[1]  # compiles as if there were none
    assert len(list(other.iterdir())) == len(executables(copy)) / 2


@pytest.mark.slow
def test_a_file_in_place_of_the_directory(warm, tmp_path):
    (tmp_path / "file").write_text("mine")
    found = train(tmp_path / "file")
    assert found["losses"] == warm[1]["losses"]
    (warning,) = found["warnings"]
    assert f"Compiled programs cannot be kept in {tmp_path / 'file'}: " in warning


@pytest.mark.slow
def test_two_processes_at_once(warm, tmp_path):
    processes = [start({"MILLRACE_CACHE_DIR": str(tmp_path)}, {}) for _ in range(2)]
    for found in map(finish, processes):
        assert found["losses"] == warm[1]["losses"]
        assert found["hits"] + found["written"] == warm[1]["written"]
        assert found["warnings"] == []
    assert len(executables(tmp_path)) == warm[1]["written"]
    assert not list(tmp_path.rglob("*.writing"))
    for path in executables(tmp_path):
        assert unpack(path.read_bytes(), path.stem, path.parent.name)


@pytest.mark.slow
def test_the_limit_holds_and_training_goes_on(warm, tmp_path):
    environment = {"MILLRACE_CACHE_DIR": str(tmp_path), "MILLRACE_CACHE_MAX_BYTES": "30000"}
    for _ in range(2):
        found = finish(start(environment, {}))
        assert found["losses"] == warm[1]["losses"]
        assert found["warnings"] == []
        assert sum(file.nbytes for file in cache_files.files(tmp_path)) <= 30000


@pytest.mark.parametrize("wrong", [3, b"bytes", ""])
def test_what_is_no_directory(wrong):
    with pytest.raises(OptionError, match="cache_dir must be the path of a directory, or None"):
        millrace.Strategy(devices=1, cache_dir=wrong)
