"""The values of a model's variables, as Keras's loop passes them to a compiled function.

    train    (trainable, non-trainable, optimizer, metrics)
    test     (trainable, non-trainable, metrics)
    predict  (trainable, non-trainable)

Each is a list in the order of the model's variables. Keras makes the tuple and assigns its values
to the variables after the loop.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import keras
from jax.typing import ArrayLike

from millrace._compat.keras_layers import layer_of
from millrace.base.pytrees import LayoutTree, SpecTree
from millrace.errors import ModelError
from millrace.programs.plan import ROLES
from millrace.programs.steps.ended_values import check_variable


@jax.tree_util.register_pytree_node_class
class Values:
    """A list of arrays, specs or layouts whose items Keras does not wrap.

    Keras's loop stores the state as an attribute of the model after every execution, and wraps
    each list and dict in it, value by value: 20 us for a model of 20 variables, as long as several
    steps of a small one. It leaves any other iterable alone.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[object]):
        self._items: tuple[Any, ...] = tuple(items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Returns the values as children, for JAX."""
        return self._items, None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Iterable[object]) -> "Values":
        """Builds a list from the children, for JAX."""
        del aux
        return cls(children)


State: TypeAlias = tuple[Values, ...]
# Trees that may contain states, or values of one.
StateSpecs: TypeAlias = "SpecTree | Values | Sequence[StateSpecs]"
StateLayouts: TypeAlias = "LayoutTree | Values | Sequence[StateLayouts]"

_ROLES = {len(roles): roles for roles in ROLES.values()}


def as_state(parts: Iterable[Iterable[object]]) -> State:
    """Makes a state of lists, as Keras passes them. One that is a state already is returned."""
    if isinstance(parts, tuple) and all(isinstance(values, Values) for values in parts):
        return cast(State, parts)
    return tuple(values if isinstance(values, Values) else Values(values) for values in parts)


def as_lists(state: State) -> tuple[list[Any], ...]:
    """Makes a tuple of lists of a state, the form that a step of Keras takes."""
    return tuple(map(list, state))


def with_dtypes_of(new: State, old: State, model: keras.Model) -> State:
    """Gives `new` the dtypes of `old`, so that a loop can carry it.

    Raises:
        ModelError: if a step changed the number of variables, or the shape of one, or assigned one
            within a branch or the body of a loop.
    """
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise ModelError(
            "One step returned a state of another structure than it received: "
            f"{_sizes(old, len(old))} before, {_sizes(new, len(old))} after. A train_step or "
            "test_step that you write must return the new values of all variables, in the order in "
            "which it received them."
        )
    return tuple(
        Values(
            _with_dtype_of(n, o, partial(variable_text, model, role, index))
            for index, (n, o) in enumerate(zip(ns, os, strict=True))
        )
        for ns, os, role in zip(new, old, _ROLES[len(old)], strict=True)
    )


def variable_text(model: keras.Model, role: str, index: int) -> str:
    """Returns the path of a variable and the layer that has it, for a message."""
    variables = {
        "trainable": model.trainable_variables,
        "non_trainable": model.non_trainable_variables,
        "metric": model.metrics_variables,
        "optimizer": model.optimizer.variables if model.optimizer is not None else [],
    }
    variable = variables[role][index]
    layer = layer_of(model, variable)
    return f"Variable {variable.path!r}" + (f" of layer {layer!r}" if layer else "")


def _with_dtype_of(new: ArrayLike, old: jax.Array, name: Callable[[], str]) -> jax.Array:
    check_variable(name, new)
    new = jnp.asarray(new)
    if new.shape != old.shape:
        raise ModelError(
            f"{name()}: one step changed its shape from {old.shape} to {new.shape}. The state of a "
            "compiled loop has fixed shapes: assign a value of the same shape."
        )
    return new.astype(old.dtype)


def _sizes(state: State, parts: int) -> str:
    if len(state) != parts:
        return f"{len(state)} lists"
    return " + ".join(
        f"{len(values)} {role.replace('_', '-')}"
        for values, role in zip(state, _ROLES[parts], strict=True)
    )
