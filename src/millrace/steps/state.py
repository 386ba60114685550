"""The values of a model's variables, as Keras's loop passes them to a compiled function.

    train    (trainable, non-trainable, optimizer, metrics)
    test     (trainable, non-trainable, metrics)
    predict  (trainable, non-trainable)

Each is a list in the order of the model's variables. Keras makes the tuple, Keras puts it back.
"""

from collections.abc import Iterable, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp

from millrace.errors import ModelError
from millrace.plan import ROLES


@jax.tree_util.register_pytree_node_class
class Values:
    """A list that Keras does not look into.

    Keras's loop stores the state as an attribute of the model after every execution, and wraps
    each list and dict it finds on the way, value by value: 20 us for a model of 20 variables, as
    long as several steps of a small one. It takes any other iterable as it is.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[Any]):
        self._items = tuple(items)

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
    def tree_unflatten(cls, aux: None, children: Iterable[Any]) -> "Values":
        """Makes a list of what a JAX function returned."""
        del aux
        return cls(children)


State = tuple[Values, ...]

_WORDS = {len(roles): [role.replace("_", "-") for role in roles] for roles in ROLES.values()}


def as_state(parts: Iterable[Iterable[Any]]) -> State:
    """Makes a state of lists, as Keras passes them. One that it only passes on stays the same."""
    if isinstance(parts, tuple) and all(isinstance(part, Values) for part in parts):
        return cast(State, parts)
    return tuple(part if isinstance(part, Values) else Values(part) for part in parts)


def as_lists(state: State) -> tuple[list[Any], ...]:
    """Makes lists of a state, as a step of Keras takes them."""
    return tuple(map(list, state))


def with_dtypes_of(new: State, old: State) -> State:
    """Gives `new` the dtypes of `old`, so that it can go round a loop.

    Raises:
        ModelError: if a step changed the number of variables, or the shape of one.
    """
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise ModelError(
            "One step returned a state of another structure than it was given: "
            f"{_sizes(old, len(old))} before, {_sizes(new, len(old))} after. A train_step or "
            "test_step of your own must return the new values of all variables, in the order in "
            "which it received them."
        )
    return tuple(
        Values(
            _with_dtype_of(n, o, role, index)
            for index, (n, o) in enumerate(zip(ns, os, strict=True))
        )
        for ns, os, role in zip(new, old, _WORDS[len(old)], strict=True)
    )


def _with_dtype_of(new: Any, old: Any, role: str, index: int) -> jax.Array:
    new = jnp.asarray(new)
    if new.shape != old.shape:
        raise ModelError(
            f"One step changed the shape of {role} variable {index} from {old.shape} to "
            f"{new.shape}. The state of a compiled loop has fixed shapes: assign a value of the "
            "same shape."
        )
    return new.astype(old.dtype)


def _sizes(state: Any, parts: int) -> str:
    if len(state) != parts:
        return f"{len(state)} lists"
    return " + ".join(
        f"{len(values)} {role}" for values, role in zip(state, _WORDS[parts], strict=True)
    )
