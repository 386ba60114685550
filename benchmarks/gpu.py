"""Everything that needs a GPU, most important first, in at most 20 minutes: `make gpu`.

    python3 benchmarks/gpu.py                    all remaining steps
    python3 benchmarks/gpu.py --dry-run          a list of the steps and their time limits
    python3 benchmarks/gpu.py --platform cpu --small      a rehearsal: do all steps run?

It uses the Python that runs it, whose JAX must support the GPU, and needs no package registry:
missing packages are installed from `--wheels DIR`, made elsewhere by `pip download` for that
Python. It needs, besides JAX, NumPy and SciPy: keras, optree, namex, absl-py, h5py, ml-dtypes,
packaging, rich, click; and pytest for the first step. `--next-wheels DIR` holds a newer Keras,
which is then timed too.

Each step is a process with a time limit. In the output directory, `<date>-<device>.json` records
the status and the output of each step, so that a second call continues where the first one ended,
and `<date>-<device>.txt` has the output of all successful steps. After a failed step, the next one
runs.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "gpu"  # packages that were installed, rehearsals
PROBE = """
import json, jax
device = jax.devices()[0]
print(json.dumps({"platform": device.platform, "kind": device.device_kind, "jax": jax.__version__}))
"""


@dataclass(frozen=True)
class Step:
    """One process. Its name is that of its result."""

    name: str
    what: str
    script: str
    words: tuple[str, ...] = ()
    seconds: int = 120  # at most

    def command(self, small: bool) -> list[str]:
        """Returns the command line, for the root of the repository."""
        if self.script == "pytest":
            words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-m", "gpu"]
            return [sys.executable, *words, *gpu_tests()]
        script = str(pathlib.Path("benchmarks") / self.script)
        return [sys.executable, script, *self.words, *(["--small"] if small else [])]


STEPS = (
    Step("tests", "the tests marked gpu", "pytest", (), 240),
    Step("loop", "the loop against plain Keras", "steps_per_execution.py", ("--rounds", "3"), 300),
    Step(
        *("resident", "data that stays on the device", "onedevice.py"),
        ("--only", "resident", "--rounds", "5"),
        60,
    ),
    Step("optimizer_offload", "time of offloaded state", "optimizer_offload.py", seconds=90),
    Step(
        *("memory_offload", "memory with and without offload (F47, F48)", "devicememory.py"),
        ("--only", "offload", "--rounds", "3"),
        150,
    ),
    Step(
        *("memory_plain", "the memory report against the allocator", "devicememory.py"),
        ("--only", "plain", "--rounds", "3"),
        200,
    ),
    Step(
        *("memory_budget", "budgets of recomputation", "devicememory.py"),
        ("--only", "budget", "--rounds", "3"),
        200,
    ),
    Step(
        *("stages", "two stages on one device", "onedevice.py"),
        ("--only", "stages", "--rounds", "5"),
        120,
    ),
    Step("tensor_statistics", "statistics of tensors", "tensor_statistics.py", ("--rounds", "5")),
    Step("nan_watch", "NaNWatch", "nan_watch.py", ("--rounds", "5"), 90),
    Step(
        *("start_up", "cold, cached and exported start", "start_up.py"),
        ("--only", "resnet50", "--rounds", "2"),
        240,
    ),
)


def gpu_tests() -> list[str]:
    """Returns the files that have tests marked gpu."""
    # Found in their text: collecting all tests would import packages that may be missing.
    return [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if re.search(r"^(pytestmark = |@)pytest\.mark\.gpu", path.read_text(), re.MULTILINE)
    ]


class Session:
    """The steps of one device, and the files with their status and output."""

    def __init__(self, output: pathlib.Path, device: str, environment: dict[str, str], small: bool):
        self.output = output
        self.small = small
        self.done: dict[str, Any] = {}
        self._environment = environment
        earlier = sorted(output.glob(f"[0-9]*-[0-9]*-[0-9]*-{slug(device)}.json"))
        today = dt.date.today().isoformat()
        self.file = earlier[-1] if earlier else output / f"{today}-{slug(device)}.json"
        if earlier:
            self.done = json.loads(self.file.read_text())

    def left(self, steps: Sequence[Step]) -> list[Step]:
        """Returns the steps that have not succeeded yet."""
        return [s for s in steps if self.done.get(s.name, {}).get("status") != "ok"]

    def run(self, steps: Sequence[Step], minutes: float) -> None:
        """Runs the remaining steps, until the time is over."""
        end = time.monotonic() + 60 * minutes
        for step in self.left(steps):
            seconds = min(step.seconds, end - time.monotonic())
            if seconds < min(step.seconds, 30):
                print(f"\n{minutes:g} minutes are over. The same command continues.")
                return
            print(f"\n== {step.name}: {step.what}; at most {seconds:.0f} s", flush=True)
            begin = time.monotonic()
            status, lines = follow(step.command(self.small), self._environment, seconds)
            took = round(time.monotonic() - begin, 1)
            print(f"== {step.name}: {status} after {took:.0f} s", flush=True)
            self.done[step.name] = {"status": status, "seconds": took, "lines": lines}
            self._write()

    def _write(self) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        ended_well = [each["lines"] for each in self.done.values() if each["status"] == "ok"]
        parts = ["\n".join(lines).strip() + "\n" for lines in ended_well]
        texts = {self.file: json.dumps(self.done, indent=1) + "\n"}
        texts[self.file.with_suffix(".txt")] = "\n".join(parts)
        for path, text in texts.items():
            partial = path.with_name(path.name + ".partial")
            partial.write_text(text)
            partial.replace(path)  # complete, even if this process is killed now


def follow(
    command: list[str], environment: dict[str, str], seconds: float
) -> tuple[str, list[str]]:
    """Runs a command and prints its output at once. Returns its status and its lines."""
    over = threading.Event()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a process group, which is killed as a whole
    ) as process:

        def stop() -> None:
            over.set()
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(seconds, stop)
        timer.start()
        lines = []
        try:
            for line in process.stdout or ():
                lines.append(line.rstrip("\n"))
                print(f"   {lines[-1]}", flush=True)
            code = process.wait()
        except BaseException:  # such as Ctrl-C: no process may hold the device after this
            stop()
            raise
        finally:
            timer.cancel()
    if over.is_set():
        return f"stopped at its limit of {seconds:.0f} s", lines
    return ("ok" if code == 0 else f"failed with {code}"), lines


def slug(device: str) -> str:
    """Returns the name of a device as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower().removeprefix("nvidia ")).strip("_")


def install(wheels: str, name: str) -> str:
    """Installs all wheels of a directory into a directory of ours, and returns its path."""
    found = sorted(map(str, pathlib.Path(wheels).glob("*.whl")))
    if not found:
        sys.exit(f"There are no wheels in {wheels}.")
    site = BUILD / name
    words = ["-q", "--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *words, *found], check=True)
    return str(site)


def set_up(options: argparse.Namespace) -> tuple[dict[str, str], list[Step]]:
    """Installs wheels, and returns the environment of the steps, and the steps."""
    paths = [str(ROOT / "src")]
    if options.wheels:
        paths.append(install(options.wheels, "site"))
    steps = list(STEPS)
    if options.next_wheels:
        site = install(options.next_wheels, "site-next")
        python = BUILD / "next-python"
        path = os.pathsep.join([site, *paths[1:]])
        python.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{path}" "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        words = ("--rounds", "3", "--only", "fit", "--next-python", str(python))
        steps.insert(2, Step("peers", "both versions of Keras", "peers.py", words, 300))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        "KERAS_BACKEND": "jax",
        # Several processes share the device, and memory counts only while it is in use.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if options.platform == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
    return environment, [s for s in steps if options.only in s.name]


def probe(environment: dict[str, str], platform: str) -> str | None:
    """Returns the name of the device; without one, prints the reason and returns None."""
    words = [sys.executable, "-c", PROBE]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{sys.executable} has no JAX that works: {done.stderr.strip().splitlines()[-1]}")
        print("No GPU, so nothing to measure. Set PY=... to a Python whose JAX has one.")
        return None
    found = json.loads(done.stdout.splitlines()[-1])
    if platform == "gpu" and found["platform"] == "cpu":
        print(f"No GPU: JAX {found['jax']} of {sys.executable} has only CPUs. Nothing to measure.")
        return None
    words = [sys.executable, "-c", "import millrace"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip().splitlines()[-1])
        sys.exit("Missing packages can come as wheels: --wheels DIR, or make gpu WHEELS=DIR.")
    return found["kind"]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="print the steps only")
    parser.add_argument("--small", action="store_true", help="few steps and rounds per benchmark")
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--only", default="", help="run only steps whose name contains this")
    parser.add_argument(
        "--minutes", type=float, default=20, help="minutes after which no step runs on"
    )
    parser.add_argument("--wheels", help="directory of wheels of missing packages")
    parser.add_argument(
        "--next-wheels", help="directory of wheels of a newer Keras, to time it too"
    )
    parser.add_argument("--output", type=pathlib.Path, help="instead of benchmarks/results")
    parser.add_argument("--again", action="store_true", help="also run completed steps")
    return parser.parse_args(words)


def main() -> int:
    """Runs the remaining steps, and prints a summary."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the current step, too
    if options.dry_run:
        for step in STEPS:
            if options.only in step.name:
                words = " ".join(step.command(options.small)[1:])
                print(f"{step.name:<18} {step.seconds:4} s   {step.what}\n{'':<27}{words}")
        return 0
    environment, steps = set_up(options)
    device = probe(environment, options.platform)
    if device is None:
        return 0
    rehearsal = options.small or options.platform == "cpu"
    output = BUILD / "rehearsal" if rehearsal else ROOT / "benchmarks" / "results"
    session = Session(options.output or output, device, environment, options.small)
    if options.again:
        session.done = {k: v for k, v in session.done.items() if options.only not in k}
    print(f"{device}: {len(session.left(steps))} of {len(steps)} steps remain")
    session.run(steps, options.minutes)
    print(f"\n{device}, in {session.file}:")
    for step in steps:
        found = session.done.get(step.name, {"status": "left", "seconds": 0.0})
        print(f"  {step.name:<18} {found['status']:<32} {found['seconds']:6.0f} s")
    failed = [s for s in steps if session.done.get(s.name, {"status": "ok"})["status"] != "ok"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
