"""The calls of loops and compiled functions that are running, in all threads of the process."""

from collections.abc import Iterator
from contextlib import contextmanager

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_steps import current_scope

_calls: list[str] = []  # names of functions


@contextmanager
def running(name: str) -> Iterator[None]:
    """Surrounds a call of a loop or a compiled function."""
    _calls.append(name)
    try:
        yield
    finally:
        _calls.remove(name)


def running_call() -> str | None:
    """Returns the name of a running call, or of the function that is being traced; or None."""
    if _calls:
        return _calls[-1]
    return "a compiled function" if current_scope() is not None or is_tracing() else None
