"""Changes that recompile a TensorFlow 1 program: placeholders, and two sessions.

    mult * ((a + b) + (a + c))      a = [1, 1], b = [0, 1], c = [1, 5], mult = 10  ->  [[30, 80]]

recompilation.py does the same with `tf.function`; parts, options and results are the same. On an
IPU, the second session would evict the program of the first one from the device and load its own:
an executable switch. Here sessions share programs, so nothing is loaded.

    python recompilation_sessions.py
    python recompilation_sessions.py --no-placeholder   the multiplier is part of the program
    python recompilation_sessions.py --no-samebatch     another batch is another program
"""

import argparse
import logging
import os

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
yes_or_no = argparse.BooleanOptionalAction
parser.add_argument("--caching", action=yes_or_no, default=True, help="keep executables on disk")
parser.add_argument("--placeholder", action=yes_or_no, default=True, help="feed the multiplier")
parser.add_argument("--samebatch", action=yes_or_no, default=True, help="keep the batch size")
parser.add_argument("--directory", default="tmp_tutorial", help="of executables")
parser.add_argument("--small", action="store_true", help="leave no files")
options = parser.parse_args()
CACHING = options.caching and not options.small
PLACEHOLDER, SAMEBATCH = options.placeholder, options.samebatch

# These are read when the packages below are imported.
if "POPLAR_LOG_LEVEL" not in os.environ:
    print("Setting POPLAR_LOG_LEVEL to INFO, to show compilations and loads.")
    os.environ["POPLAR_LOG_LEVEL"] = "INFO"
if CACHING and "TF_POPLAR_FLAGS" not in os.environ:
    print(f"Keeping executables in {options.directory}.")
    os.environ["TF_POPLAR_FLAGS"] = f"--executable_cache_path={options.directory}"
elif not CACHING:
    os.environ["MILLRACE_CACHE_DIR"] = "off"

import numpy as np  # noqa: E402

from millrace_ipu import ipu  # noqa: E402
from millrace_ipu.tensorflow.compat import v1 as tf  # noqa: E402

tf.disable_v2_behavior()
config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()


class Loads(logging.Handler):
    """Counts executables loaded onto the device."""

    number = 0

    def emit(self, record):
        """Counts one."""
        self.number += record.getMessage() == "Loading executable"


loads = Loads()
logging.getLogger("millrace.phases").addHandler(loads)


def graph(mult, a, b, c):
    return mult * ((a + b) + (a + c))


rows = [tf.placeholder(tf.float32, [None, 2], name=name) for name in "abc"]
multiplier = tf.placeholder(tf.float32, [], name="mult")


def build(mult):
    """A placeholder is an argument of the program; otherwise the multiplier is part of it."""
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        if PLACEHOLDER:
            return ipu.ipu_compiler.compile(graph, [multiplier, *rows])
        return ipu.ipu_compiler.compile(lambda a, b, c: graph(mult, a, b, c), rows)


def run(session, fetch, mult, batch):
    values = ([1, 1], [0, 1], [1, 5])
    feed = {key: np.tile(value, (batch, 1)) for key, value in zip(rows, values, strict=True)}
    if PLACEHOLDER:
        feed[multiplier] = mult
    return session.run(fetch, feed)[0]


def part(title, expected, session, mult, batch, times):
    """Runs the graph, and checks the number of programs made."""
    print(f"\n{title}", flush=True)
    before = loads.number
    fetch = build(mult)
    for _ in range(times):
        result = run(session, fetch, mult, batch)
    loaded = loads.number - before
    print(f"  loaded {loaded}, expected to load: {expected}", flush=True)
    if loaded != expected:
        raise SystemExit(f"{title}: {loaded} programs were loaded onto the device, not {expected}.")
    return result


def shown(result):
    return "[" + ", ".join(f"[{', '.join(f'{each:g}' for each in row)}]" for row in result) + "]"


with tf.Session() as session, tf.Session() as another_session:
    first = part(
        "Caching/warm up test: the first of five executions loads one program, and compiles it "
        "unless the cache has it.",
        1,
        session,
        mult=10.0,
        batch=1,
        times=5,
    )
    second = part(
        "Placeholder test: another multiplier, in another session. "
        + ("Nothing is compiled or loaded." if PLACEHOLDER else "It is part of a new program."),
        0 if PLACEHOLDER else 1,
        another_session,
        mult=0.3,
        batch=1,
        times=2,
    )
    third = part(
        "Batch size test: "
        + ("The batch stays 1: nothing is compiled." if SAMEBATCH else "7 rows, a new program."),
        0 if SAMEBATCH else 1,
        another_session,
        mult=0.3,
        batch=1 if SAMEBATCH else 7,
        times=2,
    )

print("\nResults")
print(f"  first, multiplier 10    {shown(first)}")
print(f"  second, multiplier 0.3  {shown(second)}")
print(f"  third, batch of {len(third)}       {shown(third)}")
