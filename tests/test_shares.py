"""A slow test is in one share; all others, and those of examples, are in every one."""

from types import SimpleNamespace

import pytest

from shares import Share


def item(number, *marks):
    marks = [SimpleNamespace(name=name) for name in marks]
    return SimpleNamespace(nodeid=f"tests/test_a.py::test_{number}", iter_markers=lambda: marks)


def test_each_slow_test_is_in_one_of_three_shares():
    shares = [Share.of_text(f"{number}/3") for number in (1, 2, 3)]
    counts = [0, 0, 0]
    for number in range(300):
        has = [share.has(item(number, "slow")) for share in shares]
        assert sum(has) == 1
        counts[has.index(True)] += 1
        assert all(share.has(item(number)) for share in shares)
        assert all(share.has(item(number, "slow", "every_share")) for share in shares)
    assert min(counts) > 60


@pytest.mark.parametrize("text", ["1", "1/0", "a/3"])
def test_other_texts_are_no_share(text):
    with pytest.raises((ValueError, TypeError)):
        Share.of_text(text)
