"""Puts each mutant into a copy of the source and runs the tests that should notice it.

    python tests/mutants/run.py                         all of them, against `make test`
    python tests/mutants/run.py --area feeds --only 3   some of one area
    python tests/mutants/run.py --slow                  survivors against `make test-slow` as well
    python tests/mutants/run.py --root DIR              tests and source of another checkout

A mutant is killed if a test fails. Prints a line for each: its number, killed or not, the seconds,
and the test that failed; ends with the sums of each area, and with status 1 if one survived.
The source of the checkout stays as it is, so several of these can run side by side.
"""

import argparse
import concurrent.futures
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from table import MUTANTS, TESTS, Mutant

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAST = "not slow and not gpu and not exhaustive and not targets"
SLOW = "slow and not gpu"
LIMIT = 1200  # seconds for the tests of one mutant; a mutant that hangs is killed, too
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Outcome(NamedTuple):
    """What the tests made of a mutant."""

    number: int
    killed_by: str  # the first test that failed; empty for a survivor
    seconds: float


def main() -> int:
    """Runs the mutants that the command line asks for."""
    options = _options()
    chosen = [
        (number, mutant)
        for number, mutant in enumerate(MUTANTS)
        if options.area in (None, mutant.area) and (not options.only or number in options.only)
    ]
    outcomes: list[Outcome] = []
    for outcome in _outcomes(chosen, options):
        mutant = MUTANTS[outcome.number]
        verdict = outcome.killed_by or f"SURVIVED: {mutant.before!r} -> {mutant.after!r}"
        print(
            f"{outcome.number:3} {mutant.area:12} {outcome.seconds:5.0f} s  {verdict}", flush=True
        )
        outcomes.append(outcome)
    killed = Counter(MUTANTS[o.number].area for o in outcomes if o.killed_by)
    for area, total in Counter(mutant.area for _, mutant in chosen).items():
        print(f"{area:12} {killed[area]} of {total} killed")
    print(f"mutants: {killed.total()} of {len(chosen)} killed")
    return 0 if killed.total() == len(chosen) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--area", choices=TESTS, help="mutants of this area alone")
    parser.add_argument("--only", type=int, nargs="*", default=(), help="mutants by number")
    parser.add_argument("--slow", action="store_true", help="run the slow tests as well")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="checkout to test")
    parser.add_argument("--jobs", type=int, default=_cores(), help="mutants at a time")
    return parser.parse_args()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _outcomes(chosen: list[tuple[int, Mutant]], options: argparse.Namespace) -> Iterator[Outcome]:
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as directory,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as threads,
    ):
        copies: queue.SimpleQueue[pathlib.Path] = queue.SimpleQueue()
        for job in range(options.jobs):
            copy = pathlib.Path(directory, str(job))
            shutil.copytree(options.root / "src", copy)
            copies.put(copy)

        def run(number: int, mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return _run(number, mutant, copy, options)
            finally:
                copies.put(copy)

        pending = [threads.submit(run, number, mutant) for number, mutant in chosen]
        for finished in concurrent.futures.as_completed(pending):
            yield finished.result()


def _run(number: int, mutant: Mutant, copy: pathlib.Path, options: argparse.Namespace) -> Outcome:
    path = place_of(mutant, copy)
    original = path.read_text()
    begin = time.perf_counter()
    path.write_text(original.replace(mutant.before, mutant.after))
    try:
        killed_by = ""
        for marks in (FAST, SLOW) if options.slow else (FAST,):
            killed_by = killed_by or _tests(TESTS[mutant.area], marks, copy, options.root)
    finally:
        path.write_text(original)
    return Outcome(number, killed_by, time.perf_counter() - begin)


def place_of(mutant: Mutant, source: pathlib.Path) -> pathlib.Path:
    """Returns the file that a mutant changes.

    Raises:
        LookupError: if its text does not stand in the source exactly once.
    """
    found = [
        (path, path.read_text().count(mutant.before))
        for path in source.rglob("*.py")
        if mutant.before in path.read_text()
    ]
    if len(found) != 1 or found[0][1] != 1:
        raise LookupError(
            f"{mutant.before!r} should stand in the source once, and stands in "
            f"{[str(path.relative_to(source)) for path, _ in found] or 'no file'}. Change the "
            "mutant in tests/mutants/table.py to fit the source."
        )
    return found[0][0]


def _tests(paths: tuple[str, ...], marks: str, source: pathlib.Path, root: pathlib.Path) -> str:
    """Returns the first test that fails on this source, or an empty text."""
    for path in paths:
        if not (root / path).exists():
            raise FileNotFoundError(f"{path} is not there. Change TESTS in tests/mutants/table.py.")
        try:
            done = subprocess.run(
                [*PYTEST, path, "-m", marks],
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(source)},
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{path} (not finished after {LIMIT} s)"
        if done.returncode not in (0, 5):  # 5: no test of these marks
            failed = _FAILED.search(done.stdout)
            return failed[1] if failed else f"{path} (status {done.returncode})"
    return ""


if __name__ == "__main__":
    sys.exit(main())
