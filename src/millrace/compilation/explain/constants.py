"""The values that a trace has left in a program as constants, and which have changed since.

    self.beta                   an attribute that `call` reads    numbers, strings, small arrays
    BETA   config.beta   beta   a global, or a closure            likewise
    [keras.Variable(1.0)]       a variable that no layer tracks   its value
    np.random.normal()          drawn once, by the trace

Only what traced code names counts. A function is traced if it is called `call`, `train_step` and so
on, or if one that is traced names it. What such code sets itself, as a counter, does not count.
"""

import dis
import functools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

from millrace._compat.jax_tracing import is_traced
from millrace._compat.keras_steps import stored_value
from millrace._compat.versions import functions_of
from millrace.compilation.explain.attributes import attributes_of
from millrace.compilation.explain.fingerprint import walk_model
from millrace.compilation.explain.functions import GENERATORS, Names, names_read
from millrace.compilation.explain.value_text import short_name
from millrace.compilation.explain.walk import is_library_file
from millrace.programs.plan import Mode

_MOST_BYTES = 1 << 16  # of an array that is copied, to notice a change in place
_MOST_VALUES = 64  # of a container
_LONGEST = 40  # characters of a value
_PLAIN = (type(None), bool, int, float, complex, str)
_GONE = "not there"
_VARIES = object()
_ACCESS = re.compile("(LOAD|STORE)_(ATTR|GLOBAL|DEREF|METHOD|SUPER_ATTR)")
_FORWARD = frozenset({"__call__", "call", "compute_mask"})
_LOSS = _FORWARD | {"compute_loss", "compute_metrics", "update_state", "result"}
_TRACED = {  # methods
    Mode.PREDICT: _FORWARD | {"predict_step"},
    Mode.TEST: _LOSS | {"test_step"},
    Mode.TRAIN: _LOSS | {"train_step", "apply", "apply_gradients", "update_step"},
}


class Constant(NamedTuple):
    """A value that traced code has read."""

    name: str
    read: Callable[[], object]
    value: object  # `_VARIES` if it may change in place
    values: tuple[object, ...]  # of one, or of the items of a container, when they were read


class Constants:
    """The constants of the programs of one model and mode, as they are now."""

    def __init__(self, model: keras.Model, mode: Mode):
        """Reads them.

        Args:
            model: whose programs have just been traced.
            mode: of the programs.
        """
        self.draws: dict[str, None] = {}  # what draws random numbers, and has drawn for the trace
        self._constants: dict[str, Constant] = {}
        walk = walk_model(model, mode)
        self._own = walk.own_variables or frozenset()
        found = [*walk.found, getattr(model, "optimizer", None)]
        functions = [each for each in found if isinstance(each, FunctionType)]
        traced = _Traced(functions, _TRACED[mode])
        for function in traced.functions:
            self._read_function(function, traced.sets)
        for each in found:
            self._read_attributes(each, traced, _TRACED[mode])

    def changed(self) -> Iterator[tuple[str, str, str]]:
        """Yields the name of each that has changed, with the old and the new value as text."""
        for name, read, before, old in self._constants.values():
            value = read()
            if value is before:
                continue
            new = self._values(value)
            if new is None or len(old) != len(new) or not all(map(_is_equal, old, new)):
                yield name, _text(old), type(value).__name__ if new is None else _text(new)

    def _read_function(self, function: FunctionType, sets: set[str]) -> None:
        label = f"{short_name(function.__qualname__)}()"
        for names in names_read(function):
            if not sets & set(names):
                read = functools.partial(_value_along, function, names)
                self._add(f"`{'.'.join(names)}`, a global that {label} reads", read)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            if name not in sets:
                self._add(f"`{name}`, closed over by {label}", functools.partial(_content, cell))

    def _read_attributes(self, thing: object, traced: "_Traced", methods: frozenset[str]) -> None:
        attributes = getattr(thing, "__dict__", None)
        if not attributes or isinstance(thing, ModuleType | FunctionType | keras.Variable):
            return
        kind, what = type(thing), type(thing).__name__
        if isinstance(thing, type):
            kind, what, shown = thing, f"class {thing.__name__}", attributes
        else:  # under the names of arguments
            shown = {name.lstrip("_") for name in attributes_of(thing) or ()}
        if isinstance(thing, keras.Layer):
            what, methods = f"{thing.name!r} ({what})", methods - {"__call__"}
        own = _traced_methods(kind, methods)
        names = (own.reads | traced.reads) - own.sets - traced.sets
        for name in names.intersection(attributes):
            plain = name.lstrip("_")
            if name in shown or plain in shown:
                read = functools.partial(getattr, thing, name, _GONE)
                self._add(f"`{plain}` of {what}", read)

    def _add(self, name: str, read: Callable[[], object]) -> None:
        value: Any = read()
        is_seed = isinstance(value, keras.random.SeedGenerator)
        draws = isinstance(value, GENERATORS) or isinstance(
            getattr(value, "__self__", None), GENERATORS
        )
        if draws or (is_seed and id(value.state) not in self._own):
            self.draws[name] = None
        elif (values := self._values(value)) is not None:
            is_fixed = type(value) in (*_PLAIN, tuple) and all(type(v) in _PLAIN for v in values)
            before = value if is_fixed else _VARIES
            self._constants.setdefault(name, Constant(name, read, before, values))

    def _values(self, value: object) -> tuple[object, ...] | None:
        """Returns the values of a value or a container; None if one is of no kind that counts."""
        items: Collection[object] = (value,)
        if isinstance(value, list | tuple | dict):
            items = value.values() if isinstance(value, dict) else value
            if not 0 < len(items) <= _MOST_VALUES:
                return None
        values = tuple(map(self._kept, items))
        return None if any(each is _GONE for each in values) else values

    def _kept(self, item: object) -> object:
        if type(item) in _PLAIN:
            return item
        if isinstance(item, keras.Variable) and id(item) not in self._own:
            return stored_value(item)
        if isinstance(item, np.ndarray | np.generic):
            return item.copy() if item.nbytes <= _MOST_BYTES else item
        return item if isinstance(item, jax.Array) and not is_traced(item) else _GONE


class _Traced:
    """The functions that are traced, and the attributes and other names that they read and set."""

    def __init__(self, functions: Iterable[FunctionType], methods: Collection[str]):
        todo = {id(each): each for each in functions}
        named = {name for each in todo.values() for name in _names(each.__code__)[0]}
        self.functions: list[FunctionType] = []
        self.reads: set[str] = set()
        self.sets: set[str] = set()
        begin = {*methods, *(f.__name__ for f in todo.values() if not _is_method(f))}
        wanted = set(methods) | (begin - named)  # such as a loss, which no other function names
        while ready := [key for key, f in todo.items() if f.__name__ in wanted]:
            for key in ready:
                function = todo.pop(key)
                reads, sets = _names(function.__code__)
                self.functions.append(function)
                self.reads |= reads
                self.sets |= sets
            wanted |= self.reads


@functools.lru_cache(maxsize=1024)
def _traced_methods(kind: type, methods: frozenset[str]) -> _Traced:
    members = (member for base in kind.__mro__[:-1] for member in vars(base).values())
    return _Traced((each for member in members for each in functions_of(member)), methods)


def _is_method(function: FunctionType) -> bool:
    around = function.__qualname__.rpartition(".")[0]
    return bool(around) and not around.endswith("<locals>")


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names that a function reads, and those that it sets, attributes included."""
    reads, sets = set[str](), set[str]()
    if is_library_file(code.co_filename):  # not told apart: that would take too long
        reads.update(code.co_names)
    else:
        for instruction in dis.get_instructions(code):
            if match := _ACCESS.match(instruction.opname):
                (reads if match[1] == "LOAD" else sets).add(str(instruction.argval))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            inner_reads, inner_sets = _names(inner)
            reads |= inner_reads
            sets |= inner_sets
    return frozenset(reads), frozenset(sets)


def _value_along(function: FunctionType, names: Names) -> Any:
    value: Any = function.__globals__.get(names[0], sys.modules.get(names[0], _GONE))
    for name in names[1:]:
        attributes = getattr(value, "__dict__", ())
        if name not in attributes:
            break
        value = getattr(value, name)
    return value


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _GONE


def _is_equal(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if isinstance(old, _PLAIN) or isinstance(new, _PLAIN):
        return type(old) is type(new) and old == new
    try:
        return old.dtype == new.dtype and np.array_equal(old, new)
    except Exception:  # donated, or on devices of other processes
        return True


def _text(values: tuple[object, ...]) -> str:
    value = values[0] if len(values) == 1 else list(values)
    text = str(value) if isinstance(value, np.ndarray | np.generic | jax.Array) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
