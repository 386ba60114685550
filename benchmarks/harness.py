"""Shared parts of all benchmarks: paired rounds, medians, the header and the last line."""

import argparse
import contextlib
import datetime as dt
import io
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any

import jax
import keras

# Before any strategy exists: benchmarks compile without a cache, unless they set one.
os.environ.setdefault("MILLRACE_CACHE_DIR", "off")


def arguments(description: str, rounds: int = 7, **more: str) -> argparse.Namespace:
    """Reads `--small` (seconds instead of minutes: does it still run?) and `--rounds`.

    Args:
        description: the benchmark's docstring.
        rounds: paired repeats unless the user says otherwise.
        **more: options of one benchmark, which take a string, with their help.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="few steps and rounds, as in CI")
    parser.add_argument("--rounds", type=int, default=rounds, help="paired repeats")
    parser.add_argument("--only", default="", help="run only cases whose name contains this")
    for name, text in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", help=text)
    options = parser.parse_args()
    if options.small:
        options.rounds = 2
        # A few steps do not repay the seconds that optimizing takes. Child processes inherit them.
        flags = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
        if jax.__version_info__ < (0, 12):  # which ends at a flag that it does not know
            flags.append("--xla_cpu_use_fusion_emitters=false")
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip()
    return options


def header(title: str) -> None:
    """Prints machine, versions and date."""
    device = jax.devices()[0]
    cores = len(os.sched_getaffinity(0))
    print(f"# {title}")
    limit = (device.memory_stats() or {}).get("bytes_limit")
    memory = f" of {limit / 2**30:.0f} GiB" if limit else ""
    print(f"machine   {_processor()}, {cores} cores; device {device.device_kind}{memory}")
    print(
        f"versions  python {platform.python_version()}, jax {jax.__version__}, "
        f"keras {keras.__version__}"
    )
    print(f"date      {dt.date.today().isoformat()}\n")


def seconds(function: Callable[[], object]) -> float:
    """Returns the seconds that one call takes, with the arrays that it returns."""
    begin = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - begin


def paired(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Times every case once per round, in alternation, so that a drifting machine affects all.

    Each case is called once beforehand, to compile.
    """
    for function in cases.values():
        function()
    return alternate({name: partial(seconds, cases[name]) for name in cases}, rounds)


def alternate(cases: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Calls every case once per round, in alternation, and returns the seconds that they return."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            times[name].append(cases[name]())
    return times


def side_by_side(measure: Callable[[str], object], names: Iterable[str]) -> Iterator[Any]:
    """Measures cases, each in a process of its own on one core, and yields their results.

    What a case prints is printed when it is done.
    """
    cores = sorted(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    free = context.Manager().Queue()
    for core in cores:
        free.put(core)
    with ProcessPoolExecutor(len(cores), context, max_tasks_per_child=1) as pool:
        futures = [pool.submit(_on_a_core, free, measure, name) for name in names]
        for future in as_completed(futures):
            text, result = future.result()
            print(text, end="", flush=True)
            yield result


def _on_a_core(free: Any, measure: Callable[[str], object], name: str) -> tuple[str, object]:
    """Returns what a case prints, and its result. `free` holds the cores without a case."""
    core = free.get()
    try:
        os.sched_setaffinity(0, {core})  # JAX starts its threads later, with the first array
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            result = measure(name)
    finally:
        free.put(core)
    return text.getvalue(), result


def row(name: str, times: list[float], steps: int) -> None:
    """Prints median and spread in microseconds per step."""
    micro = sorted(t / steps * 1e6 for t in times)
    print(
        f"  {name:<34} {statistics.median(micro):10.1f} us/step"
        f"   ({micro[0]:.1f}-{micro[-1]:.1f}, n={len(micro)})"
    )


def time_per_step(name: str, times: list[float], steps: int) -> str:
    """Returns a line with the median and the spread in microseconds per step."""
    micro = sorted(t / steps * 1e6 for t in times)
    middle, spread = statistics.median(micro), f"{micro[0]:.1f}-{micro[-1]:.1f}, n={len(micro)}"
    return f"{name} = {middle:.1f} us ({spread})"


def ratio(name: str, over: list[float], under: list[float]) -> tuple[float, str]:
    """Returns the median of the ratios round by round, and a line with the spread."""
    ratios = sorted(a / b for a, b in zip(over, under, strict=True))
    middle = statistics.median(ratios)
    return middle, f"{name} = {middle:.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f}, n={len(ratios)})"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
