"""What each of two connected processes does in `test_distributed.py`: `... scene [argument]`."""

import atexit
import os
import socket
import sys
import time

import millrace

millrace.distributed.initialize(initialization_timeout=120, heartbeat_timeout=120)

import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from millrace._compat.jax_processes import coordinator_address  # noqa: E402
from millrace.errors import MillraceError  # noqa: E402
from millrace.run.processes.agreement import check_same, process_count, process_index  # noqa: E402
from millrace.run.processes.failure import failure_of_others  # noqa: E402

INDEX = process_index()
DEVICES = jax.devices()
MESH = jax.make_mesh((len(DEVICES),), ("data",))
NUMBERS = np.arange(len(DEVICES), dtype="float32")
add = jax.jit(
    jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=MESH, in_specs=P("data"), out_specs=P())
)


def total():
    """Waits for the other process, which must call it, too."""
    spread = NamedSharding(MESH, P("data"))
    x = jax.make_array_from_callback(NUMBERS.shape, spread, lambda where: NUMBERS[where])
    return float(add(x)[0])


def errors_of(parts, timeout=60):
    try:
        check_same(parts, timeout)
    except MillraceError as error:
        return type(error).__name__ + ": " + str(error)


def comparison():
    same = errors_of({"options": "a", "model": "b"})
    other = errors_of({"options": "a", "weights": f"hash{INDEX}"})
    devices = len(DEVICES), len(jax.local_devices())
    drawn = float(np.random.rand()), float(keras.random.uniform(()))
    print("FOUND", repr((INDEX, process_count(), *devices, total(), *drawn, same, other)))
    late = errors_of({}, 0.5) if INDEX == 0 else None
    print("LATE", repr(late), flush=True)
    total()


def error_in_one():
    if INDEX == 1:
        print("TIME", time.time(), flush=True)
        raise ValueError("no luck")
    total()


def killed(index):
    if int(index) == INDEX:
        print("TIME", time.time(), flush=True)
        os.kill(os.getpid(), 9)
    try:
        total()
    except Exception:
        print("EXPLAINED", failure_of_others(), flush=True)
        raise


def strangers():
    host, _, port = coordinator_address().rpartition(":")
    if INDEX == 1:
        for number in range(1000):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\n\n" * (number % 3))
    assert total() == 1.0
    check_same({"weights": "same"})
    print("done")


def exit_of_one(index, status):
    if int(index) == INDEX:
        sys.exit(int(status))
    total()


def exits_in_turn(late):
    atexit.register(lambda: print("LEFT", time.time(), flush=True))
    if int(late) == INDEX:
        time.sleep(2)
    sys.exit(143)


def sigterm(index):
    if int(index) == INDEX:
        os.kill(os.getpid(), 15)
        time.sleep(1000)
    total()


def late_end(index):
    time.sleep(5 * (int(index) == INDEX))
    print("done")


total()
globals()[sys.argv[1]](*sys.argv[2:])
