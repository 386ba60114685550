"""Gradients of a step whose backward runs segments again."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from millrace._compat.jaxpr import Graph, needed, trace
from millrace.plan import Plan
from millrace.pytrees import Array, ArrayTree, Spec
from millrace.recomputation.costs import chain_of
from millrace.recomputation.plan import Item
from millrace.recomputation.recompute import as_recomputing_function, boundary_items
from millrace.recomputation.segments import Segments, cut, levels_by_boundaries
from millrace.taps.taps import Tapped, collecting, tap_again

T = TypeVar("T", bound=ArrayTree)
LossAndAux = tuple[jax.Array, Any]  # what a differentiated function returns; any structure beside
Differentiated = Callable[..., tuple[LossAndAux, Any]]  # gradients as the first argument is


def recomputing_value_and_grad(
    plan: Plan,
) -> Callable[[Callable[..., LossAndAux]], Differentiated]:
    """Returns a transformation that differentiates a function with recomputation as planned.

    It is used like `jax.value_and_grad(function, has_aux=True)` of a function that returns
    `(loss, auxiliary)`, and taps pass through it.
    """

    def value_and_grad(function: Callable[..., LossAndAux]) -> Differentiated:
        def value_and_gradients(
            trainable: T, *args: object, **kwargs: object
        ) -> tuple[LossAndAux, T]:
            leaves, tree = jax.tree.flatten((args, kwargs))
            indices = [k for k, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]

            def flat(weights: T, arrays: list[jax.Array]) -> tuple[jax.Array, ArrayTree, Tapped]:
                values = list(leaves)
                for index, array in zip(indices, arrays, strict=True):
                    values[index] = array
                args, kwargs = jax.tree.unflatten(tree, values)
                (loss, aux), tapped = collecting(function)(weights, *args, **kwargs)
                return loss, aux, tapped

            arrays = [leaves[index] for index in indices]
            specs = jax.tree.map(_spec, (trainable, arrays))
            graph, results = trace(flat, *specs)
            # Unused values would still be handed from segment to segment.
            graph = needed(graph)
            structure = jax.tree.structure(results)
            weights, weights_tree = jax.tree.flatten(trainable)
            segments, items = _segments_and_items(plan, graph, len(weights))
            run = as_recomputing_function(segments, items, plan.group.platform)

            def loss_of(
                weights: list[jax.Array],
            ) -> tuple[jax.Array, tuple[ArrayTree, Tapped]]:
                loss, aux, tapped = jax.tree.unflatten(structure, run(*weights, *arrays))
                return loss, (aux, tapped)

            (loss, (aux, tapped)), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
            tap_again(tapped)
            return (loss, aux), jax.tree.unflatten(weights_tree, gradients)

        return value_and_gradients

    return value_and_grad


def _segments_and_items(
    plan: Plan, graph: Graph, num_weights: int
) -> tuple[Segments, Sequence[Item]]:
    """Returns the segments of a step whose first result is the loss, and the items to run."""
    choice = plan.recompute.choice if plan.recompute is not None else None
    if choice is not None:
        chain = chain_of(graph, num_weights, [0])
        return chain.segments, chain.choices[min(choice, len(chain.choices) - 1)].items
    weights = graph.invars[:num_weights]
    segments = cut(graph, weights, graph.outvars[:1], levels_by_boundaries(graph, weights))
    return segments, boundary_items(segments, keeps_last=True)


def _spec(leaf: Array) -> Spec:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
