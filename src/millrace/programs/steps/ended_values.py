"""Errors about values that have left the trace that computed them.

cond(p, lambda: self.count.assign(1), ...)   the variable's new value is part of the branch
self.last = ops.mean(x)                      an attribute keeps a value of an earlier trace
"""

from collections.abc import Callable, Iterator

import jax
import keras

from millrace._compat.ended_traces import ended_values, has_ended, line_of, origin_of
from millrace._compat.keras_layers import all_layers
from millrace.errors import ModelError

_NOT_THE_USERS = ("_losses", "_metrics")  # of every layer, which Keras empties by itself


def check_variable(name: Callable[[], str], value: object) -> None:
    """Refuses the new value of a variable that is part of a trace that is over.

    Raises:
        ModelError: with the line that computed it.
    """
    if has_ended(value):
        raise ModelError(
            f"{name()} was assigned a value within a function that JAX traces apart, and the value "
            f"does not exist outside of it: {origin_of(value)}\nAssign variables outside of "
            "branches, bodies of loops, and functions of vectorized_map, jax.checkpoint and the "
            "like, which return the value. Drawing a random number assigns the state of its seed "
            "generator, so draw it outside, too."
        )


def lower_program(
    traced: jax.stages.Traced, model: keras.Model | None = None
) -> jax.stages.Lowered:
    """Lowers a program of `jax.jit`.

    Args:
        traced: the result of its `trace`.
        model: whose attributes may keep values.

    Raises:
        ModelError: if it uses a value of a trace that is over.
    """
    leaked = next(iter(ended_values(traced)), None)
    if leaked is None:
        return traced.lower()
    line = line_of(leaked)
    keeper = line and next((name for name, value in _kept(model) if line_of(value) == line), None)
    kept = f"{keeper} keeps it.\n" if keeper else ""
    raise ModelError(
        "The program uses a value that does not exist outside of the function that computed it, "
        f"nor after its trace: {origin_of(leaked)}\n{kept}Let that function return the value. What "
        "later calls read belongs in a keras.Variable: of a layer, self.add_weight(..., "
        "trainable=False), which call() assigns."
    )


def _kept(model: keras.Model | None) -> Iterator[tuple[str, object]]:
    """Yields the traced values in attributes of layers, each with its place."""
    for layer in all_layers(model) if model is not None else ():
        for (name, *keys), value in keras.tree.flatten_with_path(vars(layer)):
            if has_ended(value) and name not in _NOT_THE_USERS:
                place = name + "".join(f"[{key!r}]" for key in keys)
                yield f"The attribute {place} of layer {layer.name!r}", value
