"""Statistics of activations and gradients, as taps of a step.

    activation   what a layer returned, in forward: name `encoder/dense`, its second call `dense#1`
    gradient     of a variable, after a micro-batch or before an update: name `dense/kernel`

All of a step leave as one array, `[tensors, 8]`, or with histograms `[tensors, 8 + bins]`.
"""

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import keras

from millrace._compat.keras_calls import after_calls
from millrace.options import NO_TAPS, TapRequest
from millrace.records.tensors import COUNTS, LOSS, Tensor
from millrace.taps.statistics import all_statistics, reduction_of
from millrace.taps.taps import Tapped, belongs_here, checkpoint, is_tapped, tap


@dataclass(frozen=True, slots=True)
class Rows:
    """The key of statistics, `[tensors, 8]`: whose they are."""

    tensors: tuple[Tensor, ...]


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name, or the name below some of the layers around it, has one of the patterns."""
    parts = name.split("/")
    ends = ["/".join(parts[k:]) for k in range(len(parts))]
    return any(fnmatch.fnmatchcase(end, pattern) for pattern in patterns for end in ends)


@contextmanager
def activations_tapped(
    model: keras.Model, taps: TapRequest = NO_TAPS, due: Any = None
) -> Iterator[None]:
    """Taps statistics of what layers return inside, where their names match.

    Values that layers tap themselves get out of what Keras recomputes, whatever the patterns are.

    Models in a model are no layers of their own: what they return is what their last layer does.

    Args:
        model: whose layers they are.
        taps: what is wanted of them.
        due: whether statistics are wanted in this step, a traced truth value; None: always.
    """
    patterns, reduce = taps.activations, reduction_of(replace(taps, norms=False))
    counts: dict[str, int] = {}
    # What several layers return, as attention and its last projection do, is reduced once. The
    # values are kept with their rows: an identity is used again once its object is gone.
    known: dict[int, tuple[Any, Any]] = {}

    def see(path: tuple[Any, ...], outputs: Any) -> None:
        layer = path[-1]
        if not patterns or isinstance(layer, keras.Model) or not belongs_here():
            return
        name = "/".join(one.name for one in path if one is not model)
        number = counts[name] = counts.get(name, -1) + 1
        if matches(name, patterns):
            for place, leaf in enumerate(floating(outputs)):
                label = name + (f"#{number}" if number else "") + (f":{place}" if place else "")
                tensor = Tensor("activation", label)
                if id(leaf) in known and not is_tapped(tensor):
                    tap(tensor, known[id(leaf)][1])
                else:
                    known[id(leaf)] = leaf, _tap_rows({tensor: leaf}, due, None, reduce)

    with after_calls(see, checkpoint):
        yield


def tap_gradients(
    model: keras.Model,
    gradients: Sequence[Any],
    patterns: Sequence[str],
    due: Any = None,
    scale: Any = None,
    reduce: Callable[[Sequence[Any]], Any] = all_statistics,
) -> None:
    """Taps statistics of gradients whose variables match, in the order of the variables.

    Args:
        model: whose gradients they are.
        gradients: one for each trainable variable; None is skipped.
        patterns: of names.
        due: whether statistics are wanted in this step, a traced truth value; None: always.
        scale: what the loss was multiplied by, as by `loss_scale`; None: by nothing.
        reduce: makes the statistics.
    """
    names = [gradient_name(model, variable) for variable in model.trainable_variables]
    found = {
        Tensor("gradient", name): gradient
        for name, gradient in zip(names, gradients, strict=True)
        if gradient is not None and matches(name, patterns)
    }
    _tap_rows(found, due, scale, reduce)


def loss_tapped(value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what differentiates a function of `(loss, auxiliary)`, and taps its loss."""

    def tapping(function: Callable[..., Any]) -> Callable[..., Any]:
        differentiated = value_and_grad(function)

        def differentiate(*args: Any, **kwargs: Any) -> Any:
            (loss, aux), gradients = differentiated(*args, **kwargs)
            _tap_rows({LOSS: loss}, None)
            return (loss, aux), gradients

        return differentiate

    return tapping


def loss_scale(model: keras.Model, optimizer_values: Iterable[Any]) -> Any:
    """Returns what the optimizer has multiplied the loss by, and gradients with it; None: nothing.

    Args:
        model: with an optimizer.
        optimizer_values: of its variables when the loss was computed.
    """
    optimizer, one = model.optimizer, jnp.float32(1)
    state = list(zip(optimizer.variables, optimizer_values, strict=True))
    with keras.StatelessScope(state_mapping=state):
        scaled = optimizer.scale_loss(one)
    return None if scaled is one else scaled


def gradient_name(model: keras.Model, variable: Any) -> str:
    """Returns the path of a variable below its model, such as `encoder/dense/kernel`."""
    return str(variable.path).removeprefix(f"{model.name}/")


def floating(outputs: Any) -> list[Any]:
    """Returns the leaves that have statistics: numbers that are no indices."""
    return [
        leaf
        for leaf in jax.tree.leaves(outputs)
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]


def _tap_rows(
    found: Mapping[Tensor, Any],
    due: Any,
    scale: Any = None,
    reduce: Callable[[Sequence[Any]], Any] = all_statistics,
) -> Any:
    """Taps the statistics of tensors and returns those of the last one."""
    new = [tensor for tensor in found if not is_tapped(tensor)]
    if not new:
        return None
    values = [jax.lax.stop_gradient(found[tensor]) for tensor in new]
    if due is None:
        rows = reduce(values)
    else:
        spec = jax.eval_shape(reduce, values)
        nothing = jnp.full(spec.shape, jnp.nan).at[:, COUNTS].set(-1.0)  # as none has
        rows = jax.lax.cond(due, lambda: reduce(values), lambda: nothing)
    if scale is not None:  # of eight numbers instead of a whole tensor: all but shares and counts
        rows = rows.at[:, :5].divide(jnp.asarray(scale, rows.dtype))
    for number, tensor in enumerate(new):
        tap(tensor, rows[number])
    return rows[-1]


def packed(tapped: Tapped) -> Tapped:
    """Returns taps with all statistics as one value, under the key `Rows`, in front."""
    rows = {key: value for key, value in tapped.items() if isinstance(key, Tensor)}
    if not rows:
        return tapped
    others = {key: value for key, value in tapped.items() if key not in rows}
    keys = (Rows(tuple(rows)), *others)
    return Tapped(keys, (jnp.stack(list(rows.values())), *others.values()))


def found_non_finite(tapped: Tapped) -> Any:
    """Returns whether a tensor among packed taps has a NaN or an infinity, a traced truth value."""
    rows = [value for key, value in tapped.items() if isinstance(key, Rows)]
    if not rows:
        return jnp.bool_(False)
    return (rows[0][:, COUNTS] > 0).any()
