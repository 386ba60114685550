"""Edges between real processes. Each test starts two, which import JAX and last a few seconds."""

import pathlib
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from millrace.base.devices import DeviceGroup
from millrace.run.pipelines.runtime.links import Here, Permute, link
from millrace.run.pipelines.runtime.transfer import Edge
from quick_compiler import compiler

pytestmark = pytest.mark.quick

SCRIPT = pathlib.Path(__file__).parent / "edge_scenes.py"
SECONDS = 60


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def run(tmp_path):
    """Runs a scene in two processes, which must both come to its end."""

    def start(scene, transport, devices=1):
        address = f"127.0.0.1:{free_port()}"
        logs = [pathlib.Path(tmp_path, f"{k}.log") for k in range(2)]
        processes = []
        for k, log in enumerate(logs):
            arguments = map(str, [SCRIPT, k, address, devices, transport, scene])
            with log.open("w") as file:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, *arguments],
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env=compiler.environment(),
                    )
                )
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


TRANSPORTS = ["pull", "permute"]


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_values_types_and_order(run, transport):
    run("values_types_and_order", transport)


@pytest.mark.skipif(sys.platform != "linux", reason="sockets are found in /proc")
def test_nobody_waits_for_a_process_that_has_left(run):
    run("left", "pull")


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_neither_side_waits_for_the_other(run, transport):
    # Behind a permute that waits, the device waits, too.
    run("early_and_unhindered" if transport == "pull" else "early", transport)


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_replicas_within_and_between_processes(run, transport):
    run("replicas", transport, devices=2)


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
