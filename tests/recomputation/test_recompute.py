"""Segments, minimum cuts and chunks of loops, on small functions in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from millrace._compat.jaxpr import as_function, needed, primitive_counts, trace
from millrace.recomputation.costs import chain_of
from millrace.recomputation.cut_points import least_kept, levels_by_cut_points
from millrace.recomputation.hold_back import AT_ONCE, hold_back
from millrace.recomputation.joint_graph import joint_graph
from millrace.recomputation.plan import Again, Once
from millrace.recomputation.recompute import (
    KEEP_ALL,
    KEEP_PRODUCTS,
    as_recomputing_function,
    boundary_items,
)
from millrace.recomputation.scans import chunked_function, slices_of_inputs
from millrace.recomputation.segments import cut, levels_by_boundaries, mark_boundary

pytestmark = pytest.mark.shipped_compiler

W = [jnp.asarray(np.random.default_rng(k).normal(size=(8, 8)) / 3, jnp.float32) for k in range(4)]
X = jnp.asarray(np.random.default_rng(9).normal(size=(16, 8)), jnp.float32)


def loss(a, b, c, d, x):
    x = jnp.tanh(x @ a)
    x = mark_boundary(x)
    skip = x
    x = jnp.tanh(x @ b)
    x = mark_boundary({"x": x})["x"]
    return jnp.sum((jnp.sin(x @ c) + skip) @ d), jnp.mean(x)


def graph_of(function=loss):
    return needed(trace(function, *W, X)[0])


def test_levels_count_the_boundaries_before():
    graph = graph_of()
    levels = levels_by_boundaries(graph, graph.invars[:4])
    products = [
        level
        for level, equation in zip(levels, graph.equations, strict=True)
        if equation.primitive.name == "dot_general"
    ]
    assert products == [0, 1, 2, 2]


def test_what_follows_from_weights_or_data_alone_is_made_where_it_is_needed():
    def late(a, b, c, d, x):
        half, mask = d * 0.5, x > 0
        x = mark_boundary(jnp.tanh(x @ a))
        return jnp.sum((x * mask) @ half), b, c

    graph = graph_of(late)
    levels = levels_by_boundaries(graph, graph.invars[:4])
    found = {
        equation.primitive.name: level
        for level, equation in zip(levels, graph.equations, strict=True)
    }
    assert found["gt"] == found["mul"] == found["reduce_sum"] == 1
    assert found["tanh"] == 0


def test_what_two_segments_take_is_made_in_the_first():
    def twice(a, b, c, d, x):
        mask = x > 0
        x = mark_boundary(jnp.where(mask, x @ a, 0.0))
        return jnp.sum(jnp.where(mask, x @ b, 0.0)), c, d

    graph = graph_of(twice)
    weights = graph.invars[:4]
    levels = levels_by_boundaries(graph, weights)
    names = [equation.primitive.name for equation in graph.equations]
    assert levels[names.index("gt")] == 0
    segments = cut(graph, weights, graph.outvars[:1], levels)
    run = as_recomputing_function(segments, boundary_items(segments, keeps_last=False), "cpu")
    np.testing.assert_allclose(run(*W, X)[0], twice(*W, X)[0], rtol=1e-6)


def test_what_no_weight_could_change_has_no_cotangent():
    def gated(a, b, c, d, x):
        gate = jnp.exp(x)
        y = x @ a
        x = mark_boundary(jnp.tanh(y))
        return jnp.sum(jnp.where(y > 0, x, 0.0) * gate @ b), c, d

    graph = graph_of(gated)
    weights = graph.invars[:4]
    segments = cut(graph, weights, graph.outvars[:1], levels_by_boundaries(graph, weights))
    answered = {
        equation.primitive.name
        for equation in graph.equations
        if segments.answered.issuperset(equation.outvars)
    }
    assert {"tanh", "mul", "reduce_sum"} < answered
    assert not {"exp", "gt"} & answered


ALL = [
    (Once(0, KEEP_ALL), Once(1, KEEP_ALL), Once(2, KEEP_ALL)),
    (Again((Once(0, KEEP_ALL),)), Again((Once(1, KEEP_ALL),)), Once(2, KEEP_ALL)),
    (Again((Once(0, KEEP_ALL), Again((Once(1, KEEP_ALL),)))), Once(2, KEEP_PRODUCTS)),
    (Again((Again((Once(0, KEEP_PRODUCTS),)), Once(1, KEEP_PRODUCTS), Once(2, KEEP_ALL))),),
]


@pytest.mark.parametrize("items", ALL, ids=str)
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_gradients_are_those_of_jax(items, platform):
    graph = graph_of()
    weights = graph.invars[:4]
    levels = levels_by_boundaries(graph, weights)
    segments = cut(graph, weights, graph.outvars[:1], levels)
    run = as_recomputing_function(segments, items, platform)

    def of(function):
        return jax.jit(jax.value_and_grad(lambda w: tuple(function(*w, X)), has_aux=True))(W)

    found, expected = of(run), of(loss)
    for value, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)


def test_what_no_segment_makes_is_returned_as_it_is():
    table = jnp.arange(3.0)

    def with_table(a, b, c, d, x):
        x = mark_boundary(jnp.tanh(x @ a))
        return jnp.sum(x @ b), table, c, 2.0

    graph = graph_of(with_table)
    weights = graph.invars[:4]
    segments = cut(graph, weights, graph.outvars[:1], levels_by_boundaries(graph, weights))
    run = as_recomputing_function(segments, boundary_items(segments, keeps_last=False), "cpu")
    _, *found = run(*W, X)
    for value, expected in zip(found, (table, W[2], 2.0), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_what_is_behind_the_last_boundary_is_not_run_again():
    """One product for each of the two segments in front of it, and none of its own two."""
    graph = graph_of()
    weights = graph.invars[:4]
    segments = cut(graph, weights, graph.outvars[:1], levels_by_boundaries(graph, weights))

    def products(function):
        gradient = jax.grad(lambda w: function(*w, X)[0])
        return primitive_counts(trace(gradient, W)[0].equations)["dot_general"]

    run = as_recomputing_function(segments, boundary_items(segments, keeps_last=True), "cpu")
    assert products(run) == products(loss) + 2


def test_the_least_is_kept():
    """Of a tanh and a sine of one product, that product: 512 bytes for 1024."""

    def both(w, x):
        z = x @ w
        return jnp.tanh(z) * jnp.sin(z)

    graph = trace(both, W[0], X)[0]
    joint = joint_graph(graph, [True, True], [True])
    (saved,) = joint.saved
    assert saved.aval.shape == (16, 8)
    made = {v: e.primitive.name for e in joint.forward.equations for v in e.outvars}
    assert made[saved] == "dot_general"
    assert len(joint.residuals) > 1
    # One for each of the two gradients; the product of forward is not made again.
    assert primitive_counts(joint.backward.equations)["dot_general"] == 2


def test_a_value_that_may_not_be_kept_is_cut_before_it():
    def square(w, x):
        z = x @ w
        return jnp.sin(jnp.exp(z))

    graph = trace(square, W[0], X)[0]
    costs = {v: 1 for e in graph.equations[:1] for v in e.outvars}
    needed_values = graph.equations[-1].invars
    (kept,) = least_kept(graph.equations, needed_values, costs)
    assert kept is graph.equations[0].outvars[0]


def looped(a, b, c, d, x):
    def step(carry, row):
        carry = jnp.tanh(carry @ a + row)
        return carry, carry * 2

    carry, outputs = lax.scan(step, jnp.zeros(8), x)
    return jnp.sum(outputs[-1] @ b) + jnp.sum(carry @ c), d


@pytest.mark.parametrize("chunks", [1, 3, 4, 16])
def test_chunks_of_a_loop_are_the_loop(chunks):
    graph = graph_of(looped)
    parts = needed(slices_of_inputs(trace(chunked_function(graph, lambda _: chunks), *W, X)[0]))
    assert primitive_counts(parts.equations)["scan"] == chunks
    assert "concatenate" not in primitive_counts(parts.equations)  # only the last is taken

    def of(graph):
        return jax.value_and_grad(lambda w: as_function(graph)(*w, X)[0])(W)

    for value, other in zip(jax.tree.leaves(of(parts)), jax.tree.leaves(of(graph)), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)


def test_a_loop_that_runs_backward_in_chunks():
    def reverse(a, b, c, d, x):
        def step(carry, row):
            return jnp.tanh(carry @ a + row), carry

        return lax.scan(step, jnp.zeros(8), x, reverse=True)

    graph = graph_of(reverse)
    parts = trace(chunked_function(graph, lambda _: 3), *W, X)[0]
    for found, expected in zip(as_function(parts)(*W, X), as_function(graph)(*W, X), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_each_segment_has_a_product():
    def deep(a, b, c, d, x):
        for w in (a, b, c, d) * 3:
            x = jnp.tanh(jnp.sin(x @ w) * 2)
        return jnp.sum(x)

    graph = graph_of(deep)
    levels = levels_by_cut_points(graph, graph.invars[:4])
    products = [
        level
        for level, equation in zip(levels, graph.equations, strict=True)
        if equation.primitive.name == "dot_general"
    ]
    assert products == list(range(12))
    # A product ends its segment: what follows from it is not kept besides.
    levels = levels_by_cut_points(graph, graph.invars[:4], most=4)
    assert max(levels) == 3


def test_choices_fall_in_memory_and_rise_in_flops():
    chain = chain_of(graph_of(looped), 4, [0])
    peaks = [choice.peak_bytes for choice in chain.choices]
    assert peaks == sorted(set(peaks), reverse=True)
    assert chain.extra(0) == 0
    assert [chain.extra(k) for k in range(len(peaks))] == sorted(
        chain.extra(k) for k in range(len(peaks))
    )
    assert chain.below(1.0) == 0
    assert chain.below(0.0) == len(peaks) - 1
    assert "nothing" in chain.describe(0)


def test_forms_follow_from_platform_and_layers():
    def convolve(a, b, c, d, x):
        return jnp.sum(lax.conv(x[None, None], a[None, None], (1, 1), "SAME")), b, c, d

    plain, loop = hold_back(graph_of(), "cpu"), hold_back(graph_of(looped), "cpu")
    barrier = hold_back(graph_of(), "cuda")
    assert plain.backward is loop.backward is loop.forward
    assert plain.forward is barrier.forward is AT_ONCE.forward
    assert hold_back(graph_of(convolve), "cpu") == barrier
