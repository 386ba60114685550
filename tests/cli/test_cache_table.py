"""`millrace cache`."""

import json
import os
import re
import time

import pytest
from click.testing import CliRunner

from millrace.cache import files as cache_files
from millrace.cache.entry import pack
from millrace.cli.main import main
from millrace.records.cache import EntryLabels

pytestmark = pytest.mark.quick

ENVIRONMENT = "0.10.2-cpu-12345678"


def run(*words, **environment):
    result = CliRunner().invoke(main, ["cache", *words], env={"COLUMNS": "100", **environment})
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.fixture
def root(tmp_path):
    """Two programs of ours and one of JAX's."""
    ages = {"jit_run": 30, "jit_forward": 7300, "jit__uniform": 3 * 86400 + 50}
    labels = {
        "jit_run": EntryLabels("digits", "train_run", "float32[32,64], int32[32]"),
        "jit_forward": EntryLabels("[bold]", "train_forward of stage 1", "float32[32,64]"),
    }
    for number, (module, age) in enumerate(ages.items()):
        key = f"{module}-{number:064}"
        path = tmp_path / ENVIRONMENT / cache_files.file_name(key)
        label = labels.get(module, EntryLabels())
        cache_files.write(path, pack(key, ENVIRONMENT, label, bytes(1500 - len(str(label)))))
        used = time.time() - age
        os.utime(path, (used, used))
    return tmp_path


def sizes(root):
    return [entry.nbytes for entry in cache_files.entries(root)]


def test_list(root):
    lines = run("list", "--all", "--dir", str(root)).output.splitlines()
    assert [line.split("  ") for line in (" ".join(lines[0].split()),)] == [
        ["program model batch size last used"]
    ]
    assert "train_run" in lines[1]
    assert "digits" in lines[1]
    assert "float32[32,64], int32[32]" in lines[1]
    assert lines[1].endswith("30 s ago")
    assert "train_forward of stage 1  [bold]" in lines[2]
    assert lines[2].endswith("2 h ago")
    assert lines[3].startswith("jit__uniform")
    assert lines[3].endswith("3 d ago")
    assert len(lines) == 4


def test_list_leaves_out_what_jax_compiles_for_itself(root):
    lines = run("list", "--dir", str(root)).output.splitlines()
    assert [line.split()[0] for line in lines] == ["program", "train_run", "train_forward", "1"]
    assert re.fullmatch(r"1 program more of JAX itself, 1\.7\d KB: --all lists them\.", lines[-1])
    for entry in cache_files.entries(root):
        if entry.program:
            entry.path.unlink()
    output = run("list", "--dir", str(root)).output
    assert re.fullmatch(r"1 program of JAX itself, 1\.7\d KB: --all lists them\.\n", output)


def test_list_as_json(root):
    found = json.loads(run("list", "--json", "--dir", str(root)).output)
    assert [entry["module"] for entry in found] == ["jit_run", "jit_forward", "jit__uniform"]
    assert found[0]["program"] == "train_run"
    assert found[0]["model"] == "digits"
    assert found[0]["batch"] == "float32[32,64], int32[32]"
    assert found[0]["version"] == ENVIRONMENT
    assert found[0]["bytes"] == sizes(root)[0]
    assert found[0]["created"] >= found[0]["used"]
    assert os.path.exists(found[0]["path"])


def test_stats(root):
    output = run("stats", "--dir", str(root), MILLRACE_CACHE_MAX_BYTES="1000000").output
    total = f"{sum(sizes(root)) / 1000:.2f} KB"
    assert [line.rstrip() for line in output.splitlines()] == [
        f"directory  {root}",
        "entries    3",
        f"size       {total} of 1.00 MB",
        "",
        "version, platform, processor  entries  size",
        f"{ENVIRONMENT}           3        {total}",
    ]
    found = json.loads(run("stats", "--json", "--dir", str(root)).output)
    assert found == {
        "directory": str(root),
        "entries": 3,
        "bytes": sum(sizes(root)),
        "limit": 2 << 30,
        "versions": [{"version": ENVIRONMENT, "entries": 3, "bytes": sum(sizes(root))}],
    }


def test_clear(root):
    last = sizes(root)[2] / 1000
    output = run("clear", "--older-than", "2", "--dir", str(root)).output
    assert output == f"Removed 1 executable ({last:.2f} KB) from {root}.\n"
    rest = sum(sizes(root)) / 1000
    output = run("clear", "--dir", str(root)).output
    assert output == f"Removed 2 executables ({rest:.2f} KB) from {root}.\n"
    assert run("list", "--dir", str(root)).output == f"No executables in {root}.\n"
    assert run("clear", "--older-than", "0", "--dir", str(root)).exit_code == 2


def test_the_cache_is_that_of_the_environment(root):
    assert f"directory  {root}\n" in run("stats", MILLRACE_CACHE_DIR=str(root)).output
    place = root / "home"
    output = run("stats", MILLRACE_CACHE_DIR="off", XDG_CACHE_HOME=str(place)).output
    assert f"{place / 'millrace'}\nentries    0\n" in output


def test_without_a_home_there_must_be_a_directory(monkeypatch):
    monkeypatch.setattr("millrace.cli.cache_table.default_root", lambda: None)
    result = run("list")
    assert result.exit_code == 2
    assert "There is no home directory for the cache. Set --dir." in result.output
