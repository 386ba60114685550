"""Other forms of loops: the same values, and less that backward keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from case_marks import slow
from millrace._compat.jaxpr import as_function, needed, primitive_counts, trace
from millrace.programs.recomputation.costs import nbytes
from millrace.programs.recomputation.joint_graph import joint_graph
from millrace.programs.recomputation.kernels import kernels_of, work_of
from millrace.programs.recomputation.scans import (
    FORMS,
    KEEP,
    ScanForm,
    is_long,
    with_last_results,
    with_loops,
)

A = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)) / 3, jnp.float32)


def steps(length):
    return jnp.asarray(np.random.default_rng(1).normal(size=(length, 4, 8)), jnp.float32)


def read_all(a, x, reverse=False):
    def step(carry, row):
        carry = jnp.tanh(carry @ a + row)
        return carry, carry * 2

    carry, outputs = lax.scan(step, jnp.zeros((4, 8)), x, reverse=reverse)
    return jnp.sum(jnp.sin(outputs)) + jnp.sum(carry)


def read_last(a, x, reverse=False):
    def step(carry, row):
        carry = jnp.tanh(carry @ a + row)
        return carry, carry * 2

    _, outputs = lax.scan(step, jnp.zeros((4, 8)), x, reverse=reverse)
    return jnp.sum(jnp.sin(outputs[0 if reverse else -1]))


def graph_of(function, x, **options):
    return needed(trace(lambda a, x: function(a, x, **options), A, x)[0])


@pytest.mark.parametrize(
    ("function", "length", "reverse"),
    [
        (read_all, 8, True),
        slow(read_all, 101, False),
        (read_last, 101, False),
        slow(read_last, 100, True),
    ],
)
def test_every_form_has_the_same_values_and_gradients(function, length, reverse):
    x = steps(length)
    graph = graph_of(function, x, reverse=reverse)
    gradient = jax.value_and_grad(lambda a, x: function(a, x, reverse=reverse), (0, 1))
    expected = jax.jit(gradient)(A, x)
    for form in FORMS:
        other = with_loops(with_last_results(graph), form)
        run = as_function(other)
        found = jax.jit(jax.value_and_grad(lambda a, x, run=run: run(a, x)[0], (0, 1)))(A, x)
        for value, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            largest = float(abs(wanted).max())
            np.testing.assert_allclose(value, wanted, rtol=2e-6, atol=1e-6 * largest)


def kept(graph):
    """Bytes alive between forward and backward."""
    joint = joint_graph(graph, [True, False], [True])
    kernels = kernels_of(joint.graph)
    return work_of(joint.graph, kernels).peak(tuple(range(len(kernels))))


def test_chunks_keep_the_least():
    graph = with_last_results(graph_of(read_last, steps(400)))
    sizes = {form: kept(with_loops(graph, form)) for form in FORMS}
    assert sizes[ScanForm(1.0)] < 0.1 * sizes[KEEP]
    assert sizes[ScanForm(is_lean=True)] <= sizes[KEEP]


def test_a_result_that_is_read_at_its_last_step_only_is_not_collected():
    graph = graph_of(read_last, steps(64))
    (before,) = (e for e in graph.equations if e.primitive.name == "scan")
    (after,) = (e for e in with_last_results(graph).equations if e.primitive.name == "scan")
    largest = max(nbytes(v) for v in before.outvars)
    assert largest == 64 * 4 * 8 * 4
    assert max(nbytes(v) for v in after.outvars) == 4 * 8 * 4


def test_results_that_are_read_elsewhere_are_collected():
    graph = graph_of(read_all, steps(64))
    assert with_last_results(graph) is graph


def test_short_loops_and_loops_that_print_stay():
    def prints(a, x):
        def step(carry, row):
            jax.debug.print("x")
            return jnp.tanh(carry @ a + row), None

        return jnp.sum(lax.scan(step, jnp.zeros((4, 8)), x)[0])

    for graph in (graph_of(read_all, steps(7)), graph_of(prints, steps(64))):
        assert not any(map(is_long, graph.equations))
        assert with_loops(graph, FORMS[-1]) is graph


def test_a_chunked_loop_has_one_body():
    graph = with_loops(graph_of(read_all, steps(1000)), ScanForm(1.0))
    counts = primitive_counts(joint_graph(graph, [True, False], [True]).graph.equations)
    assert counts["scan"] <= 7  # forward: outer and inner; backward: these, and forward again
