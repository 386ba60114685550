"""The programs in millrace-ipu/examples: as modules, and as a user would run them."""

import importlib.util
import pathlib
import subprocess
import sys

from quick_compiler import compiler

DIRECTORY = pathlib.Path(__file__).parents[3] / "millrace-ipu" / "examples"


def load(name):
    """Returns a program as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", DIRECTORY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, directory, *arguments):
    """Runs a program in an empty directory, which must stay empty, and returns its output."""
    environment = {k: v for k, v in compiler.environment().items() if k != "KERAS_BACKEND"}
    result = subprocess.run(
        [sys.executable, str(DIRECTORY / f"{name}.py"), "--small", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert not list(directory.iterdir())
    return result.stdout
