"""Two processes played by two threads, with a store of their own."""

import json
import socket
import threading

import jax
import numpy as np
import pytest

from millrace.errors import ProcessError
from millrace.processes import local_channel
from millrace.processes import local_connection as module
from millrace.processes.local_channel import MessageLayout, Outgoing, Ring


class Store:
    """The store of a run, as far as it is used here."""

    def __init__(self):
        self.values, self.change = {}, threading.Condition()

    def key_value_set(self, key, value):
        with self.change:
            self.values[key] = value
            self.change.notify_all()

    def blocking_key_value_get(self, key, milliseconds):
        with self.change:
            if not self.change.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: nobody came")
            return self.values[key]


@pytest.fixture
def connect(monkeypatch):
    """Connects process 0 and process 1, and returns both ends."""
    store, thread = Store(), threading.local()
    monkeypatch.setattr(module, "key_value_store", lambda: store)
    monkeypatch.setattr(module, "process_index", lambda: thread.index)

    def both(*indices):
        found = {}

        def run(index):
            thread.index = index
            try:
                found[index] = local_channel.local_channel(1 - index)
            except Exception as error:
                found[index] = error

        threads = [threading.Thread(target=run, args=(index,)) for index in indices or (0, 1)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        return found

    both.store = store
    return both


def test_processes_of_one_machine_are_connected(connect):
    ends = connect()
    data = np.arange(100, dtype=np.uint8)
    for sender, receiver in ((0, 1), (1, 0)):
        assert ends[sender].send(Outgoing(MessageLayout(5, [data.nbytes]), [data.ctypes.data]))
        ends[receiver].read(5)
        assert np.array_equal(ends[receiver].take(5)[:100], data)
        assert ends[sender].process == receiver
    for end in ends.values():
        end.close()


def test_processes_that_do_not_see_the_same_names_are_on_two_machines(connect, monkeypatch):
    monkeypatch.setattr(module, "_path", lambda name: f"\0{name}{threading.get_ident()}")
    assert connect() == {0: None, 1: None}


@pytest.mark.parametrize("lacking", ["memory", "system"])
def test_without_memory_there_is_no_connection(connect, monkeypatch, lacking):
    def refuse(nbytes):
        raise OSError(12, "no memory") if lacking == "memory" else AttributeError("memfd_create")

    monkeypatch.setattr(Ring, "reserve", refuse)
    assert connect() == {0: None, 1: None}


def test_strangers_are_dropped(connect, monkeypatch):
    strangers = []
    set_value = connect.store.key_value_set

    def set_after_strangers(key, value):
        if not key.endswith("answer"):
            for said in (b"", b"garbage" * 100, b"0" * 32):
                stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stranger.connect(f"\0{json.loads(value)[0]}")
                if said:
                    stranger.send(said)
                strangers.append(stranger)
        set_value(key, value)

    monkeypatch.setattr(module, "_TOKEN_SECONDS", 0.2)
    connect.store.key_value_set = set_after_strangers
    ends = connect()
    data = np.arange(10, dtype=np.uint8)
    assert ends[1].send(Outgoing(MessageLayout(0, [data.nbytes]), [data.ctypes.data]))
    ends[0].read(0)
    assert np.array_equal(ends[0].take(0)[:10], data)
    for each in (*ends.values(), *strangers):
        each.close()


@pytest.mark.parametrize("index", [0, 1])
def test_a_process_that_does_not_come(connect, monkeypatch, index):
    monkeypatch.setattr(module, "_SECONDS", 0.1)
    error = connect(index)[index]
    assert isinstance(error, ProcessError)
    assert f"Process {index} waited 0.1 seconds for process {1 - index} to connect" in str(error)
    assert "fit, evaluate and predict must be called by all of them" in str(error)
