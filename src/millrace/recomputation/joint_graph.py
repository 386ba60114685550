"""Forward and backward of a segment as one graph, divided where the least is kept in between.

    x, w, cotangents -> results, gradients      one trace of a function and its pullback
    x, w -> results, saved                      what needs no cotangent
    x, w, cotangents, saved -> gradients        all the rest, and what costs little to run again

What is saved is the least from which the rest follows without a product.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

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
from millrace.recomputation.scans import with_body, with_loops


@dataclass(frozen=True, slots=True)
class Joint:
    """Forward and backward of a graph that keeps as little as its products allow."""

    inputs: tuple[Var, ...]  # learned ones first
    cotangents: tuple[Var, ...]
    forward: Graph  # -> results of the graph, what is saved
    backward: Graph  # of inputs, cotangents and what is saved -> cotangents of learned inputs
    saved: tuple[Var, ...]
    residuals: tuple[Var, ...]  # what a forward that keeps everything would save
    results: tuple[Any, ...]  # of the graph
    equations: tuple[Equation, ...]  # of both, if everything is kept


def joint_graph(
    graph: Graph,
    learns: Sequence[bool],
    answered: Sequence[bool],
    may_keep: Callable[[Equation], bool] = lambda equation: True,
) -> Joint:
    """Differentiates a graph, and divides the result into forward and backward.

    Args:
        graph: a segment.
        learns: for each input whether something is differentiated by it.
        answered: for each result whether it is differentiated.
        may_keep: whether what an equation makes may be kept.
    """
    function = as_function(graph)

    def forward_and_backward(learned: Any, others: Any, cotangents: Any) -> Any:
        def targets(learned: Any) -> Any:
            results = function(*merged(learns, learned, others))
            return chosen(results, answered), results

        _, pullback, results = jax.vjp(targets, learned, has_aux=True)
        return results, pullback(cotangents)[0]

    learned, others = divided(learns, list(map(spec_of, graph.invars)))
    cotangents = [spec_of(var) for var in chosen(graph.outvars, answered)]
    whole = inlined(trace(forward_and_backward, learned, others, cotangents)[0])
    num_inputs, num_results = len(graph.invars), len(graph.outvars)
    inputs, received = whole.invars[:num_inputs], whole.invars[num_inputs:]
    results, gradients = whole.outvars[:num_results], whole.outvars[num_results:]
    early = _before(whole, received)
    made = {var: equation for equation in early for var in equation.outvars}
    residuals = [var for var in used(whole, gradients, made).invars if var in made]
    handed_on = set(variables(results))  # kept anyway, if anything is
    cost = {var: 1 if var in handed_on else nbytes(var) for var in made if may_keep(made[var])}
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
    """Returns a graph whose loops keep no more for backward than their products demand."""
    run = with_loops(graph, lambda loop: with_body(loop, _lean(loop.body)))
    return trace(run, *map(spec_of, graph.invars))[0]


def _lean(body: Graph) -> Callable[..., list[Any]]:
    """Returns the function of one turn of a loop, of which backward keeps the least.

    `jax.checkpoint` within a loop is honoured by all compilers, and keeps values by name: so all
    of them get one.
    """
    named = trace(_named(inlined(body)), *map(spec_of, body.invars))[0]
    learns = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in named.invars]
    answered = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in named.outvars]
    joint = joint_graph(named, learns, answered, lambda e: _name(e) is not None)
    names = {var: _name(e) for e in joint.forward.equations for var in e.outvars}
    policy = jax.checkpoint_policies.save_only_these_names(*(names[var] for var in joint.saved))
    return jax.checkpoint(as_function(named), policy=policy, prevent_cse=False)


def _named(graph: Graph) -> Callable[..., list[Any]]:
    def run(*values: Any) -> list[Any]:
        known = dict(zip(graph.invars, values, strict=True)) | graph.constants
        for equation in graph.equations:
            inputs = tuple(dict.fromkeys(variables(equation.invars)))
            piece = Graph(inputs, tuple(equation.outvars), (equation,), {})
            made = as_function(piece)(*(known[var] for var in inputs))
            for var, value in zip(equation.outvars, made, strict=True):
                known[var] = checkpoint_name(value, f"{_NAME}{len(known)}")
        return [var.val if is_literal(var) else known[var] for var in graph.outvars]

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


def chosen(values: Sequence[Any], which: Sequence[bool]) -> list[Any]:
    """Returns those values for which `which` is true."""
    return [value for value, is_chosen in zip(values, which, strict=True) if is_chosen]


def divided(learns: Sequence[bool], values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Returns the values that something is differentiated by, and the others."""
    return chosen(values, learns), chosen(values, [not learned for learned in learns])


def merged(learns: Sequence[bool], learned: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Returns the values that `divided` divided, in their order."""
    some, rest = iter(learned), iter(others)
    return [next(some if is_learned else rest) for is_learned in learns]
