"""Edges between real processes. Each test starts two, which import JAX and last a few seconds."""

import pathlib
import socket
import subprocess
import sys
import textwrap
import time

import jax
import numpy as np
import pytest

from millrace.base.devices import DeviceGroup
from millrace.run.pipelines.runtime.links import Here, Permute, link
from millrace.run.pipelines.runtime.transfer import Edge

pytestmark = pytest.mark.quick

SECONDS = 60
START = """
import sys
process, address, devices, transport = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", devices)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, 2, process)
from millrace._compat.jax_processes import key_value_store
from millrace.base.devices import DeviceGroup, put_parts
from millrace.run.pipelines.runtime.transfer import Edge

d = jax.devices()
store = key_value_store()
def meet(name):
    store.wait_at_barrier(name, 60_000)
def tell(name):
    store.key_value_set(name, "1")
def hear(name):
    store.blocking_key_value_get(name, 60_000)
def edge(source, target):
    return Edge(DeviceGroup(tuple(source)), DeviceGroup(tuple(target)), transport)
def values(seed, *lead):
    random = np.random.default_rng(seed)
    shapes = [(64, 32), (7,), (), (3, 5), (2, 3), (0, 4), (9,), ()]
    types = "float32 bfloat16 int32 bool float16 float32 uint8 bool".split()
    return [
        np.asarray(random.integers(0, 2 if t == "bool" else 100, (*lead, *s))).astype(jnp.dtype(t))
        for s, t in zip(shapes, types)
    ]
def specs(arrays):
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
def moved_by(edge, arrays, host):
    return edge.move(arrays, specs(host))
def same(arrays, expected):
    for a, b in zip(arrays, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), (a, b)
        for shard in a.addressable_shards:
            assert np.array_equal(np.asarray(shard.data), b[shard.index]), (a, b)
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def run(tmp_path):
    """Runs code in two processes, which must both come to its end."""

    def start(code, transport, devices=1):
        script = pathlib.Path(tmp_path, "script.py")
        script.write_text(
            START + textwrap.dedent(code) + "\nmeet('end')\nprint('done', flush=True)\n"
        )
        address = f"127.0.0.1:{free_port()}"
        logs = [pathlib.Path(tmp_path, f"{k}.log") for k in range(2)]
        processes = []
        for k, log in enumerate(logs):
            command = [sys.executable, str(script), str(k), address, str(devices), transport]
            with log.open("w") as file:
                processes.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT))
        try:
            deadline = time.monotonic() + SECONDS
            while any(process.poll() is None for process in processes):
                if time.monotonic() > deadline or any(process.poll() for process in processes):
                    break
                time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        said = [log.read_text() for log in logs]
        assert all("done" in text for text in said), "\n".join(said)

    return start


ONE_DEVICE = """
there, back = edge([d[0]], [d[1]]), edge([d[1]], [d[0]])

# Every type and shape, exact and in order, in both directions.
for seed in range(4):
    host = values(seed)
    for way, sender in ((there, 0), (back, 1)):
        arrays = [jnp.asarray(a) for a in host] if process == sender else None
        moved = moved_by(way, arrays, host)
        assert (moved is None) == (process == sender)
        if moved is not None:
            same(moved, host)
            assert all(a.devices() == {d[1 - sender]} for a in moved)

# Arrays of no size alone, and none at all, are no message; the next one is not mixed up.
host = [np.zeros((0, 3), "int32")]
moved = moved_by(there, [jnp.asarray(host[0])] if process == 0 else None, host)
if process == 1:
    same(moved, host)
# Another edge goes on where this one stopped.
assert there.move([] if process == 0 else None, []) == (None if process == 0 else [])
again = edge([d[0]], [d[1]])
host = values(99)
moved = moved_by(again, [jnp.asarray(a) for a in host] if process == 0 else None, host)
if process == 1:
    same(moved, host)

# What has arrived goes into a program that was compiled ahead of time.
x = np.ones((4, 4), "float32")
twice = jax.jit(lambda x: 2 * x).lower(jax.device_put(x, d[process])).compile()
moved = moved_by(there, [jax.device_put(x, d[0])] if process == 0 else None, [x])
if process == 1:
    assert np.array_equal(np.asarray(twice(moved[0])), 2 * x)
"""

EARLY = """
there, back = edge([d[0]], [d[1]]), edge([d[1]], [d[0]])
x = np.arange(6, dtype="float32")
there.move([jnp.asarray(x)] if process == 0 else None, specs([x]))  # compiled, where it is

# The receiver asks before the sender is there. Its call returns, or the sender waits for ever.
if process == 1:
    moved = there.move(None, specs([x]))
    total = jax.jit(jnp.sum)(moved[0])  # may be dispatched, too
    tell("receiver has called")
else:
    hear("receiver has called")
    there.move([jnp.asarray(x)], specs([x]))
if process == 1:
    assert float(total) == 15

# The sender gives before the receiver is there.
if process == 0:
    there.move([jnp.asarray(x)], specs([x]))
    tell("sender has called")
else:
    hear("sender has called")
    same(there.move(None, specs([x])), [x])

# What is sent need not be computed yet: it waits here for a value that the receiver sends.
if process == 0:
    y = back.move(None, specs([x]))[0]
    there.move([jax.jit(lambda y: y + 1)(y)], specs([x]))
    tell("sum is under way")
else:
    hear("sum is under way")
    back.move([jnp.asarray(x)], specs([x]))
    same(there.move(None, specs([x])), [x + 1])
"""

UNHINDERED = """
# Programs that do not need it run while a transfer waits for the other process.
square = jax.jit(lambda x: x @ x).lower(jnp.ones((300, 300))).compile()
if process == 1:
    moved = there.move(None, specs([x]))
    assert square(jnp.ones((300, 300)))[0, 0] == 300
    tell("computed")
    same(moved, [x])
else:
    hear("computed")
    there.move([jnp.asarray(x)], specs([x]))

# A sender that is far ahead keeps what it sent, though nothing else does.
for seed in range(50 if process == 0 else 0):
    there.move([jnp.full((100, 100), seed, "float32")], specs([np.ones((100, 100), "float32")]))
meet("all are sent")
for seed in range(50 if process == 1 else 0):
    expected = np.full((100, 100), seed, "float32")
    same(there.move(None, specs([expected])), [expected])
"""

REPLICAS = """
def given(host, group, mine):
    return [put_parts(a[np.asarray(group.local)], group, 0) for a in host] if mine else None
a, b, c, e = d  # a and b belong to process 0, c and e to process 1
for source, target in [
    ((a, b), (c, e)),  # both replicas cross
    ((c, a), (b, e)),  # both cross, in opposite directions
    ((a, c), (b, e)),  # each stays in its process
    ((a, b), (b, e)),  # one stays, and one crosses
    ((a, c), (a, b)),  # one stays on its device
    ((a, b), (a, b)),
]:
    way, group, end = edge(source, target), DeviceGroup(source), DeviceGroup(target)
    for seed in range(2):
        host = values(seed, 2)
        moved = moved_by(way, given(host, group, group.local), host)
        assert (moved is not None) == bool(end.local), (source, target, moved)
        if moved is not None:
            same(moved, host)
            assert all(one.sharding == end.split(0) for one in moved)
            assert all(one.committed for one in moved)
    # As arguments of a program that was compiled ahead of time.
    if end.is_local:
        spec = jax.ShapeDtypeStruct(host[0].shape, host[0].dtype, sharding=end.split(0))
        double = jax.jit(lambda x: x * 2).lower(spec).compile()
        same([double(moved[0])], [host[0] * 2])
"""


TRANSPORTS = ["pull", "permute"]


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_values_types_and_order(run, transport):
    run(ONE_DEVICE, transport)


LEFT = """
from millrace.errors import ProcessError
from millrace.run.pipelines.runtime.links import leave
from millrace.run.processes.agreement import texts_of_all
there, back = edge([d[0]], [d[1]]), edge([d[1]], [d[0]])
square = jax.jit(lambda x: x @ x)
x = np.ones((2000, 2000), "float32")
texts_of_all("begin", 60)
for attempt in range(2):
    if process == 0:
        # Some messages are on their way, others are never sent; and it waits for some itself.
        for _ in range(3):
            there.move([jnp.asarray(x)], specs([x]))
        late = square(back.move(None, specs([x]))[0])
        hear(f"waits {attempt}")
        try:
            leave(ValueError("no luck"))
        except ProcessError as error:
            raise AssertionError("nobody has left before") from error
        tell(f"left {attempt}")
        try:
            late.block_until_ready()
        except jax.errors.JaxRuntimeError:
            pass
        else:
            raise AssertionError("it was never sent")
    else:
        for _ in range(2):
            same(there.move(None, specs([x])), [x])
        for _ in range(2):
            late = square(there.move(None, specs([x]))[0])
        tell(f"waits {attempt}")
        try:
            late.block_until_ready()
            raise AssertionError("it was never sent")
        except jax.errors.JaxRuntimeError as error:
            try:
                leave(error)
                raise AssertionError("process 0 has left before")
            except ProcessError as error:
                text = "Process 0 has left an update of the pipeline: ValueError: no luck"
                assert text in str(error), error
    # Messages of before are not mixed up with those of now, with a comparison between or without.
    if attempt:
        texts_of_all("again", 60)
    host = values(attempt)
    moved = moved_by(there, [jnp.asarray(a) for a in host] if process == 0 else None, host)
    if process == 1:
        same(moved, host)
    moved = moved_by(back, [jnp.asarray(a) for a in host] if process == 1 else None, host)
    if process == 0:
        same(moved, host)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sockets are found in /proc")
def test_nobody_waits_for_a_process_that_has_left(run):
    run(LEFT, "pull")


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_neither_side_waits_for_the_other(run, transport):
    # Behind a permute that waits, the device waits, too.
    run(EARLY + (UNHINDERED if transport == "pull" else ""), transport)


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_replicas_within_and_between_processes(run, transport):
    run(REPLICAS, transport, devices=2)


def test_within_one_process():
    devices = jax.devices()
    x = np.arange(4, dtype="float32")
    spec = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
    one, other = DeviceGroup((devices[0],)), DeviceGroup((devices[1],))
    given = jax.device_put(x, devices[0])
    (moved,) = Edge(one, other).move([given], spec) or []
    assert moved.devices() == {devices[1]}
    assert np.array_equal(moved, x)
    (same,) = Edge(one, one).move([given], spec) or []
    assert same is given


def test_several_replicas_within_one_process():
    devices = jax.devices()
    groups = [DeviceGroup(tuple(devices[k : k + 2])) for k in (0, 2)]
    x = np.arange(6, dtype="float32").reshape(2, 3)
    given = jax.device_put(x, groups[0].split(0))
    (moved,) = Edge(*groups).move([given], [jax.ShapeDtypeStruct(x.shape, x.dtype)]) or []
    assert moved.sharding == groups[1].split(0)
    assert np.array_equal(moved, x)


def test_a_process_that_is_at_neither_end(monkeypatch):
    devices = jax.devices()
    edge = Edge(DeviceGroup((devices[0],)), DeviceGroup((devices[1],)))
    edge._links = []
    assert edge.move(None, [jax.ShapeDtypeStruct((), "float32")]) is None


def test_links_of_one_process_copy():
    first, second = jax.devices()[:2]
    assert isinstance(link(first, second), Here)
    assert isinstance(link(first, second, "permute"), Here)
    assert not isinstance(link(first, second), Permute)
