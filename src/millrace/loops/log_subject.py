"""What identifies the programs of functions and loops, for the compile log.

    for epoch in range(10):
        millrace.repeat(100, lambda x: step(model, x), infeed=infeed)

These ten functions have the same code and refer to the same objects, so they run one program. Had
`model` or `step` been made in the loop, they would be ten: what a body refers to is a constant of
its program.

train(x, model, how="warm")     argument x: shape, dtype      model: which object, its layers
                                static argument how: 'warm'   variables that are touched
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import CodeType, FunctionType, MethodType
from typing import Any

import jax
import keras
import numpy as np

from millrace.compiling.call_description import name_of, number_of
from millrace.explain.fingerprint import describe
from millrace.explain.key import key_of_call
from millrace.loops.body import arguments_of
from millrace.loops.compiled import Subject
from millrace.loops.scope import Touched
from millrace.records.compilation import Aspect, KeyField, ProgramKey


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


Identity = list[tuple[str, str]]


def key_of_function(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    touched: Touched,
    identity: Identity,
) -> ProgramKey:
    """Returns the key of a program that a function of the user's is.

    Args:
        name: of the program.
        function: of the user.
        args: by position: arrays, and what is part of the program.
        kwargs: by name.
        touched: variables that the program is given.
        identity: which objects it is made of.
    """
    static = [k for k, value in enumerate(args) if _is_static(value)]
    named = [k for k, value in kwargs.items() if _is_static(value)]
    key = key_of_call(
        name,
        function,
        tuple(map(_spoken, args)),
        {k: _spoken(value) for k, value in kwargs.items()},
        static=(*static, *named),
        identity=identity,
    )
    compiled_by = KeyField(Aspect.OPTION, "compiled by", "millrace")
    return replace(key, fields=(*key.fields, compiled_by, *_state(touched)))


def objects_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Identity:
    """Returns which objects a function is given and refers to, by what they are called."""
    found: Identity = []
    models = [x for x in _objects((args, kwargs)) if isinstance(x, keras.Model)]
    if isinstance(function, FunctionType):
        models += [x for x in referred(function) if isinstance(x, keras.Model)]
    if models:
        found.append(("model object", str(number_of(models[0]))))
    for name, value in _named(function, args, kwargs):
        numbers = [number_of(x) for x in _objects(value) if x is not next(iter(models), None)]
        if numbers:
            found.append((f"object passed as {name}", ", ".join(map(str, numbers))))
    return found


def models_of(identity: Identity) -> tuple[str, ...]:
    """Returns numbers of models: programs of other ones are no recompilations."""
    return tuple(number for name, number in identity if name == "model object")


class MadeOf:
    """What a loop that is called on its own is made of."""

    def __init__(self, body: Any, condition: Any, element: Any, infeed: Any, number: int):
        """Takes note of the parts of a loop.

        Args:
            body: of the user.
            condition: of the user, None without.
            element: specs of an element of the infeed; None without.
            infeed: or None.
            number: equal for bodies and conditions that are the same.
        """
        self.name = f"{'repeat' if condition is None else 'while_loop'} of {name_of(body)}"
        self.number = number
        self._body, self._condition = body, condition
        # Of no memory: only their shapes and dtypes are looked at.
        self._element = jax.tree.map(
            lambda spec: np.broadcast_to(np.zeros((), spec.dtype), spec.shape), element
        )
        infeeds = [] if infeed is None else [("object passed as infeed", str(number_of(infeed)))]
        objects = objects_of(body, (), {})
        self._identity = [("function object", str(number)), *objects, *infeeds]

    def subject(self, touched: Touched, given: Callable[[tuple[Any, ...]], Any]) -> Subject:
        """Returns what the compile log is told.

        Args:
            touched: variables of the loop.
            given: returns the values that go round, of the arguments of the program.
        """

        def key(arguments: tuple[Any, ...]) -> ProgramKey:
            args, kwargs = arguments_of(list(given(arguments)), self._element)
            body = key_of_function(
                self.name, self._body, tuple(args), kwargs, touched, self._identity
            )
            if self._condition is None:
                return body
            more = describe(self._condition, "condition")
            # Body and condition may both be called <lambda>.
            fields = [
                replace(field, name=f"{field.name} of the condition") for field in more.fields
            ]
            is_complete = body.is_complete and more.is_complete
            return replace(body, fields=(*body.fields, *fields), is_complete=is_complete)

        def shown(arguments: tuple[Any, ...]) -> Any:
            return given(arguments), self._element

        return Subject(self.name, self.number, models_of(self._identity), key, shown)


def _state(touched: Touched) -> Iterator[KeyField]:
    roles = (("assigned", touched.changed), ("only read", touched.fixed))
    for role, variables in roles:
        for number, variable in enumerate(variables, 1):
            shape = ",".join(map(str, variable.shape))
            name = f"variable {number} of those that are {role}"
            yield KeyField(Aspect.STATE, name, f"{variable.dtype}[{shape}]", variable.path)


def _is_static(value: Any) -> bool:
    """Whether an argument is part of the program as a whole."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and not any(map(is_array, leaves))


def _spoken(value: Any) -> Any:
    """Returns an argument with truth values among its arrays as text: they are not arrays here."""
    if _is_static(value):
        return value
    return jax.tree.map(lambda leaf: repr(leaf) if isinstance(leaf, bool) else leaf, value)


def _objects(value: Any) -> list[Any]:
    leaves: Iterable[Any] = jax.tree.leaves(value)
    return [leaf for leaf in leaves if not is_array(leaf) and not isinstance(leaf, str | bool)]


def _named(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # a builtin function, or arguments that it does not take
        yield from kwargs.items()
        return
    yield from bound.arguments.items()


def is_array(leaf: Any) -> bool:
    """Whether a value is an argument of programs; others are part of them."""
    return not isinstance(leaf, bool) and isinstance(
        leaf, int | float | complex | np.ndarray | np.generic | jax.Array
    )
