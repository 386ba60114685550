"""The programs in examples/, and those that pages of docs/ begin with."""

import pathlib
import re
import runpy
import subprocess
import sys

import pytest

from case_marks import with_marks
from quick_compiler import compiler

pytestmark = pytest.mark.every_share

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {page.name: page.read_text() for page in ROOT.glob("docs/*.md")}
PROGRAM = runpy.run_path(str(ROOT / "docs" / "programs.py"))["PROGRAM"]
SHOWN = [(name, found) for name in PAGES for found in PROGRAM.finditer(PAGES[name])]
CASES = sorted({*(ROOT / "examples").glob("*.py"), *(ROOT / found["path"] for _, found in SHOWN)})
# Run below, with others of their kind; the last one in tests/targets, with its compilers.
ELSEWHERE = "processes.py", "replicated_convnet.py", "target.py"


def words(output):
    """An output with one number in place of all, whose digits and units the machine decides."""
    return re.sub(r"[-+]?\d[\w.,%:-]*( [KMG]?B\b)?", "0", output).split()


def run(path, directory, *command):
    # Without the backend that the tests have set, and in any directory, as a user would run it.
    environment = {k: v for k, v in compiler.environment().items() if k != "KERAS_BACKEND"}
    result = subprocess.run(
        [sys.executable, *command, str(path), *["--small"] * ("--small" in path.read_text())],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert not list(directory.iterdir())  # it leaves nothing behind
    if not command:
        for page, found in SHOWN:
            if ROOT / found["path"] == path and found["output"] is not None:
                assert words(result.stdout) == words(found["output"]), page
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    with_marks([path for path in CASES if path.name not in ELSEWHERE], exhaustive=("demo.py",)),
    ids=lambda path: path.stem,
)
def test_runs(path, tmp_path):
    run(path, tmp_path)


@pytest.mark.slow
def test_two_processes_get_what_one_gets(tmp_path):
    def losses(*command):
        path = ROOT / "examples" / "processes.py"
        output = run(path, tmp_path, *command)
        return [float(loss) for loss in re.findall(r"epoch \d+: loss ([\d.]+)", output)]

    command = "from millrace.tools.cli.main import main; main()", "launch", "--processes", "2"
    alone = losses()
    assert len(alone) == 2
    assert losses("-c", *command) == pytest.approx(alone, rel=1e-6)


@pytest.mark.slow
def test_a_network_replicated_over_two_processes_trains_as_plain_keras(tmp_path):
    command = "from millrace.tools.cli.main import main; main()", "launch", "--processes", "2"
    path = ROOT / "examples" / "replicated_convnet.py"
    output = run(path, tmp_path, "-c", *command)
    assert "process 0 of 2: replicas on device 0 of process 0, device" in output  # it checks itself
    assert "of process 1" in output


CELLS = """
import pathlib, re, sys
from IPython.core.interactiveshell import InteractiveShell

text = pathlib.Path(sys.argv[1]).read_text()
shell = InteractiveShell.instance()
for cell in re.split(r"^# %%.*\\n", text, flags=re.MULTILINE)[1:]:
    shell.run_cell(cell).raise_error()
data, _ = shell.display_formatter.format(shell.user_ns["run"].epochs)
assert "<table" in data["text/html"] and "loss" in data["text/plain"], data
"""


@pytest.mark.slow
def test_a_notebook_runs_cell_by_cell(tmp_path):
    pytest.importorskip("IPython")
    output = run(ROOT / "examples" / "notebook.py", tmp_path, "-c", CELLS)
    assert "stage 0 |F0 F1" in output
    assert "fit, evaluate, predict" in output


def test_every_example_is_named_in_the_docs():
    text = "".join(PAGES.values())
    assert [path.name for path in CASES if path.name not in text] == []
