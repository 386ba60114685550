"""Plain Keras of another version, in a separate process that fits on command.

    parent      tiny 512 ->     8 ->            1 ->
    process     <- keras 3.16   <- done         <- done

The parent writes a number of steps per execution and waits for the answering line, so the fits of
both versions alternate in the same rounds. This file, run by another Python, is the process: it
needs Keras and JAX there, but not millrace.
"""

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import jax
import keras

import models

HERE = pathlib.Path(__file__).resolve()


class NextKeras:
    """One model in the other process."""

    def __init__(self, python: str, case: str, rows: int):
        # The other environment must not find this one's packages.
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        try:
            self._process = subprocess.Popen(
                [python, str(HERE), case, str(rows)],
                env={**clean, "KERAS_BACKEND": "jax"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        except OSError as error:
            sys.exit(f"--next-python {python} cannot be run: {error.strerror}.")
        self.versions = self._answer()

    def fit(self, steps_per_execution: int) -> Callable[[], None]:
        """Returns a function that trains one epoch there, and waits for it."""

        def run() -> None:
            print(steps_per_execution, file=self._process.stdin, flush=True)
            self._answer()

        return run

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def _answer(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            sys.exit(
                f"The process of --next-python ended with {self._process.wait()}. It needs a "
                "Python in which Keras and JAX are installed."
            )
        return line.strip()


def main() -> None:
    """Fits one epoch for each number that is read."""
    name, rows = sys.argv[1:]
    case = replace(next(c for c in models.CASES if c.name == name), rows=int(rows))
    x, y = case.data()
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"python {python}, jax {jax.__version__}, keras {keras.__version__}", flush=True)
    fitted = {}
    for line in sys.stdin:
        steps = int(line)
        if steps not in fitted:
            fitted[steps] = case.model(steps_per_execution=steps)
        fitted[steps].fit(x, y, batch_size=case.batch, epochs=1, verbose=0)
        print("done", flush=True)


if __name__ == "__main__":
    main()
