import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millrace.base.threads.made_once import MadeOnce


def test_a_value_is_made_once_and_kept():
    table = MadeOnce()
    assert [table.get("a", lambda value=value: value) for value in (1, 2)] == [1, 1]
    assert table.values() == [1]
    assert len(table) == 1


def test_the_values_used_last_are_kept():
    table = MadeOnce(limit=2)
    for key in "abac":
        table.get(key, lambda key=key: key)
    assert table.values() == ["a", "c"]


def test_threads_that_ask_for_one_value_get_the_one_that_the_first_makes():
    table, made, enters = MadeOnce(), [], threading.Barrier(4)

    def make():
        made.append(threading.get_ident())
        return len(made)

    def ask():
        enters.wait(60)
        return table.get("a", make)

    with ThreadPoolExecutor(4) as pool:
        assert [each.result(60) for each in [pool.submit(ask) for _ in range(4)]] == [1] * 4
    assert len(made) == 1


def test_two_values_are_made_at_the_same_time():
    table, meeting = MadeOnce(), threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(table.get, key, lambda: meeting.wait(60)) for key in "ab"]
        assert sorted(each.result(60) for each in asked) == [0, 1]


def test_a_value_may_ask_for_others():
    table = MadeOnce()
    assert table.get("a", lambda: table.get("b", lambda: 1) + 1) == 2
    assert table.values() == [2, 1]


def test_after_a_failure_the_next_call_makes_the_value():
    table = MadeOnce()
    with pytest.raises(ZeroDivisionError):
        table.get("a", lambda: 1 / 0)
    assert table.values() == []
    assert table.get("a", lambda: 1) == 1
