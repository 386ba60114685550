"""Private JAX: the places where a step that is being traced takes gradients.

    value, gradients = jax.value_and_grad(loss_of)(weights)

    as traced here    values = differentiated_at(weights)       equations that stand for gradients
                      loss, aux = loss_of(values)               the forward, and no backward
                      gradients = gradients_of(loss, values)

`jax.grad` and `jax.value_and_grad` look up one function of their module when they run, so functions
that were made before are seen, too. Only gradients that are taken in the trace itself count: not
those within a differentiated function, a loop, `jax.vmap` or `jax.jit`. Gradients that come about
in another way are found where an optimizer receives them. Checked on jax 0.10.0 to 0.10.2.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.extend.core import Primitive
from keras.src.backend.common.masking import get_keras_mask

from millrace._compat.ended_traces import origin_of
from millrace._compat.jax_tracing import is_traced, trace_state
from millrace._compat.jaxpr import Graph
from millrace._compat.keras_optimizers import trained_by
from millrace._compat.patch_table import TAKE_GRADIENTS
from millrace._compat.patches import held, replace
from millrace.base.threads.scoped_value import ScopedValue

_POINT, _GRADIENTS, _RECEIVED = map(
    Primitive, ("differentiated_at", "gradients_of", "gradients_received")
)
for _primitive in (_POINT, _GRADIENTS, _RECEIVED):
    _primitive.multiple_results = True
_POINT.def_abstract_eval(lambda *values: list(values))
_GRADIENTS.def_abstract_eval(lambda loss, *values, **_: list(values))
_RECEIVED.def_abstract_eval(lambda *gradients, **_: list(gradients))


@dataclass(slots=True)
class _Watched:
    """The trace whose gradients stand apart."""

    state: object
    computed: (
        Collection[int] | None
    )  # numbers of the places that take theirs as JAX does; None: all
    count: int = 0  # places so far


_watched = ScopedValue[_Watched | None](None)


@dataclass(frozen=True, slots=True)
class GradientPoint:
    """A place in a graph where gradients are taken, or where an optimizer receives them.

    Attributes:
        number: of the place, in the order of the trace.
        gradients: variables that stand for the gradients.
        weights: variables or literals: the values at which a function is differentiated.
        values: variables that stand for these within the function.
        loss: the result of the function; None where an optimizer receives gradients.
        received: these gradients as the step computes them.
        indices: of the variables that the optimizer updates with them.
        place: the line, for a message.
    """

    number: int
    gradients: tuple[Any, ...]
    weights: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    loss: Any = None
    received: tuple[Any, ...] = ()
    indices: tuple[int, ...] = ()
    place: str = ""


def gradient_points(graph: Graph) -> list[GradientPoint]:
    """Returns the places of a graph that was traced with `gradients_apart`, in their order."""
    points: list[GradientPoint] = []
    weights: dict[Any, Any] = {}
    for equation in graph.equations:
        inputs, results, params = tuple(equation.invars), tuple(equation.outvars), equation.params
        if equation.primitive is _POINT:
            weights.update(zip(results, inputs, strict=True))
        elif equation.primitive is _GRADIENTS:
            loss, *values = inputs
            at = tuple(weights[value] for value in values)
            points.append(
                GradientPoint(
                    params["number"], results, at, tuple(values), loss, place=params["place"]
                )
            )
        elif equation.primitive is _RECEIVED:
            points.append(
                GradientPoint(len(points), results, received=inputs, indices=params["indices"])
            )
    return points


def gradients_apart(
    function: Callable[..., Any], computed: Collection[int] = ()
) -> Callable[..., Any]:
    """Returns a function in whose trace gradients stand apart, for `gradient_points`.

    Args:
        function: traced later.
        computed: numbers of the places whose gradients are computed all the same.
    """

    def apart(*args: Any, **kwargs: Any) -> Any:
        with held(), _watched.bound_to(_Watched(trace_state(), computed)):
            replace(TAKE_GRADIENTS, _standing_apart)
            return function(*args, **kwargs)

    return apart


def _standing_apart(original: Callable[..., Any]) -> Callable[..., Any]:
    def vjp(fun: Any, *primals: Any, has_aux: bool = False, **options: Any) -> Any:
        watched = _watched.get()
        if watched is None or watched.computed is None or watched.state != trace_state():
            return original(fun, *primals, has_aux=has_aux, **options)
        number, watched.count = watched.count, watched.count + 1
        if number in watched.computed:
            with _watched.bound_to(None):
                return original(fun, *primals, has_aux=has_aux, **options)
        leaves, tree = jax.tree.flatten(primals)
        values = _POINT.bind(*map(jnp.asarray, leaves))
        with _watched.bound_to(None):
            result = getattr(fun, "call_wrapped", fun)(*jax.tree.unflatten(tree, values))
        loss, aux = result if has_aux else (result, None)
        if jax.tree.structure(loss) != jax.tree.structure(0) or jnp.shape(loss):
            return original(fun, *primals, has_aux=has_aux, **options)  # no scalar: a Jacobian
        loss = jnp.asarray(loss)
        place = origin_of(loss) if is_traced(loss) else ""

        def pull_back(_: Any) -> Any:  # of ones
            gradients = _GRADIENTS.bind(loss, *values, number=number, place=place)
            return jax.tree.unflatten(tree, gradients)

        rest = (jax.tree.map(_without_mask, aux),) if has_aux else ()
        return loss, pull_back, *rest

    return vjp


def _without_mask(leaf: Any) -> Any:
    """Returns a value without Keras's mask: what JAX hands on are other tensors."""
    return leaf if get_keras_mask(leaf) is None else jax.lax.stop_gradient(leaf)


def received_apart(
    function: Callable[..., Any],
    optimizers: Sequence[keras.optimizers.Optimizer],
    variables: Sequence[keras.Variable],
) -> Callable[..., Any]:
    """Returns a function in whose trace the gradients that optimizers receive stand apart.

    Args:
        function: traced later.
        optimizers: that are not within others.
        variables: that `GradientPoint.indices` count.
    """
    numbers = {id(variable): number for number, variable in enumerate(variables)}

    def apart(*args: Any, **kwargs: Any) -> Any:
        watched = _Watched(trace_state(), None)
        with _watched.bound_to(watched), _marking(optimizers, numbers):
            return function(*args, **kwargs)

    return apart


@contextmanager
def _marking(
    optimizers: Sequence[keras.optimizers.Optimizer], numbers: dict[int, int]
) -> Iterator[None]:
    """Lets each optimizer mark the gradients that it receives."""

    def of(optimizer: Any) -> Callable[..., Any]:
        stock = optimizer.apply

        def apply(grads: Any, trainable_variables: Any = None) -> Any:
            watched, grads = _watched.get(), list(grads)
            updated = trained_by(optimizer) if trainable_variables is None else trainable_variables
            if watched is not None and watched.state == trace_state():
                known = [k for k, g in enumerate(grads) if g is not None]
                indices = tuple(numbers.get(id(list(updated)[k]), -1) for k in known)
                marked = _RECEIVED.bind(*(jnp.asarray(grads[k]) for k in known), indices=indices)
                for k, gradient in zip(known, marked, strict=True):
                    grads[k] = gradient
            given = () if trainable_variables is None else (trainable_variables,)
            with _watched.bound_to(None):  # those that it wraps receive the same
                return stock(grads, *given)

        return apply

    for optimizer in optimizers:
        object.__setattr__(optimizer, "apply", of(optimizer))
    try:
        yield
    finally:
        for optimizer in optimizers:
            object.__delattr__(optimizer, "apply")
