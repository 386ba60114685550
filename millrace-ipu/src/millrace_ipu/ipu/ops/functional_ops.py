"""Functions that are compiled once and called several times: XLA shares equal code itself."""

from collections.abc import Callable
from typing import Any

from millrace_ipu.ipu.replacements import other_name as _other_name


def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Any:
    """Returns the function itself, as a decorator with or without arguments."""
    del unique_sharding, keep_input_layouts, name
    return (lambda inner: inner) if func is None else func


function = outlined_function  # its name in releases before 2.1


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
