import threading

import pytest

from millrace.base.checkpoints.writer import CheckpointWriter
from millrace.errors import CheckpointError
from own_threads import own_threads


class Directory:
    """Stands in for one on disk."""

    def __init__(self):
        self.written, self.goes_on, self.error = [], threading.Event(), None
        self.goes_on.set()

    def write(self, snapshot):
        assert self.goes_on.wait(60)
        if self.error is not None:
            raise self.error
        self.written.append(snapshot)


@pytest.fixture
def directory():
    return Directory()


def test_one_write_at_a_time(directory):
    writer = CheckpointWriter(directory, in_thread=True)
    directory.goes_on.clear()
    writer.write(1)
    assert writer.is_busy
    writer.check()
    assert own_threads() == ["millrace-checkpoint"]
    directory.goes_on.set()
    writer.write(2)
    writer.wait()
    assert directory.written == [1, 2]
    assert not writer.is_busy
    assert own_threads() == []


def test_without_a_thread(directory):
    writer = CheckpointWriter(directory, in_thread=False)
    writer.write(1)
    assert directory.written == [1]
    directory.error = CheckpointError("no room")
    with pytest.raises(CheckpointError, match="no room"):
        writer.write(2)
    writer.wait()


@pytest.mark.parametrize("method", ["wait", "check", "write"])
def test_an_error_is_raised_once_in_the_training(directory, method):
    writer = CheckpointWriter(directory, in_thread=True)
    directory.error = CheckpointError("no room")
    writer.write(1)
    while writer.is_busy:
        pass
    directory.error = None
    with pytest.raises(CheckpointError, match="no room"):
        getattr(writer, method)(*([2] if method == "write" else []))
    writer.wait()
    writer.write(3)
    writer.wait()
    assert directory.written == [3]
