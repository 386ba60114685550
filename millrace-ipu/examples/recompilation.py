"""Changes that recompile a program, and changes that do not.

    mult * ((a + b) + (a + c))      a = [1, 1], b = [0, 1], c = [1, 5], mult = 10  ->  [[30, 80]]

Each part prints its expectation, and fails if a different number of programs was compiled. Watch
the lines of POPLAR_LOG_LEVEL=INFO: `Starting phase: graphConstruction` is a compilation, and
`Loading executable` is the placement of an executable on the device.

    python recompilation.py                    only the first program is compiled
    python recompilation.py                    ... and this one is in the cache now
    python recompilation.py --no-placeholder   the multiplier is part of the program
    python recompilation.py --no-samebatch     another batch is another program
"""

import argparse
import os
import uuid

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
yes_or_no = argparse.BooleanOptionalAction
parser.add_argument("--caching", action=yes_or_no, default=True, help="keep executables on disk")
parser.add_argument("--placeholder", action=yes_or_no, default=True, help="feed the multiplier")
parser.add_argument("--samebatch", action=yes_or_no, default=True, help="keep the batch size")
parser.add_argument(
    "--directory", default="tmp_tutorial", help="directory for executables and XLA's dumps"
)
parser.add_argument("--small", action="store_true", help="leave no files")
options = parser.parse_args()
CACHING = options.caching and not options.small
PLACEHOLDER, SAMEBATCH = options.placeholder, options.samebatch

# All of these are read when the packages below are imported.
if "POPLAR_LOG_LEVEL" not in os.environ:
    print("Setting POPLAR_LOG_LEVEL to INFO, to show compilations and loads.")
    os.environ["POPLAR_LOG_LEVEL"] = "INFO"
if CACHING and "TF_POPLAR_FLAGS" not in os.environ:
    print(f"Keeping executables in {options.directory}.")
    os.environ["TF_POPLAR_FLAGS"] = f"--executable_cache_path={options.directory}"
elif not CACHING:
    os.environ["MILLRACE_CACHE_DIR"] = "off"
if not options.small and "XLA_FLAGS" not in os.environ:
    dump = os.path.join(options.directory, f"xla_dump_{uuid.uuid4().hex[:8]}")
    print(f"XLA writes its dumps to {dump}: compare the largest files of two runs.")
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"

import numpy as np  # noqa: E402

from millrace_ipu import ipu  # noqa: E402
from millrace_ipu import tensorflow as tf  # noqa: E402

config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()
strategy = ipu.ipu_strategy.IPUStrategy()


@tf.function(experimental_compile=True)
def graph(mult, a, b, c):
    return mult * ((a + b) + (a + c))


def multiplier(value):
    """A tensor is an argument of the program; a number becomes part of the program."""
    return tf.constant(value, tf.float32) if PLACEHOLDER else value


def run(mult, batch):
    rows = [[1, 1], [0, 1], [1, 5]]
    a, b, c = (tf.constant(np.tile(np.float32(row), (batch, 1))) for row in rows)
    return np.asarray(strategy.run(graph, args=[multiplier(mult), a, b, c]))


def part(title, expected, mult, batch, times):
    """Runs the graph, and checks the number of programs made."""
    print(f"\n{title}", flush=True)
    before = strategy.statistics()
    for _ in range(times):
        result = run(mult, batch)
    after = strategy.statistics()
    made = after.compilations - before.compilations
    loaded = made + after.cache_hits - before.cache_hits
    print(f"  compiled {made}, loaded {loaded}, expected to load: {expected}", flush=True)
    if loaded != expected:
        raise SystemExit(f"{title}: {loaded} programs were loaded onto the device, not {expected}.")
    return result


with strategy.scope():
    first = part(
        "Caching/warm up test: the first of five executions loads one program, and compiles it "
        "unless the cache has it.",
        1,
        mult=10.0,
        batch=1,
        times=5,
    )
    second = part(
        "Placeholder test: another multiplier. "
        + ("Nothing is compiled or loaded." if PLACEHOLDER else "It is part of a new program."),
        0 if PLACEHOLDER else 1,
        mult=0.3,
        batch=1,
        times=2,
    )
    third = part(
        "Batch size test: "
        + ("The batch stays 1: nothing is compiled." if SAMEBATCH else "7 rows, a new program."),
        0 if SAMEBATCH else 1,
        mult=0.3,
        batch=1 if SAMEBATCH else 7,
        times=2,
    )


def shown(result):
    return "[" + ", ".join(f"[{', '.join(f'{each:g}' for each in row)}]" for row in result) + "]"


print("\nResults")
print(f"  first, multiplier 10    {shown(first)}")
print(f"  second, multiplier 0.3  {shown(second)}")
print(f"  third, batch of {len(third)}       {shown(third)}")
