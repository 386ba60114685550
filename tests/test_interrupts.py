"""When a Ctrl-C that is held back comes out."""

import collections
import contextlib
import signal
import threading
import types

import pytest

from millrace.base import interrupts
from millrace.base.interrupts import (
    at_once,
    held_back,
    is_held_back,
    raise_if_interrupted,
    uninterrupted,
)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def interrupted_in(place):
    with place():
        interrupt()
        pytest.fail("it continued")


def test_at_the_next_place_for_it_and_once():
    passed = []

    def loop():
        with held_back(), held_back():
            interrupt()
            passed.append("held")
            with pytest.raises(KeyboardInterrupt):
                raise_if_interrupted()
            raise_if_interrupted()
            passed.append("once")
            interrupt()
            interrupt()  # somebody hammers on the keys
            passed.append("at the end")

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert passed == ["held", "once", "at the end"]
    assert not is_held_back()


def test_in_a_data_set_at_once():
    with held_back():
        with pytest.raises(KeyboardInterrupt):
            interrupted_in(at_once)
        interrupt()
        with pytest.raises(KeyboardInterrupt), at_once():
            pytest.fail("it continued")


def test_after_some_patience_anywhere(monkeypatch):
    monkeypatch.setattr(interrupts, "PATIENCE_SECONDS", -1.0)
    with held_back():
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupted_in(contextlib.nullcontext)


def test_a_second_one_waits_for_code_that_holds_values(monkeypatch, capfd):
    monkeypatch.setattr(interrupts, "PATIENCE_SECONDS", -1.0)
    library = types.SimpleNamespace(f_globals={"__name__": "keras.src.trainer"}, f_back=None)
    with held_back():
        interrupts._held.handle(signal.SIGINT, library)
        interrupts._held.handle(signal.SIGINT, library)
        assert "Another one ends it now, which can lose them." in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            interrupts._held.handle(signal.SIGINT, library)
    made = collections.namedtuple("Made", "value")  # the globals of its constructor name no library
    in_constructor = types.SimpleNamespace(f_globals=made.__new__.__globals__, f_back=library)
    assert not interrupts._is_users(in_constructor)
    with held_back():
        with uninterrupted():
            interrupt()
            interrupt()
        with pytest.raises(KeyboardInterrupt):
            raise_if_interrupted()


def test_an_error_at_the_same_time_is_shown_too():
    def loop():
        with held_back():
            interrupt()
            raise ValueError

    with pytest.raises(KeyboardInterrupt) as caught:
        loop()
    assert isinstance(caught.value.__context__, ValueError)


def test_a_handler_of_the_user_stays_in_force():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(is_held_back()))
    try:
        with held_back(), at_once():
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [False]


def test_other_threads_get_no_signals():
    found = []

    def ask():
        with held_back():
            raise_if_interrupted()
            found.append(is_held_back())

    with held_back():
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert found == [False]
