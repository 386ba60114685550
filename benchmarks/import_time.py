"""Time that `import millrace` adds to a program that uses Keras.

Claim: it adds at most 0.3 s to `import keras`. Every import is the first of a fresh process, with
the JAX backend; start-up of the interpreter is not counted. Peer: `import keras` alone.

    keras           import keras
    both            import millrace, which imports Keras itself
    millrace after  import keras (not timed), then import millrace
"""

import os
import statistics
import subprocess
import sys

import millrace  # isort: skip  # noqa: F401 - sets the JAX backend that the header names
import harness

CLAIM = 0.3
TIMED = """
import time
{before}
begin = time.perf_counter()
import {module}
print(time.perf_counter() - begin)
"""
IMPORTS = {
    "keras": TIMED.format(before="", module="keras"),
    "both": TIMED.format(before="", module="millrace"),
    "millrace after keras": TIMED.format(before="import keras", module="millrace"),
}


def imported(program: str) -> float:
    """Returns the seconds that the import in `program` takes in a fresh process."""
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Runs all imports in turn and prints what millrace adds last."""
    options = harness.arguments(__doc__, rounds=11)
    harness.header("Import: seconds in a fresh process")
    for program in IMPORTS.values():
        imported(program)  # reads the files from disk, and compiles them to bytecode, once
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for turn in range(options.rounds):
        for name in IMPORTS if turn % 2 == 0 else reversed(IMPORTS):
            times[name].append(imported(IMPORTS[name]))
    for name, values in times.items():
        print(f"  {name:<22} {summary(sorted(values))}")
    added = sorted(b - k for b, k in zip(times["both"], times["keras"], strict=True))
    print()
    print(harness.ratio("import millrace / import keras", times["both"], times["keras"])[1])
    print(f"import millrace adds {summary(added)} to import keras   claim <= {CLAIM} s")


def summary(values: list[float]) -> str:
    """Writes median and spread of sorted seconds."""
    middle = statistics.median(values)
    return f"{middle:.3f} s ({values[0]:.3f}-{values[-1]:.3f}, n={len(values)})"


if __name__ == "__main__":
    main()
