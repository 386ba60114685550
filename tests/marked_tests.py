"""Marks the tests that a list names; it is wrong if it names one that is gone.

slow_tests.txt         what takes longest in `make test`
exhaustive_tests.txt   more cases of what `make test-slow` has some of
"""

import pathlib
from collections.abc import Iterable
from typing import Any

import pytest


class MarkedTests:
    """A plugin of pytest. With -n, the workers collect, and tell their controller what is wrong."""

    def __init__(self, config: pytest.Config, mark: str):
        self._config, self._mark = config, mark
        self._names = _read(config.rootpath / "tests" / f"{mark}_tests.txt")
        self._error = f"tests/{mark}_tests.txt names tests that are not there:"
        self._told: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]):
        for item in items:
            if item.nodeid in self._names:
                item.add_marker(getattr(pytest.mark, self._mark))
        gone = self._gone({item.nodeid for item in items})
        if not gone:
            return
        output: Any = getattr(self._config, "workeroutput", None)
        if output is None:
            raise pytest.UsageError("\n".join([self._error, *gone]))
        output[f"gone {self._mark}"] = gone
        items.clear()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any):
        """Hears from a worker that has ended."""
        self._told.update(getattr(node, "workeroutput", {}).get(f"gone {self._mark}", ()))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        if self._told:
            pytest.exit("\n".join([self._error, *sorted(self._told)]), pytest.ExitCode.USAGE_ERROR)

    def _gone(self, collected: set[str]) -> list[str]:
        """Returns the names that no test has, of files that were collected as a whole."""
        config = self._config
        here = config.invocation_params.dir
        asked = {(here / path).resolve() for path in config.args if "::" not in path}
        ignored = {(here / path).resolve() for path in config.getoption("ignore") or ()}
        gone = []
        for name in self._names:
            path = (config.rootpath / name.partition("::")[0]).resolve()
            within = {path, *path.parents}
            if name not in collected and within & asked and not within & ignored:
                gone.append(name)
        return gone


def _read(file: pathlib.Path) -> list[str]:
    lines: Iterable[str] = file.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]
