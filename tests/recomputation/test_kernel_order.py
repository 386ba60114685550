"""The order of kernels when nothing runs again."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millrace._compat.jaxpr import inlined, needed, trace
from millrace.programs.recomputation.evictions import cheapest_order
from millrace.programs.recomputation.joint_graph import joint_graph
from millrace.programs.recomputation.kernel_order import depth_first
from millrace.programs.recomputation.kernel_work import KernelWork
from millrace.programs.recomputation.kernels import kernels_of, work_of
from millrace.programs.recomputation.ordered import OrderedKernels

DEPTH, ROWS, WIDTH = 8, 512, 8
RNG = np.random.default_rng(0)
WEIGHTS = list(RNG.normal(0, 0.3, (3 * DEPTH, WIDTH, WIDTH)).astype("float32"))
X = RNG.normal(size=(ROWS, WIDTH)).astype("float32")


def with_skips_at_the_end(weights, x):
    """Blocks, each with a product for the end; these run after all blocks, as in Keras."""
    blocks, skips = weights[: 2 * DEPTH], weights[2 * DEPTH :]
    values = []
    for k in range(DEPTH):
        z = jnp.tanh(x @ blocks[2 * k])
        values.append(z)
        x = x + z @ blocks[2 * k + 1]
    total = values[0] @ skips[0]
    for z, skip in zip(values[1:], skips[1:], strict=True):
        total = total + z @ skip
    return (jnp.sin(total) ** 2).mean()


def with_penalties(weights, x):
    """The squares of each value are summed, and added to the loss at the end."""
    values = []
    for weight in weights:
        x = jnp.tanh(x @ weight)
        values.append(x)
    penalties = [(value**2).sum() for value in values]
    return (x**2).mean() + sum(penalties)


def with_prints(weights, x):
    z = jnp.tanh(x @ weights[0])
    jax.debug.print("{z}", z=z.sum())
    return (z**2).mean()


def step(function, is_ordered=True):
    """Returns forward and backward, the kernels, and the kernels as numbers."""
    graph = needed(inlined(trace(function, WEIGHTS, X)[0]))
    joint = joint_graph(graph, [True] * 3 * DEPTH + [False], [True])
    kernels = kernels_of(joint.graph, results=joint.results if is_ordered else ())
    return joint, kernels, work_of(joint.graph, kernels)


@pytest.mark.parametrize("function", [with_skips_at_the_end, with_penalties])
def test_the_values_are_those_of_the_function(function):
    joint, kernels, work = step(function)
    for order in (work.plain, cheapest_order(work, work.peak(work.plain) * 6 // 10)):
        found = OrderedKernels(joint, kernels, work, order).whole(*WEIGHTS, X, np.float32(1))
        loss, gradients = jax.value_and_grad(function)(WEIGHTS, X)
        for value, other in zip(found, [loss, *gradients], strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_half_of_the_memory_of_skips_to_the_end_is_cheap():
    """Each waits for the end no longer, nor does its gradient for its block."""
    traced, here = step(with_skips_at_the_end, is_ordered=False)[2], step(with_skips_at_the_end)[2]
    limit = traced.peak(traced.plain) // 2
    assert here.peak(here.plain) <= 0.8 * traced.peak(traced.plain)
    order = cheapest_order(here, limit)
    assert here.peak(order) <= limit
    assert here.extra(order) <= 0.15 * sum(here.flops)
    before = cheapest_order(traced, limit)
    assert before is None or traced.extra(before) >= 4 * here.extra(order)


def test_what_is_small_runs_right_after_what_it_reads():
    """But for the last value, which the mean reads, too."""
    _, kernels, work = step(with_penalties)
    sums = [
        k
        for k, kernel in enumerate(kernels)
        if kernel.equations[-1].primitive.name == "reduce_sum" and not kernel.outputs[0].aval.ndim
    ]
    *penalties, penalty_of_last, mean = sums
    assert len(penalties) == 3 * DEPTH - 1
    assert [work.maker[value] for k in penalties for value in work.inputs[k]] == [
        k - 1 for k in penalties
    ]
    assert work.inputs[penalty_of_last] == work.inputs[mean]


def test_what_prints_keeps_its_place():
    work = step(with_prints)[2]
    assert depth_first(work, [0]) == work.plain


@pytest.mark.parametrize("seed", range(60))
def test_any_graph_is_run_in_an_order_that_it_can_run_in(seed):
    rng = random.Random(seed)
    size = rng.randint(2, 40)
    forward = rng.randint(1, size)
    inputs = []
    for kernel in range(size):
        count = min(kernel, rng.choice([0, 1, 1, 2, 2, 3]))
        inputs.append(tuple(sorted(rng.sample(range(kernel), count))))
    results = sorted(rng.sample(range(forward), rng.randint(1, min(3, forward))))
    work = KernelWork(
        inputs=tuple(inputs),
        outputs=tuple((k,) for k in range(size)),
        nbytes=tuple(rng.choice([0, 1, 4, 40]) for _ in range(size)),
        flops=(1.0,) * size,
        working_bytes=(0,) * size,
        in_place=(False,) * size,
        repeatable=(True,) * size,
        results=frozenset([*results, size - 1]),
    )
    order = depth_first(work, results)
    assert sorted(order) == list(range(size))
    place = {kernel: k for k, kernel in enumerate(order)}
    assert all(place[read] < place[k] for k, reads in enumerate(inputs) for read in reads)
