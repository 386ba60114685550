"""Sums through memory, by threads that play the processes of a run."""

import os
import socket
import threading

import numpy as np
import pytest

from millrace.errors import ProcessError
from millrace.processes import shared_memory as module
from millrace.processes.agreement import Member
from millrace.processes.shared_memory import SharedMemory


@pytest.fixture(params=[2, 3])
def memories(request):
    """The memory of each process."""
    count = request.param
    members = [Member(index, "host", 100 + index) for index in range(count)]
    sockets = {index: {} for index in range(count)}
    for one in range(count):
        for other in range(one + 1, count):
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sockets[one][other], sockets[other][one] = ends
    files = [module._memory() for _ in range(count)]
    found = [SharedMemory(members, k, sockets[k], files) for k in range(count)]
    yield found
    for memory in found:
        memory.close()
    for file in files:
        os.close(file)


def together(memories, run):
    """Runs a function for each process at the same time, and returns results or errors."""
    found = [None] * len(memories)

    def one(index):
        try:
            found[index] = run(index, memories[index])
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(memories))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_all_processes_get_the_same_sums_in_the_order_of_processes(memories):
    sizes = [(5, "float32"), (1, "int32"), (300_000, "float32"), (7, "float64")]
    random = np.random.default_rng(0)
    values = [
        [
            [(1e3 * random.standard_normal(size)).astype(dtype) for size, dtype in sizes]
            for _ in memories
        ]
        for _ in range(5)
    ]

    def run(index, memory):
        sums = []
        for each in values:
            results = [value.copy() for value in each[index]]
            memory.add_up(results, results, ends_update=True)  # in place, as programs do
            sums.append(results)
        return sums

    found = together(memories, run)
    for number, each in enumerate(values):
        for k in range(len(sizes)):
            expected = each[0][k]
            for one in each[1:]:
                expected = expected + one[k]
            for sums in found:
                assert np.array_equal(sums[number][k], expected)


def test_times_are_those_of_updates(memories):
    def run(index, memory):
        del index
        value = np.ones(10, np.float32)
        for _ in range(4):
            memory.add_up([value], [value], ends_update=True)
        return memory.take_times(), memory.take_times()

    for times, later in together(memories, run):
        assert len(times) == 3  # the first update has no begin
        assert all(each.own_seconds >= 0 and each.sum_seconds > 0 for each in times)
        assert later == []


def test_processes_with_other_values_are_told(memories):
    def run(index, memory):
        value = np.ones(10 + 100 * (index == 1), np.float32)
        memory.add_up([value], [value], ends_update=True)

    errors = together(memories, run)
    assert all(isinstance(error, ProcessError) for error in errors[:2])
    assert "process 1 (host host, pid 101) adds up 448 bytes in sum 0, and process 0" in str(
        errors[0]
    )
    assert "adds up 64 bytes in sum 0. Run the same script" in str(errors[0])


def test_a_process_that_has_gone_is_named(memories):
    def run(index, memory):
        if index == 1:
            memory.close()
            return
        value = np.ones(10, np.float32)
        memory.add_up([value], [value], ends_update=True)

    error = together(memories, run)[0]
    assert isinstance(error, ProcessError)
    assert "process 1 (host host, pid 101) ended while process 0" in str(error)


def test_machines_with_other_names_share_no_memory(monkeypatch):
    monkeypatch.setattr(module, "connect_locally", None)  # is not called
    module.share_memory([Member(0, "one", 1), Member(1, "other", 2)], 0)
    assert module.shared_memory() is None


def test_a_process_without_memory_is_no_obstacle(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "_memory", lambda: None)
    monkeypatch.setattr(module, "connect_locally", lambda *given: asked.append(given))
    monkeypatch.setattr(module, "_all_say", lambda is_complete, count, index: is_complete)
    module.share_memory([Member(0, "one", 1), Member(1, "one", 2)], 0)
    assert asked == [(1, "memory", False)]
    assert module.shared_memory() is None
