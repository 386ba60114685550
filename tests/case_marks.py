"""Marks for single cases of a test; the commands that choose tests by marks are in the Makefile."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case for `make test-slow`."""
    return pytest.param(*values, marks=pytest.mark.slow)


def exhaustive(*values: Any) -> Any:
    """A case for `make test-exhaustive`."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def slow_but_for(cases: Iterable[Any], *fast: Any) -> list[Any]:
    """All cases, of which those of these names are for `make test` and the others are slow."""
    return [case if _name(case) in fast else slow(*_values(case)) for case in cases]


def with_marks(cases: Iterable[Any], **names: Iterable[Any]) -> list[Any]:
    """All cases: `slow=("a", "b")` marks those of these names as slow."""
    return [
        pytest.param(
            *_values(case),
            marks=[getattr(pytest.mark, mark) for mark in names if _name(case) in names[mark]],
        )
        for case in cases
    ]


def _name(case: Any) -> Any:
    """The name of an object, function or path; the case itself if it is a value or a tuple."""
    return getattr(case, "name", getattr(case, "__name__", case))


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
