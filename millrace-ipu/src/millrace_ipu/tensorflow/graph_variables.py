"""Variables of TensorFlow 1, which functions ask for by name.

with variable_scope("a"):
    w = get_variable("w", [3, 4])      a new variable "a/w"; the same one for the same name

A function is traced more than once here, so a name that exists gives its variable in every case.
Each graph has its own variables.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import keras
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from millrace.errors import OptionError
from millrace.extend import ScopedValue
from millrace_ipu.tensorflow.dtypes import as_dtype

AUTO_REUSE = "AUTO_REUSE"


class Graph:
    """A set of variables by their names. Operations that are never run cost nothing."""

    def __init__(self) -> None:
        self.variables: dict[str, keras.Variable] = {}

    @contextlib.contextmanager
    def as_default(self) -> Iterator["Graph"]:
        """Lets `get_variable` look for variables here, in this thread."""
        with _graph.bound_to(self), _scope.bound_to(VariableScope()):
            yield self


@dataclasses.dataclass(frozen=True)
class VariableScope:
    """The beginning of the names of variables, and what they are made by.

    Args:
        name: such as `"a/b"`; an empty string outside of all scopes.
        initializer: of variables without one of their own.
        dtype: likewise; None is float32.
    """

    name: str = ""
    initializer: Any = None
    dtype: Any = None

    def reuse_variables(self) -> None:
        """Has no effect: a name that exists gives its variable in every case."""


_default = Graph()
_graph = ScopedValue[Graph | None](None)
_scope = ScopedValue(VariableScope())


def forget_variables() -> None:
    """Lets the default graph begin without variables."""
    _default.variables.clear()


def get_variable_scope() -> VariableScope:
    """Returns the scope that names begin with."""
    return _scope.get()


@contextlib.contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    values: object = None,
    initializer: Any = None,
    *_: object,
    dtype: DTypeLike | None = None,
    **__: object,
) -> Iterator[VariableScope]:
    """Lets the names of variables in its block begin with a name.

    Args:
        name_or_scope: the name, within that of the scope around it; or a scope, in place of that.
        default_name: the name where `name_or_scope` is None.
        values: without effect.
        initializer: of variables in the block without one of their own.
        dtype: likewise.
    """
    scope = name_or_scope
    if not isinstance(scope, VariableScope):
        around = _scope.get()
        name = "/".join(filter(None, (around.name, scope or default_name)))
        scope = dataclasses.replace(around, name=name)
    given = {"initializer": initializer, "dtype": dtype}
    given = {name: value for name, value in given.items() if value is not None}
    scope = dataclasses.replace(scope, **given)
    with _scope.bound_to(scope):
        yield scope


def get_variable(
    name: str,
    shape: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    initializer: Callable[..., Any] | ArrayLike | str | None = None,
    regularizer: object = None,
    trainable: bool | None = True,
    *_: object,
    **__: object,
) -> keras.Variable:
    """Returns the variable of a name in the current scope; makes it if there is none.

    Args:
        name: of the variable.
        shape: of a new one; None takes that of a constant initializer.
        dtype: of a new one; None takes that of a constant initializer, or float32.
        initializer: one of Keras, a function of shape and dtype, or a constant; None is
            Glorot's uniform one, and zeros for whole numbers.
        regularizer: refused unless it is None.
        trainable: whether gradients are taken of it.

    Raises:
        OptionError: for a shape that is missing, or not that of the variable; and for a
            regularizer.
    """
    scope = _scope.get()
    full = f"{scope.name}/{name}" if scope.name else name
    if regularizer is not None:
        raise OptionError(
            f"regularizer of get_variable({full!r}) would add to no loss. Remove it, and add the "
            "term to the loss: loss + regularizer(variable)."
        )
    initializer = scope.initializer if initializer is None else initializer
    constant = None
    if initializer is not None and not callable(initializer) and not isinstance(initializer, str):
        constant = np.asarray(initializer, None if dtype is None else as_dtype(dtype))
        if constant.dtype == np.float64:
            constant = constant.astype(np.float32)
    sizes: Any = getattr(constant, "shape", None) if shape is None else shape
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    found = (_graph.get() or _default).variables.get(full)
    if found is not None:
        if sizes is not None and tuple(sizes) != tuple(found.shape):
            raise OptionError(
                f"get_variable({full!r}) asks for the shape {tuple(sizes)}, and the variable of "
                f"this name has {tuple(found.shape)}. Set another name, or a tf.variable_scope() "
                "around it."
            )
        return found
    if sizes is None:
        raise OptionError(
            f"get_variable({full!r}) makes a new variable without a shape. Set shape=, or a "
            "constant as initializer=."
        )
    kind = dtype or scope.dtype or (np.float32 if constant is None else constant.dtype)
    variable = keras.Variable(
        _initial(initializer, constant),
        shape=tuple(int(size) for size in sizes),
        dtype=as_dtype(kind).name,
        trainable=trainable is not False,
        name=full.replace("/", "_"),
    )
    (_graph.get() or _default).variables[full] = variable
    return variable


def _initial(initializer: Any, constant: np.ndarray | None) -> Callable[..., Any]:
    """Returns a function of shape and dtype: Keras calls it outside of the trace of a function."""
    if constant is not None:
        return lambda shape, dtype: np.broadcast_to(constant, shape).astype(dtype)
    if initializer is not None:
        return cast(Callable[..., Any], keras.initializers.get(initializer))

    def make(shape: Sequence[int], dtype: str) -> Any:
        is_float = keras.backend.is_float_dtype(dtype)
        rule = keras.initializers.GlorotUniform() if is_float else keras.initializers.Zeros()
        return rule(shape, dtype)

    return make
