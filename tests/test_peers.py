"""`benchmarks/peers.py`: the same work for all sides, and the best setting of each."""

import pathlib
import sys
from types import SimpleNamespace

import pytest

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def peers(monkeypatch):
    """The script as a module; afterwards its neighbours are forgotten."""
    monkeypatch.setenv("MILLRACE_CACHE_DIR", "off")  # as it sets it itself
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    import peers

    yield peers
    for name in set(sys.modules) - before:
        if pathlib.Path(getattr(sys.modules[name], "__file__", "") or "").parent == BENCHMARKS:
            del sys.modules[name]


def side(peers, name, settings, seconds, loss=2.0):
    """A side whose passes take the given seconds."""

    def tell(command):
        *check, _, _, setting = command.split()
        return [loss if check else seconds[setting]]

    return peers.Side(name, settings, SimpleNamespace(tell=tell))


CASE = SimpleNamespace(name="tiny", steps=10, batch=8)


def test_the_best_setting_of_each_side_counts(peers, capsys):
    own = side(peers, "millrace", ("all",), {"10": 1e-5})
    other = side(peers, "keras 3.15", ("1", "8"), {"1": 8e-5, "8": 3e-5}, 2.0001)
    assert peers.measure(CASE, "fit", [own, other], 3) == [
        "tiny, fit: millrace = 1.0 us (1.0-1.0, n=3)",
        "tiny, fit: keras 3.15 = 3.00x (3.00-3.00, n=3)   claim >= 1x",
    ]
    printed = capsys.readouterr().out
    assert "keras 3.15, 1 " in printed
    assert "8.0 us/step" in printed  # the other setting is in the file, too


@pytest.mark.parametrize("loss", [2.01, float("nan")])
def test_nobody_is_compared_on_other_work(peers, loss):
    own = side(peers, "millrace", ("all",), {"10": 1e-5})
    other = side(peers, "jax, scan", ("scan",), {"scan": 1e-5}, loss)
    with pytest.raises(SystemExit, match="tiny, fit: jax, scan computes something else"):
        peers.measure(CASE, "fit", [own, other], 3)
