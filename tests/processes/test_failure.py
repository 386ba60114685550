import jax
import pytest

from millrace.errors import ProcessError, TaskError
from millrace.processes import failure
from millrace.processes.agreement import Member
from millrace.processes.control_channel import ControlChannel
from millrace.processes.failure import FailureMonitor, describe, failure_of_others

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
