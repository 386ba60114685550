"""Identity of the programs of functions and loops, for finding them and for the compile log.

    for epoch in range(10):
        millrace.repeat(100, lambda x: step(model, x), infeed=infeed)

These ten lambdas have the same code and refer to the same objects, so they run one program. If
`model` or `step` were created in the Python loop there would be ten programs, because objects that
a body refers to are constants of its program.

train(x, model, how="warm")     argument x: shape, dtype      model: which object, its layers
                                static argument how: 'warm'   variables that it touches
"""

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import jax
import keras
import numpy as np

from millrace.api.own_loops.body import arguments_of
from millrace.api.own_loops.compiled import ProgramArguments, ProgramDescription, Subject
from millrace.api.own_loops.iteration import Iteration
from millrace.api.own_loops.scope import Touched
from millrace.base.pytrees import Array
from millrace.base.records.compilation import Aspect, KeyField, ProgramKey
from millrace.compilation.executables.call_description import number_of
from millrace.compilation.explain.fingerprint import describe as describe_function
from millrace.compilation.explain.key import key_of_call
from millrace.programs.feeds.infeed_queue import InfeedQueue


def identity(function: object) -> tuple[Hashable, list[object]]:
    """Returns a key that is equal for equal functions, and the objects that must outlive the key.

    Functions are equal if their code and the objects that they refer to are, directly or through
    functions of the same module. Attributes of objects do not count. JAX compares less than that.
    The key has addresses of objects in it, so they must live as long as the key is in use.
    """
    alive: list[object] = []
    return _identity(function, alive, set()), alive


def _identity(function: object, alive: list[object], seen: set[int]) -> Hashable:
    alive.append(function)
    function = _of_user(function)
    if isinstance(function, MethodType):
        return _identity(function.__func__, alive, seen), _key(function.__self__, alive)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return id(function)
    seen.add(id(function))
    keys = []
    for value in references_of(function):
        own = isinstance(value, FunctionType) and value.__globals__ is function.__globals__
        keys.append(_identity(value, alive, seen) if own else _key(value, alive))
    return function.__code__, tuple(keys)


def _of_user(function: Any) -> Any:
    """Returns the function of the user, where another one that calls it notes it as `of_user`."""
    return getattr(function, "of_user", function)


def references_of(function: FunctionType) -> list[Any]:
    """Returns the defaults, closed-over values and globals of a function; None where unset."""
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(None)
    return values + [function.__globals__.get(name) for name in _names(function.__code__)]


def _names(code: CodeType) -> list[str]:
    """Returns the global and other names in a function and in those that it defines."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _names(constant)
    return names


def _key(value: object, alive: list[object]) -> Hashable:
    alive.append(value)
    is_plain = isinstance(value, int | float | str | bytes | bool | None)
    return (type(value), value) if is_plain else id(value)


ObjectIds = list[tuple[str, str]]  # name of an object, and its number: ("model object", "2")


def key_of_function(
    name: str,
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    touched: Touched,
    object_ids: ObjectIds,
) -> ProgramKey:
    """Returns the key of the program of a user's function.

    Args:
        name: of the program.
        function: of the user.
        args: by position: arrays, and static arguments.
        kwargs: by name.
        touched: variables of the program.
        object_ids: objects that the program uses.
    """
    static = [k for k, value in enumerate(args) if _is_static(value)]
    named = [k for k, value in kwargs.items() if _is_static(value)]
    key = key_of_call(
        name,
        function,
        tuple(map(_with_bools_as_text, args)),
        {k: _with_bools_as_text(value) for k, value in kwargs.items()},
        static=(*static, *named),
        identity=object_ids,
    )
    compiled_by = KeyField(Aspect.OPTION, "compiled by", "millrace")
    return replace(key, fields=(*key.fields, compiled_by, *_state(touched)))


def objects_of(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> ObjectIds:
    """Returns names and numbers of the objects among a function's arguments and references."""
    object_ids: ObjectIds = []
    models = [x for x in _objects((args, kwargs)) if isinstance(x, keras.Model)]
    function = _of_user(function)
    if isinstance(function, FunctionType):
        models += [x for x in references_of(function) if isinstance(x, keras.Model)]
    if models:
        object_ids.append(("model object", str(number_of(models[0]))))
    for name, value in _named(function, args, kwargs):
        numbers = [number_of(x) for x in _objects(value) if x is not next(iter(models), None)]
        if numbers:
            object_ids.append((f"object passed as {name}", ", ".join(map(str, numbers))))
    return object_ids


def models_of(object_ids: ObjectIds) -> tuple[str, ...]:
    """Returns numbers of models: a program of another model is not a recompilation."""
    return tuple(number for name, number in object_ids if name == "model object")


def loop_subject(iteration: Iteration, infeed: InfeedQueue | None, number: int) -> Subject:
    """Returns the description, for the compile log, of a loop that runs on its own.

    Args:
        iteration: of the loop.
        infeed: of the loop; None without one.
        number: the same for equal bodies and conditions.
    """
    body, condition = iteration.body.function, iteration.condition
    structure = jax.tree.structure(iteration.specs)
    # Views of one number, without memory: only their shapes and dtypes count.
    element = jax.tree.map(
        lambda spec: np.broadcast_to(np.zeros((), spec.dtype), spec.shape), iteration.element
    )
    infeeds = [] if infeed is None else [("object passed as infeed", str(number_of(infeed)))]
    object_ids = [("function object", str(number)), *objects_of(body, (), {}), *infeeds]

    def describe(arguments: ProgramArguments) -> ProgramDescription:
        *leaves, _ = cast(Sequence[Array], arguments[-1])  # the last one is the limit
        carried = jax.tree.unflatten(structure, leaves)
        args, kwargs = arguments_of(carried, element)
        key = key_of_function(iteration.name, body, args, kwargs, iteration.touched, object_ids)
        if condition is not None:
            more = describe_function(condition.function, "condition")
            # Body and condition may both be called <lambda>.
            fields = [
                replace(field, name=f"{field.name} of the condition") for field in more.fields
            ]
            is_complete = key.is_complete and more.is_complete
            key = replace(key, fields=(*key.fields, *fields), is_complete=is_complete)
        return ProgramDescription(key, (carried, element))

    return Subject(iteration.name, number, models_of(object_ids), describe)


class PieceSubjects:
    """Makes the descriptions, for the compile log, of the pieces of one function."""

    def __init__(self, subject: Subject, arrays: Sequence[Array]):
        """Begins with no piece.

        Args:
            subject: of the function.
            arrays: its last argument, the arrays of the user.
        """
        self._subject, self._number = subject, 0
        self._description = subject.describe((arrays,))

    def next(self, loop: str | None = None) -> Subject:
        """Returns the description of the next piece: the loop of this name, or a segment."""
        name = whole = self._subject.name
        if loop is not None and loop != whole:
            name = f"{loop} in {whole}"
        elif loop is None and self._number:
            name = f"{whole}, part {self._number + 1}"
        number = self._subject.number, self._number
        self._number += 1
        key = replace(self._description.key, program=name)
        description = self._description._replace(key=key)
        return replace(
            self._subject,
            name=name,
            number=number,
            describe=lambda _: description,
            seconds=self._subject.seconds if self._number == 1 else 0.0,
            runs_as=whole,
        )


def _state(touched: Touched) -> Iterator[KeyField]:
    roles = (("assigned", touched.changed), ("only read", touched.fixed))
    for role, variables in roles:
        for number, variable in enumerate(variables, 1):
            shape = ",".join(map(str, variable.shape))
            name = f"variable {number} of those that are {role}"
            yield KeyField(Aspect.STATE, name, f"{variable.dtype}[{shape}]", variable.path)


def _is_static(value: object) -> bool:
    """Whether all of an argument is part of the program."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and not any(map(is_array, leaves))


def _with_bools_as_text(value: object) -> object:
    """Returns an argument with text for truth values, which are static arguments."""
    if _is_static(value):
        return value
    return jax.tree.map(lambda leaf: repr(leaf) if isinstance(leaf, bool) else leaf, value)


def _objects(value: object) -> list[Any]:
    leaves: list[object] = jax.tree.leaves(value)
    return [leaf for leaf in leaves if not is_array(leaf) and not isinstance(leaf, str | bool)]


def _named(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # a builtin function, or wrong arguments
        yield from kwargs.items()
        return
    yield from bound.arguments.items()


def is_array(leaf: object) -> bool:
    """Whether a value is an argument of a program; other values are part of the program."""
    return not isinstance(leaf, bool) and isinstance(
        leaf, int | float | complex | np.ndarray | np.generic | jax.Array
    )
