"""Segments that backward runs again, instead of what their forward would have kept for it.

    forward   segment 0 -> boundary -> segment 1 -> boundary -> segment 2 -> loss
    keeps     inputs of 0              inputs of 1              residuals of 2
    backward  residuals of 2 -> run 1 again -> its residuals -> run 0 again -> its residuals

Each is a function of its own with a backward of its own (`jax.custom_vjp`), so segments nest, and
the step that they make up is differentiated as any other.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from millrace._compat.jaxpr import (
    Graph,
    Var,
    as_function,
    is_literal,
    with_effects,
)
from millrace.recomputation.hold_back import AT_ONCE, Form, hold_back
from millrace.recomputation.joint_graph import chosen, divided, joint_graph, merged, with_lean_loops
from millrace.recomputation.plan import Again, Item, Once
from millrace.recomputation.segments import Segments

KEEP_ALL, KEEP_PRODUCTS = 0, 1  # ways to run a segment once


def as_recomputing_function(
    segments: Segments, items: Sequence[Item], platform: str, in_one_program: bool = True
) -> Callable[..., list[Any]]:
    """Returns a function of the values of the graph's inputs that returns those of its results.

    Args:
        segments: a graph, cut.
        items: which of its parts are run again, covering all of them in order.
        platform: that the function will be compiled for.
        in_one_program: whether forward is in the program of its backward; one segment alone in a
            program of backward cannot be merged with anything.
    """
    graph = segments.graph
    form = None if in_one_program or len(items) > 1 else AT_ONCE
    return _run(segments, items, list(graph.invars), list(graph.outvars), platform, form)


def boundary_items(segments: Segments, keeps_last: bool) -> list[Item]:
    """Returns the items by which each segment is run again.

    Args:
        segments: cut at boundaries.
        keeps_last: whether the last one is not: where backward follows its forward at once,
            nothing is gained.
    """
    num = len(segments.parts)
    kept = [Once(number, KEEP_ALL) for number in range(num)]
    last = num - 1 if keeps_last else num
    return [Again((once,)) if once.segment < last else once for once in kept]


def _run(
    segments: Segments,
    items: Sequence[Item],
    inputs: list[Var],
    outputs: list[Any],
    platform: str,
    form: Form | None = None,
) -> Callable[..., list[Any]]:
    """Returns a function that runs consecutive parts: values of `inputs` -> those of `outputs`."""

    def run(*values: Any) -> list[Any]:
        known = dict(zip(inputs, values, strict=True)) | segments.graph.constants
        for item in items:
            begin, end = span(item)
            graph = segments.part(begin, end)
            function = _function(segments, item, graph, platform, form)
            made = function(*(known[var] for var in graph.invars))
            known.update(zip(graph.outvars, made, strict=True))
        return [var.val if is_literal(var) else known[var] for var in outputs]

    return run


def span(item: Item) -> tuple[int, int]:
    """Returns the first part of an item, and the one after its last."""
    if isinstance(item, Once):
        return item.segment, item.segment + 1
    return span(item.items[0])[0], span(item.items[-1])[1]


def _function(
    segments: Segments, item: Item, graph: Graph, platform: str, form: Form | None
) -> Callable[..., list[Any]]:
    learns = [var in segments.learns for var in graph.invars]
    answered = [var in segments.answered for var in graph.outvars]
    plain = as_function(graph)
    is_kept = isinstance(item, Once) and item.way == KEEP_ALL
    if is_kept or not any(learns) or not any(answered) or with_effects(graph):
        return plain  # what prints or calls back would do so twice
    form = form or hold_back(graph, platform)
    if isinstance(item, Once):
        return keeping_products(graph, learns, answered, form)
    inner = _run(segments, item.items, list(graph.invars), list(graph.outvars), platform)
    return again(inner, learns, answered, form)


def again(
    function: Callable[..., list[Any]],
    learns: Sequence[bool],
    answered: Sequence[bool],
    form: Form,
) -> Callable[..., list[Any]]:
    """Returns `function`, of which backward keeps the inputs and runs the rest again.

    Args:
        function: of values that returns values. It may run parts of itself again in its turn.
        learns: for each input whether something is differentiated by it.
        answered: for each result whether it is differentiated.
        form: when it is run again.
    """

    def pull(learned: Any, others: Any, cotangents: Any) -> Any:
        def targets(learned: Any) -> Any:
            return chosen(function(*merged(learns, learned, others)), answered)

        return jax.vjp(targets, learned)[1](cotangents)[0]

    def call(learned: Any, others: Any) -> list[Any]:
        return function(*merged(learns, learned, others))

    run = jax.custom_vjp(call)

    def forward(learned: Any, others: Any) -> Any:
        return form.forward(call, learned, others), (learned, others)

    def backward(held: Any, cotangents: Any) -> Any:
        learned, others = held
        return form.backward(pull, learned, others, chosen(cotangents, answered)), None

    run.defvjp(forward, backward)
    return lambda *values: run(*divided(learns, values))


def keeping_products(
    graph: Graph, learns: Sequence[bool], answered: Sequence[bool], form: Form
) -> Callable[..., list[Any]]:
    """Returns the function of a graph, of which backward keeps the inputs and very little else.

    Of the rest, it keeps the fewest bytes from which all else follows without a product: products
    take most of the FLOPs.
    """
    joint = joint_graph(with_lean_loops(graph), learns, answered)

    @jax.custom_vjp
    def run(learned: Any, others: Any) -> list[Any]:
        return as_function(graph)(*merged(learns, learned, others))

    def forward(learned: Any, others: Any) -> Any:
        made = form.forward(first, learned, others)
        results, saved = made[: len(graph.outvars)], made[len(graph.outvars) :]
        return results, (learned, others, saved)

    def first(learned: Any, others: Any) -> list[Any]:
        return _call(joint.forward, joint.inputs, (*learned, *others))

    def pull(learned: Any, rest: Any, cotangents: Any) -> Any:
        others, saved = rest
        inputs = (*joint.inputs, *joint.cotangents, *joint.saved)
        return _call(joint.backward, inputs, (*learned, *others, *cotangents, *saved))

    def backward(held: Any, cotangents: Any) -> Any:
        learned, others, saved = held
        return form.backward(pull, learned, (others, saved), chosen(cotangents, answered)), None

    run.defvjp(forward, backward)
    return lambda *values: run(*divided(learns, values))


def _call(graph: Graph, names: Sequence[Var], values: Sequence[Any]) -> list[Any]:
    known = dict(zip(names, values, strict=True))
    return as_function(graph)(*(known[var] for var in graph.invars))
