"""The user's body and condition of a loop: how they are called, and checks of their results.

inputs [a, b]   element (x, y)        body(a, b, x, y)         -> a, b
inputs c        element {"x": x}      body(c, x=x)             -> c
no inputs       element x             body(x)                  -> nothing
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.typing import ArrayLike

from millrace.base.pytrees import Array, ArrayTree, Spec, SpecTree
from millrace.compilation.executables.call_description import name_of, shapes_of
from millrace.errors import DTypeError, LoopError, OptionError


class Carried:
    """The values that a loop carries from one iteration to the next: none, one or several."""

    def __init__(self, inputs: object):
        """Makes arrays of the user's values.

        Args:
            inputs: None, one value, or a list or tuple of several.
        """
        if inputs is None:
            inputs = []
        elif not isinstance(inputs, list | tuple):
            inputs = [inputs]
        self.values: list[ArrayTree] = [jax.tree.map(as_array, value) for value in inputs]
        self.specs: list[SpecTree] = [jax.tree.map(_spec, value) for value in self.values]


def result_of_loop(values: Sequence[ArrayTree]) -> ArrayTree:
    """Returns the last values of a loop to the user: one as it is, several as a list."""
    return None if not values else values[0] if len(values) == 1 else values


def as_array(value: ArrayLike | keras.Variable) -> jax.Array:
    """Returns a value as a device holds it; Python numbers become arrays of 32 bits.

    Raises:
        DTypeError: for anything but arrays, variables and numbers.
    """
    if isinstance(value, keras.Variable):
        value = value.value
    try:
        # NumPy's memory may change while the loop runs, and JAX would use it in its place.
        array = jnp.array(value) if isinstance(value, np.ndarray) else jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise DTypeError(
            f"A loop carries arrays and numbers. Received: {value!r} of type "
            f"{type(value).__name__}. Objects such as models are used in the body as they are: "
            "leave them out of inputs."
        ) from error
    # Not of weak type: a carried value must have one type.
    return jax.lax.convert_element_type(array, array.dtype)


def loop_name(body: Callable[..., object], condition: Callable[..., object] | None) -> str:
    """Returns the name of a loop in records, such as "repeat of step"."""
    return f"{'repeat' if condition is None else 'while_loop'} of {name_of(body)}"


class Body:
    """A body or a condition, as a function of the carried values and an element."""

    def __init__(self, function: Callable[..., object], role: str = "body"):
        if not callable(function):
            raise LoopError(
                f"The {role} of a loop is a function. Received: {function!r} of type "
                f"{type(function).__name__}."
            )
        self.function = function
        self._role = role

    def check_arity(
        self, values: Sequence[ArrayTree], element: "ArrayTree | SpecTree" = None
    ) -> None:
        """Raises LoopError if the function cannot be called with these arguments."""
        args, kwargs = arguments_of(values, element)
        if (found := misfit(self.function, args, kwargs)) is not None:
            signature, error = found
            source = f"{sorted(kwargs)} by name" if kwargs else f"{len(args) - len(values)}"
            raise LoopError(
                f"The {self._role} of a loop, {plain_name(self.function)}{signature}, does not "
                f"take the arguments of the loop: {len(values)} from inputs and {source} from the "
                f"infeed ({error}). It takes {_wanted(signature)}: inputs come first, in their "
                "order, then the items of one element of the infeed."
            )

    def __call__(self, values: Sequence[ArrayTree], element: ArrayTree = None) -> Any:
        """Calls the function with the carried values and, after them, the element."""
        args, kwargs = arguments_of(values, element)
        return self.function(*args, **kwargs)


def misfit(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[inspect.Signature, TypeError] | None:
    """Returns why a function cannot be called with these arguments, and its signature; or None."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtin functions have none
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return signature, error
    return None


def arguments_of(
    values: Sequence[ArrayTree], element: "ArrayTree | SpecTree"
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of a body: by position, and by name."""
    if isinstance(element, dict):
        return list(values), element
    if isinstance(element, tuple | list):
        return [*values, *element], {}
    return (list(values) if element is None else [*values, element]), {}


def next_values(result: object, specs: Sequence[SpecTree]) -> list[Any]:
    """Returns the result of a body as the carried values of the next iteration.

    Raises:
        LoopError: if their number, shapes or dtypes are not those of the inputs.
        OptionError: if None comes before a value.
    """
    is_one = len(specs) == 1 and jax.tree.structure(result) == jax.tree.structure(specs[0])
    values: list[Any] = (
        list(result) if isinstance(result, list | tuple) and not is_one else [result]
    )
    while len(values) > len(specs) and values[-1] is None:
        values.pop()  # the result of enqueue(), say
    if len(values) > len(specs) and any(value is None for value in values):
        raise OptionError(
            f"The body of a loop returned {len(values)} results, of which number "
            f"{next(k for k, value in enumerate(values) if value is None)} is None and comes "
            "before a value. Return the values first, in the order of inputs, and operations such "
            "as enqueue() after them."
        )
    if len(values) != len(specs):
        raise LoopError(
            f"The body of a loop returned {len(values)} values, and inputs has {len(specs)}. "
            "Return the next value of each, in their order, and nothing else; values leave a "
            "loop through millrace.OutfeedQueue."
        )
    values = [jax.tree.map(as_array, value) for value in values]
    new_specs = [jax.tree.map(_spec, value) for value in values]
    if new_specs != specs:
        raise LoopError(
            f"The body of a loop returned {_list(new_specs)}, and inputs are {_list(specs)}. The "
            "carried values of a loop have fixed types: cast them in the body "
            "(keras.ops.cast(value, dtype)), or give inputs of the type that the body returns."
        )
    return values


def truth_of(value: ArrayLike) -> jax.Array:
    """Returns the result of a condition as one truth value.

    Raises:
        LoopError: if it is an array or of another dtype than bool.
    """
    array = jnp.asarray(value)
    if array.shape != () or array.dtype != jnp.bool_:
        raise LoopError(
            f"The condition of a loop returned {shapes_of(array)}, and not one truth value. "
            "Compare, and reduce an array with keras.ops.all() or keras.ops.any()."
        )
    return array


def _spec(leaf: Array) -> Spec:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _list(specs: Sequence[SpecTree]) -> str:
    return "[" + ", ".join(str(jax.tree.map(_SpecText, spec)) for spec in specs) + "]"


class _SpecText:
    """Prints a spec as JAX does: float32[2,3]."""

    def __init__(self, spec: Spec):
        self._spec = spec

    def __repr__(self) -> str:
        return shapes_of(self._spec)


def plain_name(function: Callable[..., object]) -> str:
    """Returns the name of a function, or that of its type."""
    return getattr(function, "__name__", type(function).__name__)


def _wanted(signature: inspect.Signature) -> str:
    parameters = signature.parameters.values()
    needed = sum(p.default is p.empty and p.kind not in _VARIADIC for p in parameters)
    return f"{needed} argument{'s' * (needed != 1)}" if needed else "none"


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
