"""Ray Train, in the shape of its public functions; tests/test_clusters.py runs the real one."""

import socket
import sys
import threading
import types

import pytest

from millrace.errors import ProcessError
from millrace.run.processes.ray_workers import RayWorker, when_this_thread_ends


class Context:
    def __init__(self, rank, count):
        self.get_world_rank, self.get_world_size = (lambda: rank), (lambda: count)


@pytest.fixture
def ray(monkeypatch):
    """Puts modules of Ray in; returns a function that chooses what ray.train answers."""

    def put(get_context, broadcast=None):
        modules = {
            "ray": types.SimpleNamespace(__version__="2.1"),
            "ray.train": types.SimpleNamespace(get_context=get_context),
            "ray.util": types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"),
            "ray.train.collective": broadcast
            and types.SimpleNamespace(broadcast_from_rank_zero=broadcast),
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    return put


def outside():
    raise RuntimeError("`get_context` cannot be used outside of a Ray Train training function.")


def test_without_ray(monkeypatch):
    monkeypatch.delitem(sys.modules, "ray.train", raising=False)
    assert RayWorker.this() is None
    assert "ray" not in sys.modules


@pytest.mark.parametrize("get_context", [outside, lambda: Context(None, None), lambda: None])
def test_outside_of_the_function_of_a_trainer(ray, get_context):
    ray(get_context)
    assert RayWorker.this() is None


def test_workers_learn_the_address_and_the_name_of_the_run_from_the_first(ray):
    sent = []

    def broadcast(data):
        sent.append(data)
        return sent[0]

    places = []
    for rank in (0, 1):
        ray(lambda rank=rank: Context(rank, 2), broadcast)
        worker = RayWorker.this()
        assert (worker.rank, worker.count) == (rank, 2)
        places.append(worker.rendezvous())
    assert sent[1] is None
    assert places[0] == places[1]
    address, run = places[0]
    assert run
    host, _, port = address.rpartition(":")
    socket.create_server((host, int(port))).close()  # the port is free


def test_a_ray_that_cannot_tell_the_others(ray):
    ray(lambda: Context(1, 2))
    with pytest.raises(ProcessError, match=r"Ray 2\.1 has no ray\.train\.collective.*TRAIN_V2_ENA"):
        RayWorker.this().rendezvous()


def test_the_end_of_a_worker():
    ended, go_on = threading.Event(), threading.Event()

    def work():
        when_this_thread_ends(ended.set)
        go_on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    assert not ended.wait(0.05)
    go_on.set()
    assert ended.wait(10)
    thread.join()
