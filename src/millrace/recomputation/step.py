"""Differentiating a step of which backward runs segments again."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from millrace._compat.jaxpr import Graph, needed, trace
from millrace.plan import Plan
from millrace.recomputation.costs import chain_of
from millrace.recomputation.plan import Item
from millrace.recomputation.recompute import as_recomputing_function, boundary_items
from millrace.recomputation.segments import Segments, cut, levels_by_boundaries
from millrace.taps.taps import collecting, tap_again


def recomputing_value_and_grad(plan: Plan) -> Callable[..., Any]:
    """Returns what differentiates a function of `(loss, auxiliary)`, as the plan says.

    It is used like `jax.value_and_grad(function, has_aux=True)`, and taps pass through it.
    """

    def value_and_grad(function: Callable[..., Any]) -> Callable[..., Any]:
        def value_and_gradients(trainable: Any, *args: Any, **kwargs: Any) -> Any:
            leaves, tree = jax.tree.flatten((args, kwargs))
            places = [k for k, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]

            def flat(weights: Any, arrays: Any) -> Any:
                values = list(leaves)
                for place, array in zip(places, arrays, strict=True):
                    values[place] = array
                args, kwargs = jax.tree.unflatten(tree, values)
                (loss, aux), tapped = collecting(function)(weights, *args, **kwargs)
                return loss, aux, tapped

            arrays = [leaves[place] for place in places]
            specs = jax.tree.map(_spec, (trainable, arrays))
            graph, results = trace(flat, *specs)
            # What nobody needs would still be handed from segment to segment.
            graph = needed(graph)
            structure = jax.tree.structure(results)
            weights, weights_tree = jax.tree.flatten(trainable)
            segments, items = _chosen(plan, graph, len(weights))
            run = as_recomputing_function(segments, items, plan.group.platform)

            def loss_of(weights: Any) -> Any:
                loss, aux, tapped = jax.tree.unflatten(structure, run(*weights, *arrays))
                return loss, (aux, tapped)

            (loss, (aux, tapped)), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
            tap_again(tapped)
            return (loss, aux), jax.tree.unflatten(weights_tree, gradients)

        return value_and_gradients

    return value_and_grad


def _chosen(plan: Plan, graph: Graph, num_weights: int) -> tuple[Segments, Sequence[Item]]:
    """Returns the segments of a step whose first result is the loss, and how they are run."""
    choice = plan.recompute.choice if plan.recompute is not None else None
    if choice is not None:
        chain = chain_of(graph, num_weights, [0])
        return chain.segments, chain.choices[min(choice, len(chain.choices) - 1)].items
    weights = graph.invars[:num_weights]
    segments = cut(graph, weights, graph.outvars[:1], levels_by_boundaries(graph, weights))
    return segments, boundary_items(segments, keeps_last=True)


def _spec(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
