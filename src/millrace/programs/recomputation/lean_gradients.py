"""Gradients for which XLA's compiler for CPU takes much more memory than they need.

**Of the weights of a depthwise convolution.** JAX writes it as a convolution in groups, one for
each channel. The compiler makes an ordinary convolution of all channels with all channels of it,
and takes the diagonal: for 960 channels and windows of 3 x 3 that takes 95 MB and 960 times the
FLOPs. Here it is a sum of products for each place of the window.

    image      [c, b, 34, 34]    for each channel c and row b
    cotangent  [c, b, 32, 32]
    gradient   [c, 3, 3]         at each place: the sum of a slice of the image times the cotangent

**Of a maximum over windows.** The compiler writes down, for each element of the image, where the
largest one of its window is: two arrays of positions and two of values. Here the place of the
first of the largest values is computed once for each window, and each place adds its share.

    image      [b, 34, 34, c]
    place      [b, 16, 16, c]    0 to 8: of the first largest value in each window
    gradient   [b, 34, 34, c]    for each place: the cotangents of the windows that took it
"""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from millrace._compat.jaxpr import (
    Atom,
    Equation,
    Graph,
    Var,
    inlined,
    is_literal,
    spec_of,
    trace,
)

GradientFunction = Callable[..., jax.Array]

_MOST_PLACES = 128  # of a window; each is a sum of its own


def with_lean_gradients(graph: Graph) -> Graph:
    """Returns a graph with other equations in the place of such gradients."""
    equations: list[Equation] = []
    for equation in graph.equations:
        if _is_of_depthwise(equation):
            equations += _replaced(equation, _of_depthwise(equation))
        elif _is_of_maximum(equation):
            equations += _replaced(equation, _of_maximum(equation))
        else:
            equations.append(equation)
    return Graph(graph.invars, graph.outvars, tuple(equations), graph.constants)


def _replaced(equation: Equation, function: GradientFunction) -> list[Equation]:
    """Returns the equations of a function, between the inputs and the result of another one."""
    graph = inlined(trace(function, *map(spec_of, equation.invars))[0])
    names: dict[Var, Var] = dict(zip(graph.invars, equation.invars, strict=True))
    names.update(zip(graph.outvars, equation.outvars, strict=True))

    def named(atoms: Sequence[Atom]) -> list[Atom]:
        return [atom if is_literal(atom) else names.get(atom, atom) for atom in atoms]

    info = equation.source_info
    return [
        e.replace(invars=named(e.invars), outvars=named(e.outvars), source_info=info)
        for e in graph.equations
    ]


def _is_of_depthwise(equation: Equation) -> bool:
    if equation.primitive.name != "conv_general_dilated":
        return False
    params = equation.params
    groups, dims = params["batch_group_count"], params["dimension_numbers"]
    if groups == 1 or any(is_literal(atom) for atom in equation.invars):
        return False
    image = equation.invars[0].aval.shape
    places = equation.outvars[0].aval.shape
    return (
        image[dims.lhs_spec[0]] == groups
        and set(params["lhs_dilation"]) <= {1}
        and params.get("preferred_element_type") in (None, equation.outvars[0].aval.dtype)
        and math.prod(places[axis] for axis in dims.out_spec[2:]) <= _MOST_PLACES
    )


def _of_depthwise(equation: Equation) -> GradientFunction:
    params, dims = equation.params, equation.params["dimension_numbers"]
    groups, gap = params["batch_group_count"], params["rhs_dilation"]
    out = equation.outvars[0].aval
    window = [out.shape[axis] for axis in dims.out_spec[2:]]

    def gradient(image: jax.Array, cotangent: jax.Array) -> jax.Array:
        image = jnp.transpose(image, dims.lhs_spec)  # [c, b, ...]
        cotangent = jnp.transpose(cotangent, dims.rhs_spec)  # [c * multiplier, b, ...]
        size = cotangent.shape[2:]
        cotangent = cotangent.reshape(groups, -1, *cotangent.shape[1:])
        image = _padded(image, 0, [(0, 0), (0, 0), *params["padding"]])
        sums = []
        for place in itertools.product(*map(range, window)):
            steps = zip(place, params["window_strides"], strict=True)
            begin = [index * stride for index, stride in steps]
            part = _spaced(image, [0, 0, *begin], [*image.shape[:2], *size], [1, 1, *gap])
            products = part[:, None] * cotangent  # [c, multiplier, b, ...]
            sums.append(jnp.sum(products, axis=tuple(range(2, products.ndim))))
        found = jnp.stack(sums, axis=-1).reshape(1, -1, *window)  # [1, c * multiplier, ...]
        inverse = [dims.out_spec.index(axis) for axis in range(len(dims.out_spec))]
        return jnp.transpose(found, inverse).astype(out.dtype)

    return gradient


def _is_of_maximum(equation: Equation) -> bool:
    if equation.primitive.name != "select_and_scatter_add":
        return False
    params = equation.params
    return (
        str(params["select_prim"]) == "ge"
        and math.prod(params["window_dimensions"]) <= _MOST_PLACES
        and not any(is_literal(atom) for atom in equation.invars)
    )


def _of_maximum(equation: Equation) -> GradientFunction:
    params = equation.params
    strides, margins = params["window_strides"], params["padding"]
    places = list(itertools.product(*map(range, params["window_dimensions"])))

    def gradient(cotangent: jax.Array, image: jax.Array) -> jax.Array:
        padded = _padded(image, -jnp.inf, margins)
        largest = _spaced(padded, places[0], cotangent.shape, strides)
        taken = jnp.zeros(cotangent.shape, jnp.uint8)
        for number, place in enumerate(places[1:], 1):
            part = _spaced(padded, place, cotangent.shape, strides)
            taken = jnp.where(part > largest, jnp.uint8(number), taken)
            largest = jnp.maximum(largest, part)
        total = jnp.zeros(image.shape, cotangent.dtype)
        for number, place in enumerate(places):
            share = jnp.where(taken == number, cotangent, 0)
            total = total + _spread(share, place, strides, padded.shape, margins)
        return total

    return gradient


def _spread(
    share: jax.Array,
    begin: Sequence[int],
    gap: Sequence[int],
    size: Sequence[int],
    margins: Sequence[tuple[int, int]],
) -> jax.Array:
    """Returns zeros of `size` without its margins, with elements from `begin` on, `gap` apart."""
    axes = zip(begin, share.shape, gap, size, margins, strict=True)
    amounts = [
        (first - low, full - first - (count - 1) * step - 1 - high, step - 1)
        for first, count, step, full, (low, high) in axes
    ]
    return lax.pad(share, jnp.zeros((), share.dtype), amounts)


def _padded(array: jax.Array, value: float, margins: Sequence[tuple[int, int]]) -> jax.Array:
    amounts = [(low, high, 0) for low, high in margins]
    return lax.pad(array, jnp.asarray(value, array.dtype), amounts)


def _spaced(
    array: jax.Array, begin: Sequence[int], size: Sequence[int], gap: Sequence[int]
) -> jax.Array:
    """Returns `size` elements of each axis from `begin` on, `gap` apart."""
    ends = [b + (n - 1) * g + 1 for b, n, g in zip(begin, size, gap, strict=True)]
    return lax.slice(array, tuple(begin), tuple(ends), tuple(gap))
