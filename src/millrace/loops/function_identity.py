"""When two functions are one: a body that is written in a Python loop is made anew in each turn.

    for epoch in range(10):
        millrace.repeat(100, lambda x: step(model, x), infeed=infeed)

These ten functions have the same code and refer to the same objects, so they run one program. Had
`model` or `step` been made in the loop, they would be ten: what a body refers to is a constant of
its program.
"""

from types import CodeType, FunctionType, MethodType
from typing import Any


def identity(function: Any) -> tuple[Any, Any]:
    """Returns what is equal for functions that do the same, and what must live as long as it.

    Looked at are the names that the function refers to, and those that functions of its own module
    refer to which it calls; not the attributes of objects. That is as far as JAX goes, and further.
    """
    alive: list[Any] = []
    return _identity(function, alive, set()), alive


def _identity(function: Any, alive: list[Any], seen: set[int]) -> Any:
    alive.append(function)
    if isinstance(function, MethodType):
        return _identity(function.__func__, alive, seen), _key(function.__self__, alive)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return id(function)
    seen.add(id(function))
    parts = []
    for value in referred(function):
        own = isinstance(value, FunctionType) and value.__globals__ is function.__globals__
        parts.append(_identity(value, alive, seen) if own else _key(value, alive))
    return function.__code__, tuple(parts)


def referred(function: FunctionType) -> list[Any]:
    """Returns defaults, what is closed over, and globals of a function; None for what is none."""
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(None)
    return values + [function.__globals__.get(name) for name in _names(function.__code__)]


def _names(code: CodeType) -> list[str]:
    """Returns the global names, and others, of a function and of those that it defines."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _names(constant)
    return names


def _key(value: Any, alive: list[Any]) -> Any:
    alive.append(value)
    is_plain = isinstance(value, int | float | str | bytes | bool | None)
    return (type(value), value) if is_plain else id(value)
