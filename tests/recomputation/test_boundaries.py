"""Boundaries that a user sets, on small functions in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millrace._compat.jaxpr import needed, primitive_counts, trace
from millrace.programs.recomputation.boundaries import (
    kernels_between_boundaries,
    levels_by_boundaries,
    mark_boundary,
)
from millrace.programs.recomputation.joint_graph import joint_graph

W = [jnp.asarray(np.random.default_rng(k).normal(size=(8, 8)) / 3, jnp.float32) for k in range(4)]
X = jnp.asarray(np.random.default_rng(9).normal(size=(16, 8)), jnp.float32)


def loss(a, b, c, d, x):
    x = jnp.sin(x @ a)
    x = mark_boundary(x)
    skip = x
    x = jnp.sin(x @ b)
    x = mark_boundary({"x": x})["x"]
    return jnp.sum((jnp.sin(x @ c) + skip) @ d), jnp.mean(x)


def graph_of(function=loss):
    return needed(trace(function, *W, X)[0])


def kernels_of(function, keeps_last=True, is_whole=False):
    graph = graph_of(function)
    learns = [k < 4 for k in range(len(graph.invars))]
    answered = [k == 0 for k in range(len(graph.outvars))]
    joint = joint_graph(graph, learns, answered)
    return kernels_between_boundaries(joint, 4, keeps_last, is_whole), learns, answered


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


def test_what_is_needed_at_two_levels_is_made_at_the_first():
    def twice(a, b, c, d, x):
        mask = x > 0
        x = mark_boundary(jnp.tanh((x * mask) @ a))
        return jnp.sum((x * mask) @ d), b, c

    graph = graph_of(twice)
    levels = levels_by_boundaries(graph, graph.invars[:4])
    (made,) = (
        level
        for level, equation in zip(levels, graph.equations, strict=True)
        if equation.primitive.name == "gt"
    )
    assert made == 0


@pytest.mark.parametrize("keeps_last", [True, False])
@pytest.mark.parametrize("is_whole", [True, False])
def test_gradients_are_those_of_jax(keeps_last, is_whole):
    kernels, learns, answered = kernels_of(loss, keeps_last, is_whole)

    def of(function):
        return jax.jit(jax.value_and_grad(lambda w: tuple(function(*w, X)), has_aux=True))(W)

    expected = of(loss)
    found = jax.tree.leaves(of(kernels.apart(learns, answered)))
    results = kernels.whole(*W, X, jnp.ones(()))
    for values in (found, results):
        for value, other in zip(values, jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)


def test_what_no_segment_makes_is_returned_as_it_is():
    table = jnp.arange(3.0)

    def with_table(a, b, c, d, x):
        x = mark_boundary(jnp.tanh(x @ a))
        return jnp.sum(x @ b), table, c, 2.0

    kernels, learns, answered = kernels_of(with_table, keeps_last=False)
    _, *found = kernels.apart(learns, answered)(*W, X)
    for value, expected in zip(found, (table, W[2], 2.0), strict=True):
        np.testing.assert_array_equal(value, expected)


def products(function):
    return primitive_counts(trace(function, *W, X)[0].equations)["dot_general"]


def test_what_is_behind_the_last_boundary_is_not_run_again():
    """One product for each of the two segments in front of it, and none of its own two."""
    kernels, _, _ = kernels_of(loss)
    plain = products(lambda *w: jax.grad(lambda v: loss(*v, X)[0])(list(w[:4])))
    assert products(lambda *w: kernels.whole(*w, jnp.ones(()))) == plain + 2


def test_a_whole_stage_runs_again():
    kernels, _, _ = kernels_of(loss, keeps_last=False, is_whole=True)
    again = [k for k in set(kernels.order) if kernels.order.count(k) == 2]
    names = [e.primitive.name for k in again for e in kernels.kernels[k].equations]
    assert names.count("dot_general") == 3  # the last product is the loss's, which backward skips
    assert (
        kernels_of(loss, keeps_last=True, is_whole=True)[0].work.extra(
            kernels_of(loss, keeps_last=True, is_whole=True)[0].order
        )
        == 0
    )


def test_a_segment_that_prints_runs_once(capfd):
    def prints(a, b, c, d, x):
        x = jnp.tanh(x @ a)
        jax.debug.print("here")
        x = mark_boundary(x)
        x = mark_boundary(jnp.tanh(x @ b))
        return jnp.sum(x @ c), d

    kernels, _, _ = kernels_of(prints)
    jax.block_until_ready(jax.jit(kernels.whole)(*W, X, jnp.ones(())))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("here") == 1
