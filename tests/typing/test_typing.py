"""What users of pyright and of editors see of the installed package, by its `py.typed`."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from attached_stub import METHODS, STUB, stub
from language_server import LanguageServer

import millrace

HERE = pathlib.Path(__file__).parent
# Each line that must be an error says so, and is one itself if pyright accepts it.
RULES = {"typeCheckingMode": "standard", "reportUnnecessaryTypeIgnoreComment": "error"}
# As if installed: pyright asks this Python for the folders of its packages.
SOURCES = {"PYTHONPATH": str(pathlib.Path(millrace.__file__).parents[1])}


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_the_stub_is_what_the_table_of_options_gives():
    assert STUB.read_text() == stub(), "run `python tests/typing/attached_stub.py`"


@pytest.mark.slow
def test_ten_programs(tmp_path):
    programs = HERE / "programs"
    assert len(list(programs.glob("*.py"))) == 10
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(RULES | {"include": [str(programs)]}))
    command = [sys.executable, "-m", "basedpyright", "-p", config, "--pythonpath", sys.executable]
    result = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | SOURCES, check=False
    )
    assert result.stdout.startswith("0 errors, 0 warnings"), result.stdout + result.stderr


PROGRAM = """\
import keras
import millrace

model = millrace.Strategy().attach(keras.Sequential())
model.precompile
millrace.
"""


@pytest.mark.slow
def test_what_an_editor_offers(tmp_path):
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(RULES))
    with LanguageServer(tmp_path, os.environ | SOURCES) as server:
        file = server.open("program.py", PROGRAM)
        offered = server.completions(file, line=5, column=9)
        assert public(offered) == public(dir(millrace))
        members = server.completions(file, line=4, column=6)
        assert {"fit", "summary", *(method.__name__ for method in METHODS)} <= set(members)
        shown = server.hover(file, line=4, column=8)
        assert "batch_spec: BatchDescription" in shown
        assert "Compiles the programs that fit, evaluate and predict will run" in shown
