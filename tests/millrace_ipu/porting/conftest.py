"""Programs for TensorFlow on the IPU, run as `millrace run` runs them."""

import os
import subprocess
import sys
import textwrap

import pytest

import millrace
import millrace_ipu
from millrace_ipu.ipu.config import reset_system
from millrace_ipu.porting.running.serve import run_script
from millrace_ipu.tensorflow.compat.v1 import enable_v2_behavior


@pytest.fixture(autouse=True)
def no_system():
    """Resets the configured system after each test, and the mode of TensorFlow 1."""
    yield
    reset_system()
    enable_v2_behavior()


@pytest.fixture
def no_modules(tmp_path):
    """Forgets the modules that a program imported from its own directory."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def program(tmp_path, capsys, monkeypatch, no_modules):
    """Returns a function that runs the text of a program in this process.

    On eight virtual devices, which JAX has made before: quick, and enough for what does not depend
    on the start of a process. It returns what the program printed; errors are raised.
    """

    def run(text, *arguments, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(content))
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(text))
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        run_script(str(script), arguments)
        return capsys.readouterr().out

    return run


@pytest.fixture
def import_path():
    """The value of PYTHONPATH that gives another process the packages of this one."""
    return os.pathsep.join(os.path.dirname(p.__path__[0]) for p in (millrace, millrace_ipu))


@pytest.fixture
def process(tmp_path, import_path):
    """Returns a function that runs the text of a program by `millrace run` in a new process.

    It takes two seconds or more: for what depends on the start of a process, such as devices.
    """

    def run(text, *arguments, environment=(), command="run", **files):
        for name, content in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(content))
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(text))
        start = "from millrace.tools.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", start, *command.split(), str(script), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={
                **{k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
                "PYTHONPATH": import_path,
                "PYTHONWARNINGS": "ignore::FutureWarning",  # of keras 3.13
                **dict(environment),
            },
        )

    return run
