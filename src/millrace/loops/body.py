"""What the user writes for a loop: called with what it carries and an element, and checked.

inputs [a, b]   element (x, y)        body(a, b, x, y)         -> a, b
inputs c        element {"x": x}      body(c, x=x)             -> c
no inputs       element x             body(x)                  -> nothing
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace.errors import DTypeError, LoopError, OptionError


class Carried:
    """The values that go round a loop, as the user gave them: none, one or several."""

    def __init__(self, inputs: Any):
        self.is_single = inputs is not None and not isinstance(inputs, list | tuple)
        given = [] if inputs is None else [inputs] if self.is_single else list(inputs)
        self.values = [jax.tree.map(as_array, value) for value in given]
        self.specs = [jax.tree.map(_spec, value) for value in self.values]

    def bare(self, values: list[Any]) -> Any:
        """Returns values as the loop returns them: bare if it is one, a list if several."""
        return None if not values else values[0] if len(values) == 1 else values


def as_array(value: Any) -> Any:
    """Returns a value as a device holds it; Python numbers become arrays of 32 bits.

    Raises:
        DTypeError: for what is no number.
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
    # Not of weak type: what goes round must have one type.
    return jax.lax.convert_element_type(array, array.dtype)


class Body:
    """A body or a condition, as a function of the carried values and an element."""

    def __init__(self, function: Callable[..., Any], role: str = "body"):
        if not callable(function):
            raise LoopError(
                f"The {role} of a loop is a function. Received: {function!r} of type "
                f"{type(function).__name__}."
            )
        self.function = function
        self._role = role

    def check_arity(self, values: list[Any], element: Any = None) -> None:
        """Raises LoopError if the function does not take what the loop gives it."""
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):  # some builtin functions do not tell
            return
        args, kwargs = arguments_of(values, element)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            fed = len(args) - len(values)
            source = (
                f"{sorted(kwargs)} by name" if kwargs else f"{fed}" if element is not None else "0"
            )
            raise LoopError(
                f"The {self._role} of a loop, {_name(self.function)}{signature}, does not take "
                f"what the loop gives it: {len(values)} from inputs and {source} from the infeed "
                f"({error}). It takes {_wanted(signature)}: inputs come first, in their order, "
                "then what one element of the infeed has."
            ) from None

    def __call__(self, values: list[Any], element: Any = None) -> Any:
        """Calls the function with the carried values and, after them, the element."""
        args, kwargs = arguments_of(values, element)
        return self.function(*args, **kwargs)


def arguments_of(values: list[Any], element: Any) -> tuple[list[Any], dict[str, Any]]:
    """Returns what a body is called with: by position, and by name."""
    if isinstance(element, dict):
        return list(values), element
    if isinstance(element, tuple | list):
        return [*values, *element], {}
    return (list(values) if element is None else [*values, element]), {}


def next_values(result: Any, specs: list[Any]) -> list[Any]:
    """Returns what a body returned as the values of the next turn.

    Raises:
        LoopError: if they are not as many as the inputs, or of other shapes or dtypes.
        OptionError: if something that is no value comes before one.
    """
    several = isinstance(result, list | tuple) and not (
        len(specs) == 1 and jax.tree.structure(result) == jax.tree.structure(specs[0])
    )
    values = list(result) if several else [result]
    while len(values) > len(specs) and values[-1] is None:
        values.pop()  # what enqueue() returned, say
    if len(values) > len(specs) and any(value is None for value in values):
        raise OptionError(
            f"The body of a loop returned {len(values)} results, of which number "
            f"{next(k for k, value in enumerate(values) if value is None)} is no value and comes "
            "before one. Return the values first, in the order of inputs, and operations such as "
            "enqueue() after them."
        )
    if len(values) != len(specs):
        raise LoopError(
            f"The body of a loop returned {len(values)} values, and inputs has {len(specs)}. "
            "Return the next value of each, in their order, and nothing else; values leave a "
            "loop through millrace.OutfeedQueue."
        )
    values = [jax.tree.map(as_array, value) for value in values]
    found = [jax.tree.map(_spec, value) for value in values]
    if found != specs:
        raise LoopError(
            f"The body of a loop returned {_list(found)}, and inputs are {_list(specs)}. What "
            "goes round a loop has fixed types: cast it in the body "
            "(keras.ops.cast(value, dtype)), or give inputs of the type that the body returns."
        )
    return values


def truth_of(value: Any) -> Any:
    """Returns what a condition returned as one truth value.

    Raises:
        LoopError: if it is none.
    """
    array = jnp.asarray(value)
    if array.shape != () or array.dtype != jnp.bool_:
        raise LoopError(
            f"The condition of a loop returned {_text(array)}, and not one truth value. Compare, "
            "and reduce an array with keras.ops.all() or keras.ops.any()."
        )
    return array


def _spec(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _text(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _list(specs: list[Any]) -> str:
    return "[" + ", ".join(str(jax.tree.map(_Written, spec)) for spec in specs) + "]"


class _Written:
    """Shows a spec as JAX does."""

    def __init__(self, spec: Any):
        self._spec = spec

    def __repr__(self) -> str:
        return _text(self._spec)


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _wanted(signature: inspect.Signature) -> str:
    parameters = signature.parameters.values()
    needed = sum(p.default is p.empty and p.kind not in _VARIADIC for p in parameters)
    return f"{needed} argument{'s' * (needed != 1)}" if needed else "none"


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
