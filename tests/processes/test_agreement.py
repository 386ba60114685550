import concurrent.futures
import threading
import time

import pytest

from millrace.errors import PlanError, ProcessError
from millrace.run.processes import agreement
from millrace.run.processes.agreement import check_same


class Store:
    """The key-value store of `jax.distributed`, for threads."""

    def __init__(self):
        self.texts = {}

    def key_value_set(self, key, text):
        assert key not in self.texts
        self.texts[key] = text

    def key_value_delete(self, key):
        del self.texts[key]

    def key_value_dir_get(self, prefix):
        return [(key, text) for key, text in self.texts.items() if key.startswith(prefix)]

    def blocking_key_value_get(self, key, timeout_in_ms):
        deadline = time.monotonic() + timeout_in_ms / 1000
        while key not in self.texts:
            if time.monotonic() > deadline:
                raise RuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
            time.sleep(0.001)
        return self.texts[key]


@pytest.fixture
def processes(monkeypatch):
    """Runs a function as each of several processes, and returns what each raised."""
    store, local = Store(), threading.local()

    monkeypatch.setattr(agreement, "EXCHANGES", local)
    monkeypatch.setattr(agreement.compat, "key_value_store", lambda: store)
    monkeypatch.setattr(agreement.compat, "process_index", lambda: local.index)

    def run(function, count=3):
        def process(index):
            local.index, local.count = index, 0
            function(index)

        monkeypatch.setattr(agreement.compat, "process_count", lambda: count)
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            return [one.exception() for one in [pool.submit(process, i) for i in range(count)]]

    run.store = store
    return run


def test_one_process_agrees_with_itself():
    check_same({"options": "a"})


def test_many_comparisons_leave_the_last_two(processes):
    def compare(index):
        for number in range(20):
            check_same({"options": str(number), "model": "x"})

    assert processes(compare) == [None] * 3
    assert sorted({key.split("/")[2] for key in processes.store.texts}) == ["18", "19"]


def test_a_difference_is_an_error_in_every_process(processes):
    errors = processes(lambda index: check_same({"model": "same", "options": f"a={index // 2}"}))
    assert {type(error) for error in errors} == {PlanError}
    assert {str(error) for error in errors} == {
        "The processes of this run do not have the same options. processes 0, 1: a=0; "
        "process 2: a=1. Run the same script with the same arguments in every process."
    }


def test_a_long_value_is_shown_where_it_differs(processes):
    text = "x" * 500
    errors = processes(lambda index: check_same({"weights": f"{text}{index}{text}"}), count=2)
    assert "process 0: ..." + "x" * 20 + "0" + "x" * 39 + "...;" in str(errors[1])
    assert "keras.utils.set_random_seed(1)" in str(errors[0])


def test_a_part_that_one_process_does_not_have(processes):
    errors = processes(lambda index: check_same({"stages": "2"} if index else {}), count=2)
    assert "process 0: nothing; process 1: 2" in str(errors[0])


def test_who_does_not_come_is_named(processes):
    errors = processes(lambda index: index == 1 or check_same({"options": "a"}, timeout=0.2))
    assert errors[1] is None
    for error in (errors[0], errors[2]):
        assert isinstance(error, ProcessError)
        assert "In 0.2 seconds, these did not come to comparison 1: 1." in str(error)
        assert "All of them must make each call of fit" in str(error)


def test_an_error_of_the_store_comes_through(processes, monkeypatch):
    def fail(*_):
        raise RuntimeError("UNAVAILABLE")

    monkeypatch.setattr(processes.store, "blocking_key_value_get", fail)
    assert [str(e) for e in processes(lambda i: check_same({}))] == ["UNAVAILABLE"] * 3
