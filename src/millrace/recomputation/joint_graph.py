"""Forward and backward of a segment as one graph, cut where the fewest bytes have to be kept.

    x, w, cotangents -> results, gradients      one trace of a function and its pullback
    x, w -> results, saved                      forward: everything that needs no cotangent
    x, w, cotangents, saved -> gradients        backward: the rest, and what is cheap to run again

The saved values are the fewest bytes from which the rest follows without a product.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Literal

from millrace._compat.jaxpr import (
    Equation,
    Graph,
    Var,
    as_function,
    inlined,
    is_literal,
    spec_of,
    trace,
    used,
    variables,
)
from millrace.recomputation.cut_points import least_kept, nbytes
from millrace.recomputation.scans import Run, with_body, with_loops

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Joint:
    """Forward and backward of a graph that keeps as little as its products allow."""

    inputs: tuple[Var, ...]  # learned ones first
    cotangents: tuple[Var, ...]
    forward: Graph  # inputs -> results of the graph, saved values
    backward: Graph  # inputs, cotangents, saved values -> cotangents of the learned inputs
    saved: tuple[Var, ...]
    residuals: tuple[Var, ...]  # the values saved by a forward that keeps everything
    results: tuple[Var | Literal, ...]  # of the graph
    equations: tuple[Equation, ...]  # of forward and backward, if everything is kept


def joint_graph(
    graph: Graph,
    learns: Sequence[bool],
    answered: Sequence[bool],
    may_keep: Callable[[Equation], bool] = lambda equation: True,
) -> Joint:
    """Differentiates a graph, and divides the result into forward and backward.

    Args:
        graph: a segment.
        learns: for each input, whether the graph is differentiated with respect to it.
        answered: for each result, whether it is differentiated.
        may_keep: whether the results of an equation may be kept.
    """
    function = as_function(graph)

    def forward_and_backward(
        learned: list[jax.Array], others: list[jax.Array], cotangents: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        def targets(learned: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            results = function(*combine(learns, learned, others))
            return select(results, answered), results

        _, pullback, results = jax.vjp(targets, learned, has_aux=True)
        return results, pullback(cotangents)[0]

    learned, others = partition(learns, list(map(spec_of, graph.invars)))
    cotangents = [spec_of(var) for var in select(graph.outvars, answered)]
    whole = inlined(trace(forward_and_backward, learned, others, cotangents)[0])
    num_inputs, num_results = len(graph.invars), len(graph.outvars)
    inputs, received = whole.invars[:num_inputs], whole.invars[num_inputs:]
    results, gradients = whole.outvars[:num_results], whole.outvars[num_results:]
    early = _before(whole, received)
    maker = {var: equation for equation in early for var in equation.outvars}
    residuals = [var for var in used(whole, gradients, maker).invars if var in maker]
    handed_on = set(variables(results))  # kept anyway, if anything is
    cost = {var: 1 if var in handed_on else nbytes(var) for var in maker if may_keep(maker[var])}
    saved = least_kept(early, residuals, cost)
    return Joint(
        inputs=inputs,
        cotangents=received,
        forward=used(whole, (*results, *saved)),
        backward=used(whole, gradients, saved),
        saved=tuple(saved),
        residuals=tuple(residuals),
        results=results,
        equations=whole.equations,
    )


def with_lean_loops(graph: Graph) -> Graph:
    """Returns a graph whose loops keep only as much for backward as their products require."""
    run = with_loops(graph, lambda loop: with_body(loop, _lean(loop.body)))
    return trace(run, *map(spec_of, graph.invars))[0]


def _lean(body: Graph) -> Run:
    """Returns the function of one iteration of a loop, keeping as little as possible for backward.

    All compilers honour `jax.checkpoint` within a loop. It keeps values by name, so every value
    gets a name.
    """
    named = trace(_named(inlined(body)), *map(spec_of, body.invars))[0]
    learns = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in named.invars]
    answered = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in named.outvars]
    joint = joint_graph(named, learns, answered, lambda e: _name(e) is not None)
    names = {var: _name(e) for e in joint.forward.equations for var in e.outvars}
    policy = jax.checkpoint_policies.save_only_these_names(*(names[var] for var in joint.saved))
    return jax.checkpoint(as_function(named), policy=policy, prevent_cse=False)


def _named(graph: Graph) -> Run:
    def run(*values: jax.Array) -> list[jax.Array]:
        environment = dict(zip(graph.invars, values, strict=True)) | graph.constants
        for equation in graph.equations:
            inputs = tuple(dict.fromkeys(variables(equation.invars)))
            piece = Graph(inputs, tuple(equation.outvars), (equation,), {})
            results = as_function(piece)(*(environment[var] for var in inputs))
            for var, value in zip(equation.outvars, results, strict=True):
                environment[var] = checkpoint_name(value, f"{_NAME}{len(environment)}")
        return [var.val if is_literal(var) else environment[var] for var in graph.outvars]

    return run


_NAME = "mr.value."


def _name(equation: Equation) -> str | None:
    name = equation.params.get("name") if equation.primitive.name == "name" else None
    return name if name is not None and name.startswith(_NAME) else None


def _before(graph: Graph, received: Sequence[Var]) -> list[Equation]:
    """Returns the equations that need no cotangent."""
    late = set(received)
    early: list[Equation] = []
    for equation in graph.equations:
        if any(var in late for var in variables(equation.invars)):
            late.update(equation.outvars)
        else:
            early.append(equation)
    return early


def select(values: Sequence[T], which: Sequence[bool]) -> list[T]:
    """Returns the values whose entry in `which` is true."""
    return [value for value, is_selected in zip(values, which, strict=True) if is_selected]


def partition(learns: Sequence[bool], values: Sequence[T]) -> tuple[list[T], list[T]]:
    """Splits values into learned ones, which the graph is differentiated by, and all others."""
    return select(values, learns), select(values, [not learned for learned in learns])


def combine(learns: Sequence[bool], learned: Sequence[T], others: Sequence[T]) -> list[T]:
    """Reverses `partition`: returns all values in their order."""
    remaining, remaining_others = iter(learned), iter(others)
    return [next(remaining if is_learned else remaining_others) for is_learned in learns]
