"""What each of two processes does in `test_edge.py`.

`edge_scenes.py process address devices transport scene`; prints "done" if both come to its end.
"""

import sys

import jax

PROCESS, ADDRESS, TRANSPORT = int(sys.argv[1]), sys.argv[2], sys.argv[4]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(ADDRESS, 2, PROCESS)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from millrace._compat.jax_processes import key_value_store  # noqa: E402
from millrace.base.devices import DeviceGroup, put_parts  # noqa: E402
from millrace.errors import ProcessError  # noqa: E402
from millrace.run.pipelines.runtime.links import leave  # noqa: E402
from millrace.run.pipelines.runtime.transfer import Edge  # noqa: E402
from millrace.run.processes.agreement import texts_of_all  # noqa: E402

DEVICES = jax.devices()
STORE = key_value_store()


def meet(name):
    STORE.wait_at_barrier(name, 60_000)


def tell(name):
    STORE.key_value_set(name, "1")


def hear(name):
    STORE.blocking_key_value_get(name, 60_000)


def edge(source, target):
    return Edge(DeviceGroup(tuple(source)), DeviceGroup(tuple(target)), TRANSPORT)


def there_and_back():
    """Edges from the first device of process 0 to that of process 1, and back."""
    return edge([DEVICES[0]], [DEVICES[1]]), edge([DEVICES[1]], [DEVICES[0]])


def values(seed, *lead):
    random = np.random.default_rng(seed)
    shapes = [(64, 32), (7,), (), (3, 5), (2, 3), (0, 4), (9,), ()]
    types = ["float32", "bfloat16", "int32", "bool", "float16", "float32", "uint8", "bool"]
    return [
        np.asarray(random.integers(0, 2 if t == "bool" else 100, (*lead, *s))).astype(jnp.dtype(t))
        for s, t in zip(shapes, types, strict=True)
    ]


def specs(arrays):
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]


def sent(way, host, sender):
    """Returns what has arrived of arrays that one process sends; None in that process."""
    arrays = [jnp.asarray(a) for a in host] if sender == PROCESS else None
    moved = way.move(arrays, specs(host))
    assert (moved is None) == (sender == PROCESS)
    return moved


def received(way, host):
    return way.move(None, specs(host))


def assert_same(arrays, expected):
    for a, b in zip(arrays, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), (a, b)
        for shard in a.addressable_shards:
            assert np.array_equal(np.asarray(shard.data), b[shard.index]), (a, b)


def assert_arrives(way, host, sender):
    moved = sent(way, host, sender)
    if moved is not None:
        assert_same(moved, host)
        assert all(a.devices() == {DEVICES[1 - sender]} for a in moved)


def values_types_and_order():
    there, back = there_and_back()
    # Every type and shape, exact and in order, in both directions.
    for seed in range(4):
        for way, sender in ((there, 0), (back, 1)):
            assert_arrives(way, values(seed), sender)
    # Arrays of no size alone, and none at all, are no message; the next one is not mixed up.
    assert_arrives(there, [np.zeros((0, 3), "int32")], 0)
    # Another edge continues where this one stopped.
    assert there.move([] if PROCESS == 0 else None, []) == (None if PROCESS == 0 else [])
    assert_arrives(edge([DEVICES[0]], [DEVICES[1]]), values(99), 0)
    # What has arrived goes into a program that was compiled ahead of time.
    x = np.ones((4, 4), "float32")
    twice = jax.jit(lambda x: 2 * x).lower(jax.device_put(x, DEVICES[PROCESS])).compile()
    moved = sent(there, [x], 0)
    if moved is not None:
        assert np.array_equal(np.asarray(twice(moved[0])), 2 * x)


def early():
    """Returns the edge, for more."""
    there, back = there_and_back()
    x = np.arange(6, dtype="float32")
    sent(there, [x], 0)  # compiled, where it is

    # The receiver asks before the sender is there. Its call returns, or the sender waits for ever.
    if PROCESS == 1:
        moved = received(there, [x])
        total = jax.jit(jnp.sum)(moved[0])  # may be dispatched, too
        tell("receiver has called")
        assert float(total) == 15
    else:
        hear("receiver has called")
        sent(there, [x], 0)

    # The sender gives before the receiver is there.
    if PROCESS == 0:
        sent(there, [x], 0)
        tell("sender has called")
    else:
        hear("sender has called")
        assert_same(received(there, [x]), [x])

    # What is sent need not be computed yet: it waits here for a value that the receiver sends.
    if PROCESS == 0:
        y = received(back, [x])[0]
        there.move([jax.jit(lambda y: y + 1)(y)], specs([x]))
        tell("sum is under way")
    else:
        hear("sum is under way")
        sent(back, [x], 1)
        assert_same(received(there, [x]), [x + 1])
    return there


def early_and_unhindered():
    there = early()
    x = np.arange(6, dtype="float32")
    # Programs that do not need it run while a transfer waits for the other process.
    square = jax.jit(lambda x: x @ x).lower(jnp.ones((300, 300))).compile()
    if PROCESS == 1:
        moved = received(there, [x])
        assert square(jnp.ones((300, 300)))[0, 0] == 300
        tell("computed")
        assert_same(moved, [x])
    else:
        hear("computed")
        sent(there, [x], 0)

    # A sender that is far ahead keeps what it sent, though nothing else does.
    for seed in range(50 if PROCESS == 0 else 0):
        sent(there, [np.full((100, 100), seed, "float32")], 0)
    meet("all are sent")
    for seed in range(50 if PROCESS == 1 else 0):
        expected = np.full((100, 100), seed, "float32")
        assert_same(received(there, [expected]), [expected])


def replicas():
    a, b, c, e = DEVICES  # a and b belong to process 0, c and e to process 1
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
            host, local = values(seed, 2), np.asarray(group.local)
            given = [put_parts(a[local], group, 0) for a in host] if group.local else None
            moved = way.move(given, specs(host))
            assert (moved is not None) == bool(end.local), (source, target, moved)
            if moved is not None:
                assert_same(moved, host)
                assert all(one.sharding == end.split(0) for one in moved)
                assert all(one.committed for one in moved)
        # As arguments of a program that was compiled ahead of time.
        if end.is_local:
            spec = jax.ShapeDtypeStruct(host[0].shape, host[0].dtype, sharding=end.split(0))
            double = jax.jit(lambda x: x * 2).lower(spec).compile()
            assert_same([double(moved[0])], [host[0] * 2])


def leaves(there, back, x, attempt):
    """Process 0: some messages are on their way, others are never sent; it waits for some, too."""
    square = jax.jit(lambda x: x @ x)
    for _ in range(3):
        sent(there, [x], 0)
    late = square(received(back, [x])[0])
    hear(f"waits {attempt}")
    leave(ValueError("no luck"))  # nobody has left before
    tell(f"left {attempt}")
    with pytest.raises(jax.errors.JaxRuntimeError):
        late.block_until_ready()


def is_left(there, x, attempt):
    """Process 1 waits for a message that is never sent."""
    square = jax.jit(lambda x: x @ x)
    for _ in range(2):
        assert_same(received(there, [x]), [x])
    for _ in range(2):
        late = square(received(there, [x])[0])
    tell(f"waits {attempt}")
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        late.block_until_ready()
    text = "Process 0 has left an update of the pipeline: ValueError: no luck"
    with pytest.raises(ProcessError, match=text):
        leave(caught.value)


def left():
    there, back = there_and_back()
    x = np.ones((2000, 2000), "float32")
    texts_of_all("begin", 60)
    for attempt in range(2):
        if PROCESS == 0:
            leaves(there, back, x, attempt)
        else:
            is_left(there, x, attempt)
        # No message of before is taken for one of now, with a comparison between or without.
        if attempt:
            texts_of_all("again", 60)
        assert_arrives(there, values(attempt), 0)
        assert_arrives(back, values(attempt), 1)


globals()[sys.argv[5]]()
meet("end")
print("done", flush=True)
