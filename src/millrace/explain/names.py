"""What functions and classes are called in the text of a value."""

import functools
import operator
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType
from typing import Any

from millrace.explain.library import is_library_class, is_library_code
from millrace.explain.walk import Walk

TextOf = Callable[[Walk, Any], str]
_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_BUILTIN = (
    BuiltinFunctionType,
    MethodWrapperType,
    type(str.join),
    type(object.__init__),
    type(dict.__dict__["fromkeys"]),
)
_CODE = (type, FunctionType, MethodType, functools.partial, *_GETTERS, *_BUILTIN)
_WRAPPERS = ("PjitFunction", "_lru_cache_wrapper")


def is_code(value: Any) -> bool:
    """Whether a value is a function in one of its many forms, or a class."""
    return isinstance(value, _CODE) or _is_wrapper(value)


def _is_wrapper(value: Any) -> bool:
    """Whether a value is a compiled object around a function: of `jax.jit`, or of a cache."""
    return type(value).__name__ in _WRAPPERS and callable(getattr(value, "__wrapped__", None))


def class_name(walk: Walk, kind: type) -> str:
    """Returns the name of a library's class, or the label of one of the user's."""
    name = spoken(kind.__qualname__)
    if is_library_class(kind):
        walk.uses(kind.__module__)
        _describe_patches(walk, kind)
        return name if kind.__module__ == "builtins" else f"{_public(kind.__module__)}.{name}"
    return walk.label(kind, name)


def _describe_patches(walk: Walk, kind: type) -> None:
    """Describes the methods of a library's class that the user has put into it."""
    if kind in walk.looked_through:
        return
    walk.looked_through.add(kind)
    for base in filter(is_library_class, kind.__mro__):
        for name, member in vars(base).items():
            found = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(found, FunctionType) and not (
                # Code that was made from text, such as that of a dataclass, has no file.
                is_library_code(found.__code__) or found.__code__.co_filename.startswith("<")
            ):
                walk.label(found, f"{spoken(base.__qualname__)}.{name}()")


def function_text(walk: Walk, function: Any, text_of: TextOf) -> str:
    """Returns how a function or a class is called, with what it was made of if it was made."""
    if isinstance(function, type):
        return class_name(walk, function)
    if isinstance(function, functools.partial):
        parts = [function.func, *function.args]
        texts = [text_of(walk, part) for part in parts]
        texts += [f"{name}={text_of(walk, value)}" for name, value in function.keywords.items()]
        return f"partial({', '.join(texts)})"
    if isinstance(function, MethodType):
        return f"{text_of(walk, function.__func__)} of {text_of(walk, function.__self__)}"
    if isinstance(function, _GETTERS):
        return repr(function)
    if isinstance(function, FunctionType):
        return _plain_function(walk, function, text_of)
    if _is_wrapper(function):
        return f"{type(function).__name__}({text_of(walk, function.__wrapped__)})"
    owner = getattr(function, "__self__", None)
    name = function.__qualname__
    if owner is None or hasattr(owner, "__path__") or type(owner).__name__ == "module":
        return f"{_public(getattr(function, '__module__', None) or 'builtins')}.{name}()"
    return f"{name}() of {text_of(walk, owner)}"


def _plain_function(walk: Walk, function: FunctionType, text_of: TextOf) -> str:
    if not is_library_code(function.__code__):
        return walk.label(function, f"{spoken(function.__qualname__)}()")
    walk.uses(function.__module__)
    name = f"{_public(function.__module__)}.{spoken(function.__qualname__)}"
    if not function.__closure__ or _is_found_by_name(function):
        return f"{name}()"
    # Made by a call, of `jax.vmap` say: what it was made of is what matters.
    parts = []
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
        if variable != "__class__":
            parts.append(f"{variable}={_contents(walk, cell, text_of)}")
    return f"{name}({', '.join(parts)})"


def _contents(walk: Walk, cell: Any, text_of: TextOf) -> str:
    try:
        return text_of(walk, cell.cell_contents)
    except ValueError:
        return "not assigned yet"


def _is_found_by_name(function: FunctionType) -> bool:
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return function in (found, getattr(found, "__wrapped__", None))


def spoken(qualified_name: str) -> str:
    """Returns the name of a function as a reader knows it: `loss`, `Scaled.call`, `a lambda`."""
    *around, name = qualified_name.split(".<locals>.")
    if name == "<lambda>":
        outer = around[-1].rpartition(".<locals>.")[2] if around else ""
        return f"lambda in {spoken(outer)}" if outer else "lambda"
    return name.replace(".<lambda>", ".lambda")


def _public(module: str) -> str:
    """Returns `keras` for `keras.src.losses.losses`: where private modules lie is no news."""
    top, _, rest = module.partition(".")
    return top if rest.startswith(("src.", "_src.", "src", "_src")) else module
