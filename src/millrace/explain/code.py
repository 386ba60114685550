"""What decides what a function does: instructions, constants, and the values that it refers to.

    SCALE = 2.0                        global:    `SCALE`, a global that loss() reads
    def make_loss(rate):
        def loss(y, p, k=3):           default:   default of `k` in loss()
            return rate * SCALE * ...  closure:   `rate`, closed over by loss()

Functions of libraries are known by their names. The user's that are referred to are described in
turn, wherever they are; so are classes, with all their methods.
"""

import dis
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from millrace.explain.library import is_library_module
from millrace.explain.objects import ASIDE
from millrace.explain.unknown import unknown_in
from millrace.explain.values import digest, shortened, text_of
from millrace.explain.walk import Walk, place_of
from millrace.records.compilation import Aspect

# Methods that run only where objects are made, saved or shown.
_ASIDE = frozenset(
    {"get_config", "from_config", "get_build_config", "build_from_config", "__repr__", "__str__"}
    | {"save_own_variables", "load_own_variables", "get_compile_config", "compile_from_config"}
)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What can be read off instructions alone."""

    instructions: str  # as a hash
    constants: str  # those of inner functions too
    globals: tuple[tuple[str, ...], ...]  # names, with the attributes that follow: ("config", "k")


def write_function(walk: Walk, function: FunctionType, label: str) -> None:
    """Adds the fields of a function of the user's."""
    code = function.__code__
    facts, where = _facts(code, _docstring(function)), place_of(code)

    def add(name: str, value: str) -> None:
        walk.add(Aspect.CODE, name, value, where)

    add(f"instructions of {label}", facts.instructions)
    add(f"constants of {label}", facts.constants)
    for name, value in _defaults(function):
        add(f"default of `{name}` in {label}", text_of(walk, value))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            add(f"`{name}`, closed over by {label}", _cell_text(walk, cell))
    for names in facts.globals:
        _write_global(walk, function, names, label)
    for what in unknown_in(function, facts.globals):
        walk.miss(f"{what}, which {label} reads")
    for name, value in vars(function).items():
        if not name.startswith("__") and name not in ASIDE:
            add(f"attribute `{name}` of {label}", text_of(walk, value))


def write_class(walk: Walk, kind: type, label: str) -> None:
    """Adds the fields of a class of the user's: what it inherits from, methods and attributes."""
    bases = [text_of(walk, base) for base in kind.__mro__[1:] if base is not object]
    walk.add(Aspect.CODE, f"base classes of {label}", ", ".join(bases))
    for name, member in vars(kind).items():
        if name in _ASIDE:
            continue
        functions = list(_functions_of(member))
        for function in functions:
            if isinstance(function, FunctionType):
                text_of(walk, function)  # puts it into the queue
        is_special = name.startswith("__") and name.endswith("__")
        if not functions and not is_special and not name.startswith("_abc_"):
            text = text_of(walk, member)
            walk.add(Aspect.CODE, f"`{name}`, an attribute of class {label}", text)


def _functions_of(member: Any) -> Iterator[Any]:
    if isinstance(member, FunctionType):
        yield member
    elif isinstance(member, staticmethod | classmethod):
        yield member.__func__
    elif isinstance(member, property):
        yield from filter(None, (member.fget, member.fset))
    elif isinstance(member, functools.cached_property):
        yield member.func
    elif type(member).__name__ in ("getset_descriptor", "member_descriptor"):
        yield None  # of the class itself: it says nothing


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    values = function.__defaults__ or ()
    code = function.__code__
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    yield from zip(names, values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _cell_text(walk: Walk, cell: Any) -> str:
    try:
        return text_of(walk, cell.cell_contents)
    except ValueError:
        return "not assigned yet"


def _write_global(walk: Walk, function: FunctionType, names: tuple[str, ...], label: str) -> None:
    """Adds the value of a global, unless it is one of Python's own names."""
    first, *rest = names
    text, read = "not defined", [first]
    if first in function.__globals__:
        value = function.__globals__[first]
        while rest and (found := _attribute(value, rest[0])) is not None:
            value = found[0]
            read.append(rest.pop(0))
        if isinstance(value, ModuleType) and not is_library_module(value.__name__):
            walk.miss(f"module {value.__name__}, which {label} passes on")
        text = text_of(walk, value)
    elif _is_builtin(function, first):
        return
    name = f"`{'.'.join(read)}`, a global that {label} reads"
    walk.add(Aspect.CODE, name, text, place_of(function.__code__))


def _attribute(value: Any, name: str) -> tuple[Any] | None:
    """Returns what a function reads of a global, if that is all that it reads; else None."""
    if isinstance(value, ModuleType):
        is_own = not is_library_module(value.__name__)
        return (getattr(value, name, "not defined"),) if is_own else None
    is_plain = not isinstance(value, type) and not is_library_module(type(value).__module__)
    attributes = getattr(value, "__dict__", {}) if is_plain else {}
    return (attributes[name],) if name in attributes else None


def _is_builtin(function: FunctionType, name: str) -> bool:
    builtins: Any = function.__globals__.get("__builtins__", {})
    return name in (builtins if isinstance(builtins, dict) else vars(builtins))


def _docstring(function: FunctionType) -> str | None:
    constants = function.__code__.co_consts
    return function.__doc__ if constants and constants[0] == function.__doc__ else None


@functools.lru_cache(maxsize=4096)
def _facts(code: CodeType, docstring: str | None) -> _Facts:
    instructions, constants, names = [], [], []
    for part in _with_inner(code):
        kept = part.co_consts[1:] if part is code and docstring is not None else part.co_consts
        constants += [_constant_text(each) for each in kept if not isinstance(each, CodeType)]
        shape = (part.co_argcount, part.co_posonlyargcount, part.co_kwonlyargcount)
        calls = (part.co_flags, part.co_names, part.co_varnames, part.co_freevars)
        instructions.append(repr((part.co_code, part.co_exceptiontable, shape, calls)))
        names += _global_names(part)
    text = shortened(f"({', '.join(constants)})")
    hashed = digest("\n".join(instructions).encode())
    return _Facts(hashed, text, tuple(sorted(set(names))))


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _constant_text(constant: Any) -> str:
    if isinstance(constant, frozenset):  # whose order is another one in each process
        return f"{{{', '.join(sorted(map(repr, constant)))}}}"
    return repr(constant)


def _global_names(code: CodeType) -> Iterator[tuple[str, ...]]:
    """The globals that a function reads, each with the attributes that it reads of it at once."""
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if chain and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(str(instruction.argval))
            continue
        if chain and instruction.opname in ("CACHE", "EXTENDED_ARG", "PUSH_NULL"):
            continue
        if chain:
            yield tuple(chain)
        is_read = instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        chain = [str(instruction.argval)] if is_read else []
    if chain:
        yield tuple(chain)
