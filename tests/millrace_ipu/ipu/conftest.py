"""Fixtures for IPU programs, on as many virtual CPU devices as a test configures."""

import pytest

from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace_ipu import ipu
from millrace_ipu.ipu.config import reset_system


@pytest.fixture(autouse=True)
def no_system():
    """Resets the configured system after each test."""
    yield
    reset_system()


@pytest.fixture(autouse=True)
def release(monkeypatch):
    """Counts steps as release 2.4 did, whose rules these tests state; later ones are beside it."""
    monkeypatch.setenv("MILLRACE_IPU_RELEASE", "2.4")


@pytest.fixture(autouse=True)
def no_threads(monkeypatch):
    """Ends the threads of infeed queues, which cached programs would keep alive."""
    opened, original = [], InfeedQueue._open
    monkeypatch.setattr(
        InfeedQueue, "_open", lambda self, *begin: (opened.append(self), original(self, *begin))
    )
    yield
    for queue in opened:
        queue.close()


@pytest.fixture
def system():
    """Returns a function that configures a number of devices."""

    def configure(number, **attributes):
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = number
        for name, value in attributes.items():
            setattr(config, name, value)
        config.configure_ipu_system()

    return configure
