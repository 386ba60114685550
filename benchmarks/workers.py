"""Benchmarks of several processes, which run on command, each pinned to one core if it matters.

    parent    tell("pipeline") ──> worker 0, core 0 ──> seconds
                               └─> worker 1, core 1 ──> seconds

The worker's half (`serve`) imports nothing, so that a peer's process can use it without JAX.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def free_address() -> str:
    """Returns a free address of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def serve(cases: Mapping[str, Callable[[], object]], about: str = "") -> None:
    """Runs cases by name on the parent's command, until it hangs up.

    The parent gets the seconds that a case took, or the number that it returns.
    """
    print(f"ready {about}", flush=True)
    for line in sys.stdin:
        function = cases[line.strip()]
        begin = time.perf_counter()
        value = function()
        seconds = time.perf_counter() - begin
        print(f"result {value if isinstance(value, float) else seconds}", flush=True)


class Workers:
    """Processes that do the same thing at the same time."""

    def __init__(
        self,
        command: Sequence[str],
        cores: Sequence[int | None],
        python: str = sys.executable,
        **variables: str,
    ):
        """Starts `python *command index` on each of the cores, and does not wait for it.

        Args:
            command: the script and its arguments.
            cores: one for each process; None leaves it all cores, and as many threads as it likes.
            python: another one does not find the packages in PYTHONPATH.
            **variables: of the environment.
        """
        self._processes = []
        self.about = ""
        variables = os.environ | variables
        if python != sys.executable:
            variables.pop("PYTHONPATH", None)
        for index, core in enumerate(cores):
            with _pinned(core):
                self._processes.append(
                    subprocess.Popen(
                        [python, *command, str(index)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=None if os.environ.get("SHOW") else subprocess.DEVNULL,
                        text=True,
                        env=variables | (_ONE_THREAD if core is not None else {}),
                    )
                )

    def wait(self) -> "Workers":
        """Waits until all are ready."""
        self.about = self._answers("ready")[0]
        return self

    def tell(self, case: str) -> list[float]:
        """Runs a case in all processes, and returns their seconds."""
        for process in self._processes:
            assert process.stdin is not None  # noqa: S101 - for the type checker
            process.stdin.write(case + "\n")
            process.stdin.flush()
        return [float(answer) for answer in self._answers("result")]

    def stop(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()

    def _answers(self, word: str) -> list[str]:
        answers = []
        for process in self._processes:
            assert process.stdout is not None  # noqa: S101 - for the type checker
            # Libraries print lines, too.
            line = next((line for line in process.stdout if line.startswith(f"{word} ")), None)
            if line is None:
                self.stop()
                raise SystemExit(
                    f"A worker ended before its {word}: {' '.join(map(str, process.args))}\n"  # pyright: ignore
                    "Set SHOW=1 to see its output."
                )
            answers.append(line.partition(" ")[2].strip())
        return answers


def two_and_one(
    script: str, arguments: Sequence[str], case: str, rounds: int
) -> dict[str, list[float]]:
    """Times a case in two processes of one core each and in one process, in turns.

    Args:
        script: runs `worker ROLE *arguments ADDRESS INDEX`, with the role "both" or "one".
        arguments: of the script.
        case: the name that the script serves.
        rounds: number of timed rounds, after one that warms up.

    Returns:
        The seconds of each round, of "two processes" and of "one process".
    """
    cores = sorted(os.sched_getaffinity(0))
    command, more = [os.path.abspath(script), "worker"], [*arguments, free_address()]
    groups = {
        "two processes": Workers([*command, "both", *more], (cores[0], cores[-1])),
        "one process": Workers([*command, "one", *more], cores[:1]),
    }
    times: dict[str, list[float]] = {name: [] for name in groups}
    try:
        for group in groups.values():
            group.wait()
        for turn in range(rounds + 1):
            names = list(groups) if turn % 2 == 0 else list(reversed(groups))
            for name in names:
                seconds = max(groups[name].tell(case))
                if turn:
                    times[name].append(seconds)
    finally:
        for group in groups.values():
            group.stop()
    return times


@contextlib.contextmanager
def _pinned(core: int | None) -> Iterator[None]:
    """Pins this thread: processes started within inherit the core, which JAX reads at its start."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
