"""The threads that the running test has started: objects of other tests may still have theirs."""

import threading
import weakref

_before = weakref.WeakSet()


def begin():
    """Takes the threads that are there; conftest.py calls it before each test."""
    _before.clear()
    _before.update(threading.enumerate())


def own_threads(prefix="millrace"):
    """Names of this test's threads."""
    names = [thread.name for thread in threading.enumerate() if thread not in _before]
    return [name for name in names if name.startswith(prefix)]
