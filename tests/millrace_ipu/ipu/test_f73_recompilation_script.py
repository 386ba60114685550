"""F73, F72: the program about recompilation, its options, and the text files of XLA."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.every_share]

EXAMPLES = pathlib.Path(__file__).parents[3] / "millrace-ipu" / "examples"
START, LOAD = "Starting phase: graphConstruction", "Loading executable\n"
HEADINGS = ("Caching/warm up test", "Placeholder test", "Batch size test", "Results")


def start(script, directory, *arguments):
    unset = ("MILLRACE_CACHE_DIR", "XLA_FLAGS", "POPLAR_LOG_LEVEL", "TF_POPLAR_FLAGS")
    environ = {k: v for k, v in os.environ.items() if k not in unset} | {"PYTHONUNBUFFERED": "1"}
    directory.mkdir()
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    return subprocess.Popen(
        command,
        cwd=directory,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def parts(process):
    """Returns the output before and after each heading."""
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out[-3000:]
    actual = {}
    rest = out
    for heading in HEADINGS:
        assert rest.count(heading) == 1, heading
        actual[heading], rest = rest.split(heading)
    return [*actual.values(), rest]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs the defaults, another batch size with a constant as multiplier, and two sessions."""
    root = tmp_path_factory.mktemp("recompilation")
    script = "recompilation.py"
    default = start(script, root / "default")
    other = start(script, root / "other", "--no-samebatch", "--no-placeholder", "--no-caching")
    of_sessions = start("recompilation_sessions.py", root / "sessions", "--no-samebatch")
    return parts(default), parts(other), root / "default", parts(of_sessions)


def test_f73_with_the_defaults_only_the_first_execution_compiles(runs):
    before, warm_up, placeholder, batch, results = runs[0]
    assert "Setting POPLAR_LOG_LEVEL to INFO" in before
    assert (warm_up.count(START), warm_up.count(LOAD)) == (1, 1)
    for part in (placeholder, batch):
        assert START not in part
        assert LOAD not in part
    lines = [line for line in results.splitlines() if "[[" in line]
    assert [line[line.index("[[") :] for line in lines] == ["[[30, 80]]"] + ["[[0.9, 2.4]]"] * 2


def test_f73_without_placeholder_or_with_another_batch_a_compilation_follows(runs):
    _, warm_up, placeholder, batch, results = runs[1]
    for part in (warm_up, placeholder, batch):
        assert (part.count(START), part.count(LOAD)) == (1, 1)
    assert results.count("[0.9, 2.4]") == 1 + 7


def test_f73_two_sessions_share_their_program_until_the_batch_differs(runs):
    _, warm_up, placeholder, batch, results = runs[3]
    assert (warm_up.count(START), warm_up.count(LOAD)) == (1, 1)
    assert LOAD not in placeholder
    assert (batch.count(START), batch.count(LOAD)) == (1, 1)
    assert "[[30, 80]]" in results


def test_f73_executables_are_kept(runs):
    kept = list((runs[2] / "tmp_tutorial").rglob("*traced*.mrx"))
    assert len(kept) == 1


def test_f72_with_dump_flags_text_files_appear(runs):
    (dump,) = (runs[2] / "tmp_tutorial").glob("xla_dump_*")
    texts = [path.read_text() for path in dump.glob("*.before_optimizations.txt")]
    assert [text for text in texts if "multiply" in text and "add" in text]
