"""Descriptions of a user's functions and classes: all that decides their results.

    SCALE = 2.0                        global:    `SCALE`, a global that loss() reads
    def make_loss(rate):
        def loss(y, p, k=3):           default:   default of `k` in loss()
            return rate * SCALE * ...  closure:   `rate`, closed over by loss()
    np.random.rand()  time.time()      gap:       another value in each trace

The user's functions and classes among these values are described in turn, wherever they are. The
description of a function that reads random numbers, the clock, the environment or a file is
incomplete: each trace may give another program. Library functions are trusted.
"""

import builtins
import datetime as dt
import dis
import functools
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from millrace.base.records.compilation import Aspect
from millrace.compilation.explain.attributes import NO_EFFECT
from millrace.compilation.explain.value_text import closure_of, digest, shortened, text_of
from millrace.compilation.explain.walk import Walk, is_library_module, source_of

Names = tuple[str, ...]  # a global, and the attributes read of it: ("np", "random", "rand")

# Methods that run only where objects are made, saved or shown.
_NOT_TRACED = frozenset(
    {"get_config", "from_config", "get_build_config", "build_from_config", "__repr__", "__str__"}
    | {"save_own_variables", "load_own_variables", "get_compile_config", "compile_from_config"}
)
# Results of these cannot be described.
_MODULES = frozenset({"numpy.random", "random", "secrets", "socket", "time", "uuid"})
_OF_OS = frozenset({"getenv", "getpid", "urandom", "getrandom", "listdir", "scandir", "cpu_count"})
_OF_DATES = frozenset({"now", "today", "utcnow"})
_OBJECTS = (os.environ, os.environb)
_BUILTINS = ("open", "input", "id", "hash")
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts in the instructions of a function and of its inner functions."""

    instructions: str  # as a hash
    constants: str
    globals: tuple[Names, ...]
    imports: tuple[Names, ...]  # inside the function


def write_function(walk: Walk, function: FunctionType, label: str) -> None:
    """Adds the fields of a function of the user's."""
    code, docstring = function.__code__, function.__doc__
    has_docstring = docstring is not None and code.co_consts[:1] == (docstring,)
    facts, where = _facts(code, has_docstring), source_of(code)

    def add(name: str, value: str) -> None:
        walk.add(Aspect.CODE, name, value, where)

    add(f"instructions of {label}", facts.instructions)
    add(f"constants of {label}", facts.constants)
    for name, value in _defaults(function):
        add(f"default of `{name}` in {label}", text_of(walk, value))
    for name, text in closure_of(walk, function):
        add(f"`{name}`, closed over by {label}", text)
    for names in facts.globals:
        _write_global(walk, function, names, label)
    for module, *_ in facts.imports:
        walk.uses(module)
    for what in _gaps(function, facts):
        walk.miss(f"{what}, which {label} reads")
    for name, value in vars(function).items():
        if not name.startswith("__") and name not in NO_EFFECT:
            add(f"attribute `{name}` of {label}", text_of(walk, value))


def names_read(function: FunctionType) -> tuple[Names, ...]:
    """Returns the globals that a function reads, and what it may read of modules it imports."""
    facts = _facts(function.__code__, False)
    return *facts.globals, *facts.imports


def write_class(walk: Walk, kind: type, label: str) -> None:
    """Adds the fields of a class of the user's: base classes, methods and attributes."""
    bases = [text_of(walk, base) for base in kind.__mro__[1:] if base is not object]
    walk.add(Aspect.CODE, f"base classes of {label}", ", ".join(bases))
    for name, member in vars(kind).items():
        if name in _NOT_TRACED:
            continue
        functions = list(_functions_of(member))
        for function in functions:
            if isinstance(function, FunctionType):
                text_of(walk, function)  # puts it into the queue
        is_special = name.startswith("__") and name.endswith("__")
        if not functions and not is_special and not name.startswith("_abc_"):
            text = text_of(walk, member)
            walk.add(Aspect.CODE, f"`{name}`, an attribute of class {label}", text)


def _functions_of(member: object) -> Iterator[Any]:
    if isinstance(member, FunctionType):
        yield member
    elif isinstance(member, staticmethod | classmethod):
        yield member.__func__
    elif isinstance(member, property):
        yield from filter(None, (member.fget, member.fset))
    elif isinstance(member, functools.cached_property):
        yield member.func
    elif type(member).__name__ in ("getset_descriptor", "member_descriptor"):
        yield None  # made by the class statement, without information


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    values, code = function.__defaults__ or (), function.__code__
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    yield from zip(names, values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _write_global(walk: Walk, function: FunctionType, names: Names, label: str) -> None:
    """Adds the value of a global, unless it is one of Python's own names."""
    first, *rest = names
    text, read = "not defined", [first]
    if first in function.__globals__:
        value = function.__globals__[first]
        while rest and (attribute := _attribute(value, rest[0])) is not None:
            value = attribute[0]
            read.append(rest.pop(0))
        if isinstance(value, ModuleType) and not is_library_module(value.__name__):
            walk.miss(f"module {value.__name__}, which {label} passes on")
        text = text_of(walk, value)
    elif first in function.__builtins__:
        return
    name = f"`{'.'.join(read)}`, a global that {label} reads"
    walk.add(Aspect.CODE, name, text, source_of(function.__code__))


def _attribute(value: object, name: str) -> tuple[Any] | None:
    """Returns the attribute of a value, in a tuple, if it stands for the value; else None."""
    if isinstance(value, ModuleType):
        is_own = not is_library_module(value.__name__)
        return (getattr(value, name, "not defined"),) if is_own else None
    is_plain = not isinstance(value, type) and not is_library_module(type(value).__module__)
    attributes = getattr(value, "__dict__", {}) if is_plain else {}
    return (attributes[name],) if name in attributes else None


@functools.lru_cache(maxsize=4096)
def _facts(code: CodeType, has_docstring: bool) -> _Facts:
    hashed: list[str] = []
    constants: list[str] = []
    names: set[Names] = set()
    imports: list[Names] = []
    for each in _with_inner(code):
        skipped = each is code and has_docstring
        kept = [c for c in each.co_consts[skipped:] if not isinstance(c, CodeType)]
        constants += map(_constant_text, kept)
        shape = (each.co_argcount, each.co_posonlyargcount, each.co_kwonlyargcount)
        calls = (each.co_flags, each.co_names, each.co_varnames, each.co_freevars)
        hashed.append(repr((each.co_code, each.co_exceptiontable, shape, calls)))
        instructions = list(dis.get_instructions(each))
        names.update(_global_names(instructions))
        imports += _imports(instructions, each.co_names)
    return _Facts(
        instructions=digest("\n".join(hashed).encode()),
        constants=shortened(f"({', '.join(constants)})"),
        globals=tuple(sorted(names)),
        imports=tuple(imports),
    )


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _constant_text(constant: object) -> str:
    if isinstance(constant, frozenset):  # its order differs between processes
        return f"{{{', '.join(sorted(map(repr, constant)))}}}"
    return repr(constant)


def _global_names(instructions: Sequence[dis.Instruction]) -> Iterator[Names]:
    """Yields the globals that a function reads, each with the attributes read from it."""
    chain: Names = ()
    for instruction in instructions:
        if chain and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain += (str(instruction.argval),)
        elif not chain or instruction.opname not in ("CACHE", "EXTENDED_ARG", "PUSH_NULL"):
            if chain:
                yield chain
            is_read = instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
            chain = (str(instruction.argval),) if is_read else ()
    if chain:
        yield chain


def _imports(instructions: Sequence[dis.Instruction], used: Names) -> Iterator[Names]:
    """Yields the modules that a function imports inside, each with every name that it uses.

    Names are not matched to modules: too many pairs are better than too few.
    """
    modules = [str(i.argval) for i in instructions if i.opname == "IMPORT_NAME"]
    for module in modules:
        yield (module,)
        yield from ((module, name) for name in used if name not in modules)


def _gaps(function: FunctionType, facts: _Facts) -> Iterator[str]:
    """Yields the names of values that a function reads and that cannot be described."""
    for names in facts.globals:
        if names[0] in function.__globals__:
            yield from _gap_along(function.__globals__[names[0]], names)
        elif names[0] in _BUILTINS:
            yield f"{names[0]}()"
    for names in facts.imports:
        if names[1:] == () and not is_library_module(names[0]):  # its code is not described
            yield f"module {names[0]}"
        if names[0] in sys.modules:
            yield from _gap_along(sys.modules[names[0]], names)


def _gap_along(value: object, names: Names) -> Iterator[str]:
    """Yields the first of a value and its attributes that cannot be described."""
    if _is_unknown(value):
        yield ".".join(names)
        return
    for number, name in enumerate(names[1:], 2):
        if not isinstance(value, ModuleType | type):
            return
        is_date = isinstance(value, type) and issubclass(value, dt.date)
        value = getattr(value, name, None)
        if (is_date and name in _OF_DATES) or _is_unknown(value):
            yield ".".join(names[:number])
            return


def _is_unknown(value: object) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__ in _MODULES
    if isinstance(value, GENERATORS) or any(value is each for each in _OBJECTS):
        return True
    owner = getattr(value, "__self__", None)
    if isinstance(owner, GENERATORS) or (owner is builtins and value in (open, input, id, hash)):
        return True
    module = getattr(value, "__module__", None)
    if not callable(value):
        return False
    is_of_os = module in ("os", "posix", "nt") and getattr(value, "__name__", "") in _OF_OS
    return module in _MODULES or is_of_os
