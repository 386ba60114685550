"""Kernels: what is an array in memory, and what the compiled memory of an order is."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millrace._compat.jaxpr import inlined, needed, trace
from millrace.programs.recomputation.kernels import kernels_of, work_of
from millrace.programs.recomputation.lean_loops import least_kept

X = jnp.ones((16, 8))
W = jnp.ones((8, 8))


def named(function, *arguments):
    graph = needed(inlined(trace(function, *arguments)[0]))
    return graph, [
        ([e.primitive.name for e in kernel.equations], len(kernel.outputs))
        for kernel in kernels_of(graph)
    ]


def test_a_product_is_a_kernel_and_what_follows_is_one():
    _, kernels = named(lambda x, w: jnp.tanh(jnp.exp(x @ w) + 1.0), X, W)
    assert kernels == [(["dot_general"], 1), (["exp", "add", "tanh"], 1)]


def test_what_is_cheap_is_computed_by_all_that_read_it():
    """A difference that a tanh and a product of numbers read."""
    _, kernels = named(lambda x: jnp.exp(x - x.mean()) * (x - x.mean()), X)
    assert [names for names, _ in kernels][-1].count("sub") == 2
    assert all(count == 1 for _, count in kernels)


def test_terms_of_a_long_sum_do_not_wait_for_each_other():
    def summed(x, *weights):
        return jnp.tanh(sum(x @ w for w in weights))

    graph, kernels = named(summed, X, *[W] * 8)
    sums = [number for number, (names, _) in enumerate(kernels) if names[0] == "add"]
    # sum() begins with a zero, which is a sum of its own.
    assert len(sums) == 8
    assert all(later - earlier <= 2 for earlier, later in itertools.pairwise(sums))
    work = work_of(graph, kernels_of(graph))
    assert work.peak(work.plain) == 2 * X.nbytes


def test_a_short_sum_is_one_kernel():
    _, kernels = named(
        lambda x, *weights: x @ weights[0] + x @ weights[1] + x @ weights[2], X, *[W] * 3
    )
    assert [names for names, _ in kernels if names[0] == "add"] == [["add", "add"]]


def test_what_a_product_reads_is_an_array():
    _, kernels = named(lambda x, w: (x * 2.0) @ w, X, W)
    assert kernels == [(["mul"], 1), (["dot_general"], 1)]


def test_a_mask_is_an_array_and_its_random_numbers_are_not_kept():
    """One byte an element, where random bits take four."""

    def dropped(key, x):
        mask = jax.random.bernoulli(key, 0.5, x.shape)
        y = jnp.where(mask, x, 0.0) @ W
        return jnp.where(mask, y, 0.0)

    graph, _ = named(dropped, jax.random.key(0), X)
    masks = [v.aval.dtype for k in kernels_of(graph) for v in k.outputs if v.aval.shape == X.shape]
    assert masks.count(jnp.bool_) == 1


def test_keys_are_no_arrays():
    graph, _ = named(lambda s, x: x + jax.random.normal(jax.random.key(s), x.shape), 3, X)
    for kernel in kernels_of(graph):
        assert all(jnp.issubdtype(v.aval.dtype, np.generic) for v in kernel.outputs)


def test_every_result_is_computed_by_one_kernel():
    def step(x, w):
        y = jnp.tanh(x @ w)
        return y, y.sum(), x, 3.0

    graph, _ = named(step, X, W)
    made = [var for kernel in kernels_of(graph) for var in kernel.outputs]
    assert len(made) == len(set(made))
    assert work_of(graph, kernels_of(graph)).results == frozenset({1, 2})


def test_what_prints_does_not_run_again():
    def prints(x):
        jax.debug.print("x")
        return jnp.sin(x)

    graph, _ = named(prints, X)
    assert [kernel.repeatable for kernel in kernels_of(graph)].count(False) == 1


def test_the_least_is_kept():
    """Of a tanh and a sine of one product, that product: 512 bytes for 1024."""

    def both(w, x):
        z = x @ w
        return jnp.tanh(z), jnp.sin(z)

    graph = trace(both, W, X)[0]
    cost = {v: v.aval.size for e in graph.equations for v in e.outvars}
    (kept,) = least_kept(graph.equations, graph.outvars, cost)
    assert kept is graph.equations[0].outvars[0]


def test_a_value_that_may_not_be_kept_is_cut_before_it():
    def square(w, x):
        z = x @ w
        return jnp.sin(jnp.exp(z))

    graph = trace(square, W, X)[0]
    costs = {v: 1 for e in graph.equations[:1] for v in e.outvars}
    (kept,) = least_kept(graph.equations, graph.equations[-1].invars, costs)
    assert kept is graph.equations[0].outvars[0]


@pytest.mark.parametrize("width", [1, 3])
def test_a_sum_of_many_is_no_longer_repeated(width):
    """Otherwise all terms of a residual stream would be kept instead of their sum."""

    def stream(x):
        terms = [jnp.tanh(x * k) for k in range(2, 3 + 4 * width)]
        total = x
        for term in terms:
            total = total + jnp.exp(term) + jnp.log1p(total.sum())
        return total

    graph, _ = named(stream, X)
    for kernel in kernels_of(graph):
        assert sum(v.aval.shape == X.shape for v in kernel.inputs) <= 6
