import time

import jax
import pytest

from millrace.errors import ProcessError, TaskError
from millrace.run.processes import failure
from millrace.run.processes.agreement import Member
from millrace.run.processes.control_channel import ControlChannel
from millrace.run.processes.failure import FailureMonitor, describe, failure_of_others

MEMBERS = [Member(0, "node1", 10), Member(1, "node2", 11)]


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_nothing_without_other_processes():
    assert failure_of_others(0) is None


def test_says_who_failed_first(monkeypatch):
    line = ControlChannel(0, MEMBERS, {})
    monkeypatch.setattr(failure, "_monitor", FailureMonitor(line, print))
    assert failure_of_others(0) is None
    line._record(failure.Failure(MEMBERS[1], "ValueError: no"))
    line.announce("ValueError: later")
    assert failure_of_others(0) == "process 1 (host node2, pid 11) failed first: ValueError: no"


def test_the_failure_of_this_process_is_none_of_others(monkeypatch):
    channel = ControlChannel(0, MEMBERS, {})
    monkeypatch.setattr(failure, "_monitor", FailureMonitor(channel, print))
    channel.announce("ValueError: no")
    assert failure_of_others(0) is None


@pytest.fixture
def leaving(monkeypatch):
    """A process of a run that ends with a status: its channel, and the status of a sudden end."""
    monkeypatch.setattr(failure, "_FOLLOW_SECONDS", 0.1)

    def leave(status):
        channel = ControlChannel(0, MEMBERS, {})
        monitor = FailureMonitor(channel, print)
        left, ended = [], []
        monkeypatch.setattr(channel, "leave", lambda: left.append(True))
        monkeypatch.setattr(monitor, "_end", ended.append)
        monitor._status = status
        monitor._at_exit()
        return channel, left, ended

    return leave


def test_a_process_that_failed_says_so_and_ends(leaving):
    channel, left, ended = leaving(3)
    assert channel.first.text == "it ended with exit status 3."
    assert (left, ended) == ([], [3])


def test_a_preempted_process_leaves_and_fails_only_if_the_others_go_on(leaving):
    channel, left, ended = leaving(143)
    assert left == [True]
    assert channel.first is None  # not yet: the others leave likewise
    assert channel.failed.wait(60)
    assert channel.first.text == "it was preempted (exit status 143), and the others continued."
    deadline = time.monotonic() + 60
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == [143]


def test_an_error_is_described_with_its_line():
    assert describe(ValueError("no")) == "ValueError: no"
    text = describe(raised(ValueError("no" * 2000)))
    assert text.startswith("ValueError: nono")
    assert f"... ({__file__}, line " in text


@pytest.mark.parametrize(
    ("error", "follows"),
    [
        (ValueError("no"), False),
        (ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer"), True),
        (jax.errors.JaxRuntimeError("INTERNAL: NCCL"), True),
        (ProcessError("lost"), True),
        (TaskError("0F0 failed"), False),
    ],
)
def test_what_may_follow_from_the_end_of_another(error, follows):
    assert failure._may_follow(error) is follows
    wrapped = TaskError("a task failed")
    wrapped.__cause__ = error
    assert failure._may_follow(wrapped) is follows
