"""Statistics of activations and gradients, as taps of a step.

    activation   output of a layer in forward: name `encoder/dense`, its second call `dense#1`
    gradient     of a variable, after a micro-batch or before an update: name `dense/kernel`

The statistics of a step leave it as one array, `[tensors, 8]`, or with histograms
`[tensors, 8 + bins]`.
"""

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import keras

from millrace._compat.keras_calls import after_calls
from millrace.base.options import NO_TAPS, TapRequest
from millrace.base.pytrees import ArrayTree
from millrace.base.records.tensors import COUNTS, LOSS, Tensor
from millrace.programs.taps.statistics import all_statistics, reduction_of
from millrace.programs.taps.taps import Parameters, Tapped, belongs_here, checkpoint, is_tapped, tap

# Statistics of several tensors, `[tensors, 8]`.
Reduce: TypeAlias = Callable[[Sequence[jax.Array]], jax.Array]
# Turns a function of `(loss, auxiliary)` into one of `((loss, auxiliary), gradients)`.
ValueAndGrad: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Rows:
    """The key of statistics, `[tensors, 8]`: the tensors that the rows describe."""

    tensors: tuple[Tensor, ...]


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name, with or without its outer layers, matches one of the patterns."""
    parts = name.split("/")
    ends = ["/".join(parts[k:]) for k in range(len(parts))]
    return any(fnmatch.fnmatchcase(end, pattern) for pattern in patterns for end in ends)


@contextmanager
def activations_tapped(
    model: keras.Model, taps: TapRequest = NO_TAPS, due: jax.Array | None = None
) -> Iterator[None]:
    """Taps statistics of layer outputs within the block, for layers whose names match.

    Also passes on the values that layers tap themselves inside code that Keras recomputes,
    whatever the patterns are.

    Models in a model are not counted as layers: their outputs are those of their last layers.

    Args:
        model: has the layers.
        taps: requested statistics, with the patterns of names.
        due: whether statistics are wanted in this step, a traced truth value; None: always.
    """
    patterns, reduce = taps.activations, reduction_of(replace(taps, norms=False))
    counts: dict[str, int] = {}
    # A value that several layers return, as attention and its last projection do, is reduced once.
    # Values are stored with their rows because `id` may be reused once an object is gone.
    reduced: dict[int, tuple[jax.Array, jax.Array | None]] = {}

    def see(path: tuple[keras.Layer, ...], outputs: ArrayTree) -> None:
        layer = path[-1]
        if not patterns or isinstance(layer, keras.Model) or not belongs_here():
            return
        name = "/".join(each.name for each in path if each is not model)
        number = counts[name] = counts.get(name, -1) + 1
        if matches(name, patterns):
            for index, leaf in enumerate(floating(outputs)):
                label = name + (f"#{number}" if number else "") + (f":{index}" if index else "")
                tensor = Tensor("activation", label)
                if id(leaf) in reduced and not is_tapped(tensor):
                    tap(tensor, reduced[id(leaf)][1])
                else:
                    reduced[id(leaf)] = leaf, _tap_rows({tensor: leaf}, due, None, reduce)

    with after_calls(see, checkpoint):
        yield


def tap_gradients(
    model: keras.Model,
    gradients: Sequence[jax.Array | None],
    patterns: Sequence[str],
    due: jax.Array | None = None,
    scale: jax.Array | None = None,
    reduce: Reduce = all_statistics,
) -> None:
    """Taps statistics of gradients whose variables match, in the order of the variables.

    Args:
        model: has the variables.
        gradients: one for each trainable variable; None is skipped.
        patterns: patterns of names.
        due: whether statistics are wanted in this step, a traced truth value; None: always.
        scale: factor of the loss, as from `loss_scale`; None: not scaled.
        reduce: computes the statistics.
    """
    matching = {
        Tensor("gradient", name): gradient
        for name, gradient in zip(gradient_names(model), gradients, strict=True)
        if name is not None and gradient is not None and matches(name, patterns)
    }
    _tap_rows(matching, due, scale, reduce)


def tap_loss(loss: jax.Array) -> None:
    """Taps the loss of a step."""
    _tap_rows({LOSS: loss}, None)


def loss_tapped(value_and_grad: ValueAndGrad) -> ValueAndGrad:
    """Returns `value_and_grad`, extended to tap the loss."""

    def tapping(function: Callable[Parameters, object]) -> Callable[Parameters, Any]:
        differentiated = value_and_grad(function)

        def differentiate(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
            (loss, aux), gradients = differentiated(*args, **kwargs)
            tap_loss(loss)
            return (loss, aux), gradients

        return differentiate

    return tapping


def loss_scale(model: keras.Model, optimizer_values: Iterable[jax.Array]) -> jax.Array | None:
    """Returns the factor by which the optimizer scaled the loss; None if it does not scale.

    Args:
        model: has an optimizer.
        optimizer_values: values of the optimizer's variables when the loss was computed.
    """
    optimizer, one = model.optimizer, jnp.float32(1)
    state = list(zip(optimizer.variables, optimizer_values, strict=True))
    with keras.StatelessScope(state_mapping=state):
        scaled = optimizer.scale_loss(one)
    return None if scaled is one else scaled


def gradient_names(model: keras.Model) -> list[str | None]:
    """Returns the path of each trainable variable below its model, such as `encoder/dense/kernel`.

    None for a variable that Keras overwrites, as scales of float8 layers: backward computes its new
    value in place of a gradient, and the optimizer neither unscales nor clips that.
    """
    return [
        None if variable.overwrite_with_gradient else variable.path.removeprefix(f"{model.name}/")
        for variable in model.trainable_variables
    ]


def floating(outputs: ArrayTree) -> list[jax.Array]:
    """Returns the leaves that have statistics: those of floating dtypes."""
    return [
        leaf
        for leaf in jax.tree.leaves(outputs)
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]


def _tap_rows(
    tensors: Mapping[Tensor, jax.Array],
    due: jax.Array | None,
    scale: jax.Array | None = None,
    reduce: Reduce = all_statistics,
) -> jax.Array | None:
    """Taps the statistics of tensors and returns those of the last one."""
    new = [tensor for tensor in tensors if not is_tapped(tensor)]
    if not new:
        return None
    values = [jax.lax.stop_gradient(tensors[tensor]) for tensor in new]
    if due is None:
        rows = reduce(values)
    else:
        spec = jax.eval_shape(reduce, values)
        # Counts of -1 mark a step without statistics.
        nothing = jnp.full(spec.shape, jnp.nan).at[:, COUNTS].set(-1.0)
        rows = jax.lax.cond(due, lambda: reduce(values), lambda: nothing)
    if scale is not None:  # unscales five numbers, not the tensor; shares and counts need none
        rows = rows.at[:, :5].divide(jnp.asarray(scale, rows.dtype))
    for number, tensor in enumerate(new):
        tap(tensor, rows[number])
    return rows[-1]


def packed(tapped: Tapped) -> Tapped:
    """Returns taps with all statistics as their first value, under a key `Rows`."""
    rows = {key: value for key, value in tapped.items() if isinstance(key, Tensor)}
    if not rows:
        return tapped
    others = {key: value for key, value in tapped.items() if key not in rows}
    keys = (Rows(tuple(rows)), *others)
    return Tapped(keys, (jnp.stack(list(rows.values())), *others.values()))


def found_non_finite(tapped: Tapped) -> jax.Array:
    """Returns whether a tensor among packed taps has a NaN or an infinity, a traced truth value."""
    rows = [value for key, value in tapped.items() if isinstance(key, Rows)]
    if not rows:
        return jnp.bool_(False)
    return (rows[0][:, COUNTS] > 0).any()
