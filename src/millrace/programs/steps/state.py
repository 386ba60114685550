"""The values of a model's variables, by role.

    millrace           State, where a part that a loop has no use for is empty

    Keras, train       (trainable, non-trainable, optimizer, metrics)
    Keras, test        (trainable, non-trainable, metrics)
    Keras, predict     (trainable, non-trainable)

The values of each role are in the order of the model's variables. Keras makes its tuple, hands on
the one that its function returns, and assigns the values to the variables after the loop. Only the
function that Keras calls, and the calls of Keras's steps, convert: `from_keras` and `to_keras`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax.typing import ArrayLike

from millrace._compat.keras_layers import layer_of
from millrace._compat.keras_loops import variables_of
from millrace.errors import ModelError
from millrace.programs.plan import Mode
from millrace.programs.steps.ended_values import check_variable

ROLES = {  # of the parts of Keras's tuples
    Mode.TRAIN: ("trainable", "non_trainable", "optimizer", "metric"),
    Mode.TEST: ("trainable", "non_trainable", "metric"),
    Mode.PREDICT: ("trainable", "non_trainable"),
}


class State(NamedTuple):
    """The values of a model's variables: arrays, or a spec or a layout in place of each.

    JAX flattens named tuples of tuples itself. It would call Python for a class of ours, at both
    ends of every execution.
    """

    trainable: tuple[Any, ...] = ()
    non_trainable: tuple[Any, ...] = ()
    optimizer: tuple[Any, ...] = ()
    # In programs of several replicas: the metrics of each, `[replicas, ...]`, beside their sums.
    metric_parts: tuple[Any, ...] = ()
    metric: tuple[Any, ...] = ()

    def items(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yields each role and its values."""
        return zip(self._fields, self, strict=True)

    def map(self, function: Callable[[str, Any], object]) -> "State":
        """Returns the results of a function of each value and its role."""
        return State(
            *(tuple(function(role, value) for value in part) for role, part in self.items())
        )

    def replace(self, **parts: Iterable[object]) -> "State":
        """Returns a state with other values of some roles."""
        return self._replace(**{role: tuple(values) for role, values in parts.items()})

    def changing(self) -> "State":
        """Returns the values that every micro-batch changes. Updates change all the others."""
        return self._replace(trainable=(), optimizer=())

    def with_changing(self, other: "State") -> "State":
        """Returns a state with the values that micro-batches change taken from another one."""
        return other._replace(trainable=self.trainable, optimizer=self.optimizer)


class Values:
    """A list of arrays whose items Keras does not wrap.

    Keras's loop stores the state as an attribute of the model after every execution, and wraps
    each list, tuple and dict in it, value by value: 20 us for a model of 20 variables, as long as
    several steps of a small one. It leaves any other iterable alone.
    """

    __slots__ = ("_items",)

    def __init__(self, items: tuple[Any, ...]):
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


class KerasState(tuple[Values, ...]):
    """A state as Keras's loop hands it on, from one execution to the next."""

    state: State  # the same values; a runner recognizes the object that it returned


def from_keras(parts: Iterable[Iterable[object]], mode: Mode) -> State:
    """Returns the state in a tuple of Keras."""
    if isinstance(parts, KerasState):
        return parts.state
    return State(**dict(zip(ROLES[mode], map(tuple, parts), strict=True)))


def to_keras(state: State, mode: Mode) -> KerasState:
    """Returns a state as Keras's loop takes it."""
    parts = KerasState(Values(getattr(state, role)) for role in ROLES[mode])
    parts.state = state
    return parts


def as_lists(state: State, mode: Mode = Mode.TRAIN) -> tuple[list[Any], ...]:
    """Returns a state as a step of Keras takes it."""
    return tuple(list(getattr(state, role)) for role in ROLES[mode])


def from_step(
    parts: Iterable[Iterable[object]], old: State, model: keras.Model, mode: Mode
) -> State:
    """Returns the state that a step of Keras has returned; see `with_dtypes_of`."""
    parts = tuple(parts)
    if len(parts) != len(ROLES[mode]):
        raise _other_structure(_sizes(old, old), f"{len(parts)} lists")
    return with_dtypes_of(from_keras(parts, mode), old, model)


def with_dtypes_of(new: State, old: State, model: keras.Model) -> State:
    """Gives `new` the dtypes of `old`, so that a loop can carry it.

    Raises:
        ModelError: if a step changed the number of variables, or the shape of one, or assigned one
            within a branch or the body of a loop.
    """
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise _other_structure(_sizes(old, new), _sizes(new, old))
    return State(
        *(
            tuple(
                _with_dtype_of(n, o, partial(variable_text, model, role, index))
                for index, (n, o) in enumerate(zip(getattr(new, role), part, strict=True))
            )
            for role, part in old.items()
        )
    )


def state_of(model: keras.Model, mode: Mode, value: Callable[[keras.Variable], object]) -> State:
    """Returns the state that a loop of Keras has, made of each variable."""
    return State().replace(**{role: map(value, variables_of(model, role)) for role in ROLES[mode]})


def variable_text(model: keras.Model, role: str, index: int) -> str:
    """Returns the path of a variable and the layer that has it, for a message."""
    variable = variables_of(model, role)[index]
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


def _other_structure(before: str, after: str) -> ModelError:
    return ModelError(
        "One step returned a state of another structure than it received: "
        f"{before} before, {after} after. A train_step or test_step that you write must return the "
        "new values of all variables, in the order in which it received them."
    )


def _sizes(state: State, other: State) -> str:
    """Describes a state by the roles that it or another one has."""
    return " + ".join(
        f"{len(values)} {role.replace('_', '-')}"
        for role, values in state.items()
        if values or getattr(other, role) or role in ROLES[Mode.PREDICT]
    )
