"""Private JAX: values of traces that are over, and the lines that computed them.

JAX traces a branch of a conditional, the body of a loop and other functions apart. A value that
leaves one without being its result has no numbers, and JAX says so only where it calls the program
itself: executables that were compiled ahead of time count one argument more.
"""

import linecache
import pathlib
import sysconfig
from typing import Any

import jax
import keras
from jax._src.core import EvalTrace, Tracer, trace_ctx

from millrace.base.own_code import is_own_file

_PACKAGES = tuple(str(pathlib.Path(file).parent) for file in (jax.__file__, keras.__file__))
_PYTHON, _INSTALLED = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")


def has_ended(value: object) -> bool:
    """Whether a value is part of a trace that is over: neither the current one nor around it."""
    if not isinstance(value, Tracer):
        return False
    trace: Any = trace_ctx.trace
    while trace is not value._trace:
        if trace is None:  # of a kind that does not tell what is around it
            return False
        if isinstance(trace, EvalTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def ended_values(traced: jax.stages.Traced) -> list[Any]:
    """Returns the values of ended traces that a traced function uses."""
    separated: Any = traced._consts  # type: ignore[attr-defined]
    return [value for value in separated if has_ended(value)]


def line_of(value: Any) -> tuple[str, int, str] | None:
    """Returns file, line and function of the user's code that computed a value, if it is known."""
    while isinstance(value, Tracer) and getattr(value, "_line_info", None) is None:
        value = getattr(value, "primal", getattr(value, "val", None))  # of a gradient, or of vmap
    traceback: Any = getattr(getattr(value, "_line_info", None), "traceback", None)
    frames = ((f.file_name, f.line_num, f.function_name) for f in getattr(traceback, "frames", ()))
    return next((frame for frame in frames if _is_users(frame[0])), None)


def origin_of(value: Any) -> str:
    """Returns dtype, shape and line of a value, and the user's function that was traced."""
    text = f"{value.dtype}{list(value.shape)}"
    traced: Any = getattr(value, "_debug_info", None)
    if (where := line_of(value)) is not None:
        file, line, function = where
        code = linecache.getline(file, line).strip()
        text += f', computed in\n  File "{file}", line {line}, in {function}\n    {code}'
    if traced is not None and _is_users(traced.func_src_info.rpartition(" at ")[2]):
        text += f"\nwhile JAX traced {traced.func_src_info} for {traced.traced_for}"
    return text


def _is_users(file: str) -> bool:
    of_python = file.startswith(_PYTHON) and not file.startswith(_INSTALLED)
    is_ours = is_own_file(file) or file.startswith(_PACKAGES) or file.startswith("<frozen")
    return not (of_python or is_ours)
