"""Work that takes long says that it is under way, on a terminal and elsewhere."""

import time

from millrace.compilation.executables import progress
from millrace.compilation.executables.log import CompileLog
from own_threads import own_threads


def test_a_search_has_a_line_now_and_then_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SLOW_SECONDS", 0.1)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.1)
    with progress.search("quick"):
        pass
    with progress.search("planning 'm'") as tick:
        tick("compiling training 1")
        with progress.search("planning 'm' for its budget") as inner:
            inner("compiling attempt 2")
            with progress.progress("tracing", "train_run"):  # a part of it
                time.sleep(0.5)
        tick("compiling training 2")
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    first = "planning 'm': compiling training 1; planning 'm' for its budget: compiling attempt 2"
    texts = [line.partition(" ... (")[0] for line in lines]
    assert set(texts) == {first, "planning 'm': compiling training 2"}
    assert len(lines) <= 8
    assert lines[0].endswith(" s)")
    assert not own_threads()


def test_the_time_of_a_search_counts_as_compilation_once():
    log, begin = CompileLog(), time.perf_counter()
    with log.timed(), log.timed():
        time.sleep(0.05)
    assert 0.05 <= log.seconds <= time.perf_counter() - begin
