"""Functions of Keras that are wrapped, each once."""

import functools
from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replaces a function; one replaced before, by a module since reloaded, is replaced anew."""
    current = getattr(owner, name)
    original = getattr(current, "millrace_original", current)
    wrapped: Any = functools.wraps(original)(wrapper(original))
    wrapped.millrace_original = original
    setattr(owner, name, wrapped)
