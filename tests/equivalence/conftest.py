"""No false alarms: over all of these tests, nothing is compiled twice by accident."""

from collections import Counter

import pytest

from millrace.base.records.compilation import Origin
from millrace.compilation.cache.listeners import (
    ProgramListener,
    register_listener,
    unregister_listener,
)


@pytest.fixture(autouse=True)
def no_false_alarms():
    """Fails a test in which a program is compiled again although nothing about it changed."""
    records, listener = [], ProgramListener()
    listener.compiled = records.append
    register_listener(listener)
    yield
    unregister_listener(listener)
    made = Counter(
        (r.model, r.program, r.unrolled, r.key) for r in records if r.origin is Origin.COMPILED
    )
    assert [program for program, times in made.items() if times > 1] == []
    unexplained = [r for r in records if r.is_recompilation and "no field" in r.cause]
    assert [(r.program, r.origin, r.cause) for r in unexplained] == []
