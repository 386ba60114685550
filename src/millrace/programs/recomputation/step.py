"""Gradients of a step whose backward runs parts of the forward again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from millrace._compat.jaxpr import Graph, needed, trace
from millrace.base.pytrees import Array, ArrayTree, Spec
from millrace.programs.plan import Plan
from millrace.programs.recomputation.boundaries import kernels_between_boundaries
from millrace.programs.recomputation.choices import Choices
from millrace.programs.recomputation.joint_graph import Update, joint_graph
from millrace.programs.recomputation.ordered import OrderedKernels
from millrace.programs.taps.taps import Tapped, collecting, tap_again

T = TypeVar("T", bound=ArrayTree)
LossAndAux = tuple[jax.Array, Any]  # what a differentiated function returns; any structure beside
Differentiated = Callable[..., tuple[LossAndAux, Any]]  # gradients as the first argument is


def recomputes(plan: Plan) -> bool:
    """Whether programs of a plan run anything again."""
    return plan.recompute is not None and plan.recompute.choice != 0


@dataclass(frozen=True, slots=True)
class Updating:
    """The update of weights within the order of a step, each as soon as its gradient is there.

    Attributes:
        update: returns new weights and values, of weights, values and gradients.
        values: of the optimizer.
    """

    update: Callable[[Any, Any, Any], tuple[Any, Any]]
    values: Any


def has_choice(plan: Plan) -> bool:
    """Whether programs of a plan run kernels in a chosen order."""
    return recomputes(plan) and plan.recompute is not None and plan.recompute.choice is not None


def recomputing_value_and_grad(
    plan: Plan, updating: Updating | None = None
) -> Callable[[Callable[..., LossAndAux]], Differentiated]:
    """Returns a transformation that differentiates a function with recomputation as planned.

    It is used like `jax.value_and_grad(function, has_aux=True)` of a function that returns
    `(loss, auxiliary)`, and taps pass through it.

    Args:
        plan: has boundaries, or a choice.
        updating: of a plan with a choice; the function then returns new weights and values in place
            of gradients.
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
            graph, specs = trace(flat, *jax.tree.map(_spec, (trainable, arrays)))
            weights, answer = jax.tree.flatten(trainable)
            state: list[jax.Array] = []
            update = None
            if updating is not None:
                state, answer = jax.tree.flatten((trainable, updating.values))
                taken = jax.tree.map(_spec, (trainable, updating.values, trainable))
                update = Update(trace(updating.update, *taken)[0], len(weights))
            kernels = _kernels(plan, needed(graph), len(weights), update)
            seed = jnp.ones((), specs[0].dtype)
            values = kernels.whole(*weights, *arrays, *state[len(weights) :], seed)
            results, answers = values[: len(graph.outvars)], values[len(graph.outvars) :]
            loss, aux, tapped = jax.tree.unflatten(jax.tree.structure(specs), results)
            tap_again(tapped)
            return (loss, aux), jax.tree.unflatten(answer, answers)

        return value_and_gradients

    return value_and_grad


def accumulating_value_and_grad(
    plan: Plan, add: Callable[[Any, Any], Any], accumulated: Any
) -> Callable[[Callable[..., LossAndAux]], Differentiated]:
    """Returns a transformation like `recomputing_value_and_grad` that adds up gradients.

    Args:
        plan: has a choice.
        add: returns the sum of gradients and accumulated ones, each of which it adds for itself.
        accumulated: gradients so far.

    Returns:
        A transformation whose functions return the sums in place of gradients.
    """
    updating = Updating(lambda weights, sums, grads: (weights, add(grads, sums)), accumulated)
    transform = recomputing_value_and_grad(plan, updating)

    def value_and_grad(function: Callable[..., LossAndAux]) -> Differentiated:
        differentiated = transform(function)

        def value_and_sums(*args: object, **kwargs: object) -> tuple[LossAndAux, Any]:
            result, (_, sums) = differentiated(*args, **kwargs)
            return result, sums

        return value_and_sums

    return value_and_grad


def _kernels(plan: Plan, graph: Graph, num_weights: int, update: Update | None) -> OrderedKernels:
    """Returns what runs in a step whose first result is the loss."""
    choice = plan.recompute.choice if plan.recompute is not None else None
    learns = [k < num_weights for k in range(len(graph.invars))]
    answered = [k == 0 for k in range(len(graph.outvars))]
    if choice is not None:
        platform = plan.group.platform
        return Choices(graph, learns, answered, platform, update).kernels(choice)
    joint = joint_graph(graph, learns, answered)
    return kernels_between_boundaries(joint, num_weights, keeps_last=True)


def _spec(leaf: Array) -> Spec:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
