"""Segments that backward runs again, so that their forward need not keep residuals.

    forward   segment 0 -> boundary -> segment 1 -> boundary -> segment 2 -> loss
    keeps     inputs of 0              inputs of 1              residuals of 2
    backward  residuals of 2 -> run 1 again -> its residuals -> run 0 again -> its residuals

Each is a function with its own backward (`jax.custom_vjp`), so segments nest, and the step that
they make up is differentiated like any other.
"""

from collections.abc import Sequence

import jax
from jax.extend.core import Literal

from millrace._compat.jaxpr import Graph, Var, as_function, is_literal, with_effects
from millrace.recomputation.hold_back import AT_ONCE, Form, hold_back
from millrace.recomputation.joint_graph import (
    combine,
    joint_graph,
    partition,
    select,
    with_lean_loops,
)
from millrace.recomputation.plan import Again, Item, Once
from millrace.recomputation.scans import Run
from millrace.recomputation.segments import Segments

Leaves = list[jax.Array]

KEEP_ALL, KEEP_PRODUCTS = 0, 1  # ways to run a segment once


def as_recomputing_function(
    segments: Segments, items: Sequence[Item], platform: str, in_one_program: bool = True
) -> Run:
    """Returns a function from the values of the graph's inputs to those of its results.

    Args:
        segments: of the graph.
        items: the plan; together they cover all segments in order.
        platform: for which the function will be compiled.
        in_one_program: whether forward and backward are one program. A compiler has nothing to
            merge a single segment with in a program of backward alone.
    """
    graph = segments.graph
    form = None if in_one_program or len(items) > 1 else AT_ONCE
    return _run(segments, items, list(graph.invars), list(graph.outvars), platform, form)


def boundary_items(segments: Segments, keeps_last: bool) -> list[Item]:
    """Returns the items that run each segment again.

    Args:
        segments: cut at boundaries.
        keeps_last: whether the last segment runs only once: its backward follows its forward
            immediately, so running it again saves nothing.
    """
    num = len(segments)
    kept = [Once(number, KEEP_ALL) for number in range(num)]
    last = num - 1 if keeps_last else num
    return [Again((once,)) if once.segment < last else once for once in kept]


def _run(
    segments: Segments,
    items: Sequence[Item],
    inputs: list[Var],
    outputs: list[Var | Literal],
    platform: str,
    form: Form | None = None,
) -> Run:
    """Returns a function that runs consecutive segments: values of `inputs` -> of `outputs`."""

    def run(*values: jax.Array) -> Leaves:
        environment = dict(zip(inputs, values, strict=True)) | segments.graph.constants
        for item in items:
            begin, end = span(item)
            graph = segments.subgraph(begin, end)
            function = _function(segments, item, graph, platform, form)
            results = function(*(environment[var] for var in graph.invars))
            environment.update(zip(graph.outvars, results, strict=True))
        return [var.val if is_literal(var) else environment[var] for var in outputs]

    return run


def span(item: Item) -> tuple[int, int]:
    """Returns the first segment of an item, and the one after its last."""
    if isinstance(item, Once):
        return item.segment, item.segment + 1
    return span(item.items[0])[0], span(item.items[-1])[1]


def _function(
    segments: Segments, item: Item, graph: Graph, platform: str, form: Form | None
) -> Run:
    learns = [var in segments.learns for var in graph.invars]
    answered = [var in segments.answered for var in graph.outvars]
    plain = as_function(graph)
    is_kept = isinstance(item, Once) and item.way == KEEP_ALL
    if is_kept or not any(learns) or not any(answered) or with_effects(graph):
        return plain  # run again, it would print or call back twice
    form = form or hold_back(graph, platform)
    if isinstance(item, Once):
        return keeping_products(graph, learns, answered, form)
    inner = _run(segments, item.items, list(graph.invars), list(graph.outvars), platform)
    return again(inner, learns, answered, form)


def again(
    function: Run,
    learns: Sequence[bool],
    answered: Sequence[bool],
    form: Form,
) -> Run:
    """Returns `function` with a backward that keeps only its inputs and runs it again.

    Args:
        function: from arrays to arrays. It may in turn run segments of its own again.
        learns: for each input, whether the function is differentiated with respect to it.
        answered: for each result, whether it is differentiated.
        form: how it is held back until backward needs it.
    """

    def pull(learned: Leaves, others: Leaves, cotangents: Leaves) -> Leaves:
        def targets(learned: Leaves) -> Leaves:
            return select(function(*combine(learns, learned, others)), answered)

        return jax.vjp(targets, learned)[1](cotangents)[0]

    def call(learned: Leaves, others: Leaves) -> Leaves:
        return function(*combine(learns, learned, others))

    run = jax.custom_vjp(call)

    def forward(learned: Leaves, others: Leaves) -> tuple[Leaves, tuple[Leaves, Leaves]]:
        return form.forward(call, learned, others), (learned, others)

    def backward(held: tuple[Leaves, Leaves], cotangents: Leaves) -> tuple[Leaves, None]:
        learned, others = held
        return form.backward(pull, learned, others, select(cotangents, answered)), None

    run.defvjp(forward, backward)
    return lambda *values: run(*partition(learns, values))


def keeping_products(
    graph: Graph, learns: Sequence[bool], answered: Sequence[bool], form: Form
) -> Run:
    """Returns the function of a graph whose backward keeps the inputs and little else.

    Besides the inputs it keeps the fewest bytes from which all other residuals follow without a
    product, since products take most of the FLOPs.
    """
    joint = joint_graph(with_lean_loops(graph), learns, answered)

    @jax.custom_vjp
    def run(learned: Leaves, others: Leaves) -> Leaves:
        return as_function(graph)(*combine(learns, learned, others))

    def forward(learned: Leaves, others: Leaves) -> tuple[Leaves, tuple[Leaves, Leaves, Leaves]]:
        outputs = form.forward(first, learned, others)
        results, saved = outputs[: len(graph.outvars)], outputs[len(graph.outvars) :]
        return results, (learned, others, saved)

    def first(learned: Leaves, others: Leaves) -> Leaves:
        return _call(joint.forward, joint.inputs, (*learned, *others))

    def pull(
        learned: Leaves, others_and_saved: tuple[Leaves, Leaves], cotangents: Leaves
    ) -> Leaves:
        others, saved = others_and_saved
        inputs = (*joint.inputs, *joint.cotangents, *joint.saved)
        return _call(joint.backward, inputs, (*learned, *others, *cotangents, *saved))

    def backward(held: tuple[Leaves, Leaves, Leaves], cotangents: Leaves) -> tuple[Leaves, None]:
        learned, others, saved = held
        return form.backward(pull, learned, (others, saved), select(cotangents, answered)), None

    run.defvjp(forward, backward)
    return lambda *values: run(*partition(learns, values))


def _call(graph: Graph, names: Sequence[Var], values: Sequence[jax.Array]) -> Leaves:
    environment = dict(zip(names, values, strict=True))
    return as_function(graph)(*(environment[var] for var in graph.invars))
