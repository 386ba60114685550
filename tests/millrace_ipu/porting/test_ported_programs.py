"""`millrace port` on programs as published ones are, against what happens when they run.

good      run to their end                                          programs/good.txt
bad       fail in one line, which is marked                         programs/bad.txt
untuned   of both kinds, written after the rules for the others     programs/untuned.txt
"""

import os
import pathlib
import runpy
import subprocess
import sys
import traceback

import keras
import pytest
from ported_programs import marked, programs, write

from case_marks import slow_but_for
from millrace_ipu.porting.findings.port import port_program, rewrite
from millrace_ipu.porting.findings.program import PortedProgram
from millrace_ipu.porting.running.serve import run_script
from millrace_ipu.tensorflow.graph_mode import set_graph_mode

pytestmark = pytest.mark.filterwarnings("ignore")  # of Keras, about arguments and files
ALL = {name: files for kind in ("good", "bad", "untuned") for name, files in programs(kind).items()}
BY_HAND = ("optimizer_state",)  # `get_weights` of an optimizer: `millrace run` has it
# What fails here depends on the class of an object or on what is installed, which is not looked at.
UNSEEN = (
    *("argument_of_no_layer", "tensor_methods", "own_optimizer"),
    *("tape_outside", "train_step_override", "text_vectorizer", "wrong_option", "misspelled_set"),
    *("transformers_model", "profiler_application", "learning_rate_plot"),
)
UNREACHED = ("several_files", "two_files_with_classes")  # have functions that nothing calls
RUNNING = [name for name, files in ALL.items() if marked(files) is None]
SCRIPT = pathlib.Path("program.py")


@pytest.fixture(autouse=True)
def as_before(no_modules):
    """Resets what programs switch globally."""
    yield
    set_graph_mode(False)
    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Returns a function that writes the files of a program into the working directory."""

    def prepare(name):
        write(ALL[name], tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["program.py"])

    return prepare


def write_rewritten():
    """Writes the rewritten files of the program in the working directory."""
    for each in rewrite(PortedProgram([SCRIPT])):
        each.write()


def findings(name):
    """The findings of a program as (path, line, blocks)."""
    files = port_program(PortedProgram([SCRIPT]))
    return {(str(f.module.path), each.line, each.blocks) for f in files for each in f.shown}


def test_there_are_as_many_as_are_promised():
    assert [len(programs(kind)) for kind in ("good", "bad", "untuned")] == [30, 30, 30]
    assert all(marked(files) is None for files in programs("good").values())
    assert all(marked(files) is not None for files in programs("bad").values())


@pytest.mark.parametrize("name", ALL)
def test_what_port_predicts(prepared, name):
    prepared(name)
    blocking = {(path, line) for path, line, blocks in findings(name) if blocks}
    expected = marked(ALL[name])
    if name not in UNREACHED:
        is_seen = expected is not None and name not in UNSEEN
        assert expected in blocking if is_seen else blocking == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if name not in RUNNING])
def test_these_fail_where_port_says(prepared, name):
    prepared(name)
    with pytest.raises(Exception) as raised:  # noqa: PT011  # of any kind
        run_script(str(SCRIPT))
    frames = traceback.extract_tb(raised.value.__traceback__)
    lines = {(os.path.relpath(frame.filename), frame.lineno) for frame in frames}
    path, line = marked(ALL[name])
    own = {each for each in lines if not each[0].startswith("..")}
    assert (path, line) in own or name in FAIL_LATER
    assert own


# Their line says what Keras does not do; it fails where Keras would do it.
FAIL_LATER = ("train_step_override", "own_optimizer")


@pytest.mark.parametrize(
    "name", slow_but_for([name for name in RUNNING if name not in BY_HAND], "vae_with_losses")
)
def test_these_run_and_print_the_same_when_they_are_rewritten(prepared, capsys, name):
    prepared(name)
    run_script(str(SCRIPT))
    printed = capsys.readouterr().out
    assert printed
    for module in [key for key, each in sys.modules.items() if _is_here(each)]:
        del sys.modules[module]
    write_rewritten()
    set_graph_mode(False)
    sys.path.insert(0, os.getcwd())
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        sys.path.remove(os.getcwd())
    assert capsys.readouterr().out == printed
    assert rewrite(PortedProgram([SCRIPT])) == []
    assert name in UNREACHED or not any(blocks for *_, blocks in findings(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
def test_what_a_person_must_change_is_left_and_listed(prepared, name):
    prepared(name)
    run_script(str(SCRIPT))
    write_rewritten()
    assert any(blocks for *_, blocks in findings(name))


def _is_here(module):
    return str(getattr(module, "__file__", None) or "").startswith(os.getcwd())


@pytest.mark.slow
def test_a_rewritten_program_starts_with_python(prepared, import_path):
    prepared("habits_of_arguments")
    write_rewritten()
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        env={
            **{key: value for key, value in os.environ.items() if key != "XLA_FLAGS"},
            "PYTHONPATH": import_path,
            "PYTHONWARNINGS": "ignore",
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
