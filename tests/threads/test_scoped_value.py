import threading

import pytest

from millrace.base.threads.scoped_value import ScopedValue


def test_a_value_holds_within_its_block():
    value = ScopedValue("default")
    with value.bound_to("outer") as outer:
        assert (outer, value.get()) == ("outer", "outer")
        with value.bound_to("inner"):
            assert value.get() == "inner"
        assert value.get() == "outer"
    assert value.get() == "default"


def test_an_exception_ends_the_block_too():
    value = ScopedValue(0)
    with pytest.raises(ZeroDivisionError), value.bound_to(1):
        raise ZeroDivisionError
    assert value.get() == 0


def test_another_thread_has_its_own():
    value, found = ScopedValue(0), []

    def look():
        found.append(value.get())
        with value.bound_to(2):
            found.append(value.get())

    with value.bound_to(1):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert value.get() == 1
    assert found == [0, 2]
