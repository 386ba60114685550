"""The calls of loops and compiled functions that are running, in all threads of the process."""

from types import TracebackType

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_steps import current_scope

_calls: list[str] = []  # names of functions


class running:  # noqa: N801 - used as a function
    """Surrounds a call of a loop or a compiled function."""

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        _calls.append(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _calls.remove(self._name)


def running_call() -> str | None:
    """Returns the name of a running call, or of the function that is being traced; or None."""
    if current_scope() is not None or is_tracing():
        return _calls[-1] if _calls else "a compiled function"
    return _calls[-1] if _calls else None
