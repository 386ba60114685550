"""Tries the files in dist/ as a user gets them: installed, with nothing of the repository in reach.

    python tests/installed_wheels.py python3.11 python3.12

Each Python gets an environment of its own, with the versions of requirements/dev.txt.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
TWINE = "twine==7.0.0"
PROGRAMS = {
    "places.py": """
import importlib.metadata, pathlib, sys
import millrace, millrace_ipu
for package in (millrace, millrace_ipu):
    folder = pathlib.Path(package.__file__).parent
    assert folder.is_relative_to(sys.prefix), folder
    assert (folder / "py.typed").exists()
    name = package.__name__.replace("_", "-")
    assert package.__version__ == importlib.metadata.version(name), name
""",
    "fit.py": """
import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

x = np.ones((64, 8), "float32")
with millrace.Strategy(report_dir="runs").scope():
    model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse", steps_per_execution=4)
model.fit(x, x.sum(axis=1), batch_size=8)
""",
    "ipu.py": """
import tensorflow as tf
from tensorflow.python import ipu

config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()
with ipu.ipu_strategy.IPUStrategy().scope():
    print("sum", float(tf.reduce_sum(tf.constant([1.0, 2.0]))))
""",
    # Without the types of the package, this has no error.
    "typed.py": "import millrace\nplan: int = millrace.Strategy().plan(None, None)\n",
}


def try_on(python: str, folder: pathlib.Path, wheels: list[str], pins: pathlib.Path) -> None:
    """Installs the wheels for one Python, uses what is in them, and removes them."""
    run = Environment(python, folder).run
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
    shutil.copy(ROOT / "examples" / "digits.py", folder)
    core, ipu = wheels
    run("python -m pip install -q -c", pins, f"{core}[demo]", ipu)
    run("python -m pip check")
    run("python places.py")
    print(run("millrace --version", shows="millrace "), end="")
    run("millrace --help", shows="  port ")
    run("python fit.py", shows="loss: ")
    run("millrace report runs")
    (page,) = (folder / "runs").rglob("*.html")
    assert "uPlot" in page.read_text(), "the page of a run has the library that draws it"
    run("millrace run ipu.py", shows="sum 3.0")
    run("millrace port ipu.py")
    run("python digits.py --small")
    checker = pathlib.Path(sys.executable).with_name("basedpyright")
    command = f"{checker} --pythonpath env/bin/python typed.py"
    run(command, shows='"TrainingPlan" is not assignable to "int"', code=1)
    run("python -m pip uninstall -q -y millrace millrace-ipu")
    left = [str(path) for path in (folder / "env").rglob("millrace*")]
    assert not left, f"pip uninstall leaves {left}"


class Environment:
    """A new environment of one Python, in a folder in which its commands run."""

    def __init__(self, python: str, folder: pathlib.Path):
        folder.mkdir()
        self.folder = folder
        path = f"{folder / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        ours = {"PYTHONPATH", "KERAS_BACKEND", "VIRTUAL_ENV"}
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        self.variables = {**kept, "PATH": path}
        self.run(python, "-m venv env")

    def run(self, *words: object, shows: str = "", code: int = 0) -> str:
        """Runs a command, and returns what it prints; ends all if that is not as expected."""
        command = " ".join(map(str, words))
        done = subprocess.run(
            ["sh", "-c", f"{command} 2>&1"],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode != code or shows not in done.stdout:
            sys.exit(f"FAILED, with {done.returncode}: {command}\n{done.stdout}")
        return done.stdout


def main() -> None:
    """Tries the files on each Python of the command line."""
    files = sorted(map(str, (ROOT / "dist").glob("millrace*")))
    assert len(files) == 4, f"make wheels puts four files into dist/; it has {files}"
    with tempfile.TemporaryDirectory() as place:
        pins = pathlib.Path(place, "pins.txt")
        # Without their hashes, which pip would then ask for with the wheels, too.
        lines = (ROOT / "requirements" / "dev.txt").read_text()
        pins.write_text("\n".join(re.findall(r"^\w\S*==[^\\\n]+", lines, re.MULTILINE)))
        twine = Environment(sys.argv[1], pathlib.Path(place, "twine"))
        twine.run("python -m pip install -q", TWINE)
        print(twine.run("twine check --strict", *files), end="")
        for python in sys.argv[1:]:
            begin = time.monotonic()
            try_on(python, pathlib.Path(place, str(begin)), files[0::2], pins)
            print(f"{python}: ok, in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
