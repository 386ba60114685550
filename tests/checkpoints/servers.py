"""Starts the processes that fork: `fault_server.py` and `kill_server.py`."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quick_compiler import compiler

HERE = pathlib.Path(__file__).parent
COUNT, FAIL, SHORT, SHORT_FAIL, KILL_BEFORE, KILL_AFTER, FULL, DEAD = range(8)
ALL, WRITES = (1 << 9) - 1, 1 << 1  # kinds of operations, in the order of faults.c


def built(directory: pathlib.Path) -> pathlib.Path:
    """Compiles faults.c."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no compiler for C on Linux")
    library = directory / "faults.so"
    command = [compiler, "-O1", "-Wall", "-shared", "-fPIC", "-o", library, HERE / "faults.c"]
    subprocess.run([*command, "-ldl"], check=True)
    return library


@contextlib.contextmanager
def server(
    script: str, directory: pathlib.Path, **environment: str
) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Yields a function that sends a job to a process and returns its answer."""
    with (directory / f"{script}.log").open("a+") as log:
        process = subprocess.Popen(
            [sys.executable, HERE / script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**compiler.environment(), **environment, "JAX_NUM_CPU_DEVICES": "4"},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        to, of = process.stdin, process.stdout

        def ask(job: dict[str, Any]) -> Any:
            to.write(json.dumps(job) + "\n")
            to.flush()
            line = of.readline()
            if not line:
                log.seek(0)
                pytest.fail(f"{script} ended:\n{log.read()[-3000:]}")
            return json.loads(line)

        try:
            yield ask
        finally:
            to.close()
            process.wait(60)
            of.close()
