"""Updates within the order of a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millrace._compat.jaxpr import inlined, needed, trace
from millrace.programs.recomputation.evictions import cheapest_order
from millrace.programs.recomputation.joint_graph import Update, joint_graph, with_update
from millrace.programs.recomputation.kernel_work import Before, with_updates_early
from millrace.programs.recomputation.kernels import kernels_of, work_of
from millrace.programs.recomputation.ordered import OrderedKernels

DEPTH, WIDTH = 4, 8


def forward(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return (x**2).sum()


def momentum(weights, speeds, gradients):
    """Each weight by its own gradient."""
    speeds = [0.9 * s - 0.1 * g for s, g in zip(speeds, gradients, strict=True)]
    return [w + s for w, s in zip(weights, speeds, strict=True)], speeds


def clipped(weights, speeds, gradients):
    """Each weight by its own gradient, and the norms of both."""
    gradients = [g / (1 + (g**2).sum() ** 0.5) for g in gradients]
    new, speeds = momentum(weights, speeds, gradients)
    return [w / (1 + (w**2).sum() ** 0.5) for w in new], speeds


def normed(weights, speeds, gradients):
    """All gradients are needed for each."""
    norm = 1 + sum((g**2).sum() for g in gradients) ** 0.5
    return momentum(weights, speeds, [g / norm for g in gradients])


def swapped(weights, speeds, gradients):
    """Each of the first two is computed from the old value of the other."""
    new, speeds = momentum(weights, speeds, gradients)
    return [new[0] + weights[1], new[1] + weights[0], *new[2:]], speeds


WEIGHTS = [np.full((WIDTH, WIDTH), 0.1 * k, "float32") for k in range(DEPTH)]
SPEEDS = [np.ones((WIDTH, WIDTH), "float32")] * DEPTH
X = np.linspace(0, 1, 3 * WIDTH, dtype="float32").reshape(3, WIDTH)


def step(update):
    graph = needed(inlined(trace(forward, WEIGHTS, X)[0]))
    joint = joint_graph(graph, [True] * DEPTH + [False], [True])
    traced = trace(update, WEIGHTS, SPEEDS, WEIGHTS)[0]
    joint = with_update(joint, Update(traced, DEPTH))
    kernels = kernels_of(joint.graph, replaced=joint.replaced)
    return joint, kernels, work_of(joint.graph, kernels, joint.replaced)


@pytest.mark.parametrize("update", [momentum, clipped, normed, swapped])
def test_new_values_are_those_of_the_update_by_itself(update):
    joint, kernels, work = step(update)
    run = OrderedKernels(joint, kernels, work, work.plain).whole
    loss, *found = run(*WEIGHTS, X, *SPEEDS, np.float32(1))
    expected, gradients = jax.value_and_grad(forward)(WEIGHTS, X)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    new, speeds = update(WEIGHTS, SPEEDS, gradients)
    for value, other in zip(found, [*new, *speeds], strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def gradients_at_once(update):
    """Returns how many gradients are in memory at once, at most."""
    joint, kernels, work = step(update)
    names = [var for kernel in kernels for var in kernel.outputs]
    lifetimes = work.lifetimes(work.plain)
    of_gradients = [
        (begin, end)
        for value, begin, end in lifetimes
        if names[value].aval.shape == (WIDTH, WIDTH) and names[value] not in joint.replaced
    ]
    return max(
        sum(begin <= position <= end for begin, end in of_gradients)
        for position in range(len(work.plain))
    )


def test_an_update_follows_its_gradient():
    assert gradients_at_once(momentum) <= 2
    assert gradients_at_once(clipped) <= 2 + 1  # and a weight before it is divided
    assert gradients_at_once(normed) == DEPTH


@pytest.mark.parametrize("update", [momentum, clipped, normed])
def test_what_an_update_writes_over_is_read_no_more(update):
    joint, kernels, work = step(update)
    written = set()
    for number in work.plain:
        assert written.isdisjoint(kernels[number].inputs)
        written.update(joint.replaced[v] for v in kernels[number].outputs if v in joint.replaced)


def test_an_update_waits_for_what_runs_again():
    reads, writes = Before(makers=(1,)), Before(readers=(1,))
    for before in (reads, writes):
        assert with_updates_early((0, 1, 2, 3), {3: before}) == (0, 1, 3, 2)
    assert with_updates_early((0, 1, 2, 1, 4, 3), {3: reads}) == (0, 1, 2, 1, 3, 4)
    assert with_updates_early((0, 1, 2, 3, 1, 4), {3: reads}) == (0, 1, 3, 2, 1, 4)
    assert with_updates_early((0, 1, 2, 1, 4, 3), {3: writes}) == (0, 1, 2, 1, 3, 4)


def test_updates_that_wait_for_one_another_come_last():
    updates = {1: Before((0,), (2,)), 2: Before((0,), (1,))}
    assert with_updates_early((0, 1, 2, 3), updates) == (0, 3, 1, 2)


def scaled(weights, x):
    """The gradient of each weight is a sum over an activation and its gradient, not a product."""
    for weight in weights:
        x = jnp.tanh(jnp.exp(x * weight))
    return (x**2).sum()


@pytest.mark.parametrize("share", [0.8, 0.6, 0.4])
def test_early_updates_do_not_keep_activations(share):
    vectors = [np.full(WIDTH, 0.1 * k, "float32") for k in range(1, 9)]
    speeds, x = [np.ones(WIDTH, "float32")] * 8, np.ones((64, WIDTH), "float32")
    graph = needed(inlined(trace(scaled, vectors, x)[0]))
    joint = joint_graph(graph, [True] * 8 + [False], [True])
    joint = with_update(joint, Update(trace(momentum, vectors, speeds, vectors)[0], 8))
    kernels = kernels_of(joint.graph, replaced=joint.replaced, results=joint.results)
    work = work_of(joint.graph, kernels, joint.replaced)
    limit = int(share * work.peak(work.plain))
    order = cheapest_order(work, limit)
    assert order is not None
    assert work.peak(order) <= limit
    assert all(order.count(k) == 1 for k in work.updates)
    for k in work.updates:  # none of them is one of these sums
        assert sum(work.nbytes[value] == x.nbytes for value in work.inputs[k]) <= 1
    assert work.extra(order) <= 0.5 * sum(work.flops)


def narrowing(weights, x):
    """Large values and small weights, then small values and large weights."""
    for weight in weights[:DEPTH]:
        x = jnp.tanh(x @ weight)
    x = x.reshape(2, -1, x.shape[1]).mean(1)
    for weight in weights[DEPTH:]:
        x = jnp.tanh(x @ weight)
    return (x**2).sum()


def test_a_gradient_is_made_for_its_update_as_soon_as_it_can_be():
    """Not at the end, although it is larger than what it is computed from."""
    wide = 8 * WIDTH
    shapes = [*[(WIDTH, WIDTH)] * DEPTH, (WIDTH, wide), *[(wide, wide)] * DEPTH]
    weights = [np.full(shape, 0.1, "float32") for shape in shapes]
    x = np.ones((1024, WIDTH), "float32")
    graph = needed(inlined(trace(narrowing, weights, x)[0]))
    joint = joint_graph(graph, [True] * len(weights) + [False], [True])
    update = trace(momentum, weights, weights, weights)[0]
    joint = with_update(joint, Update(update, len(weights)))
    kernels = kernels_of(joint.graph, replaced=joint.replaced, results=joint.results)
    work = work_of(joint.graph, kernels, joint.replaced)
    reads = [[work.nbytes[value] for value in inputs] for inputs in work.inputs]
    of_wide = [k for k in work.plain if k in work.updates and 4 * wide * wide in reads[k]]
    *_, loss = (k for k in work.plain if kernels[k].outputs[0] is joint.results[0])
    of_narrow = [k for k in work.plain if k > loss and x.nbytes in reads[k]]
    assert len(of_wide) >= DEPTH
    assert max(of_wide) < min(of_narrow)
