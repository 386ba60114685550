"""The update of two stages, cut out of that of a whole model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millrace._compat.jaxpr import as_function, trace
from millrace.run.pipelines.programs.split import Slot
from millrace.run.pipelines.programs.split_update import split_update

pytestmark = pytest.mark.quick

SHAPES = [(3,), (2, 2)]  # of a weight at stage 0, and of one at stage 1


def adam_like(gradients, slots, scale, weights):
    count, *moments = slots
    gradients = [g * scale for g in gradients]
    moments = [0.9 * m + g for m, g in zip(moments, gradients, strict=True)]
    weights = [w - m / (count + 1) for w, m in zip(weights, moments, strict=True)]
    return [count + 1, *moments], weights


def clipped(gradients, slots, scale, weights):
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients))
    return adam_like([g / jnp.maximum(norm, 1) for g in gradients], slots, scale, weights)


def skipping(gradients, slots, scale, weights):
    """As loss scaling does: one conditional around the whole update."""
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in gradients]))
    return jax.lax.cond(
        finite,
        lambda: adam_like(gradients, slots, scale, weights),
        lambda: (list(slots), list(weights)),
    )


def clipped_inside(gradients, slots, scale, weights):
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in gradients]))
    return jax.lax.cond(
        finite,
        lambda: clipped(gradients, slots, scale, weights),
        lambda: (list(slots), list(weights)),
    )


def two_rounds(gradients, slots, scale, weights):
    """A norm of gradients that a first norm has scaled."""
    norm = sum(jnp.sum(g * g) for g in gradients)
    gradients = [g / (1 + norm) for g in gradients]
    return clipped(gradients, slots, scale, weights)


def values():
    random = np.random.default_rng(2)

    def make(shape):
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    gradients = [make(shape) for shape in SHAPES]
    slots = [jnp.float32(3), *(make(shape) for shape in SHAPES)]
    return gradients, slots, jnp.float32(0.5), [make(shape) for shape in SHAPES]


def cut(update):
    graph, _ = trace(update, *values())
    optimizer = [Slot("optimizer", k) for k in range(3)]
    weights = [Slot("trainable", k) for k in range(2)]
    gradients = [Slot("gradient", k) for k in range(2)]
    inputs = [*gradients, *optimizer, Slot("scale", 0), *weights]
    homes = {slot: slot.index for slot in (*gradients, *weights)}
    return split_update(graph, inputs, [*optimizer, *weights], homes, last=1)


def run(found):
    gradients, slots, scale, weights = values()
    known = {Slot("scale", 0): scale}
    for role, group in (("gradient", gradients), ("optimizer", slots), ("trainable", weights)):
        known.update({Slot(role, k): value for k, value in enumerate(group)})
    for part in (*found.partial.values(), *found.shared.values()):
        outputs = as_function(part.graph)(*(known[slot] for slot in part.inputs))
        known.update(zip(part.outputs, outputs, strict=True))
    new = {}
    for part in found.final.values():
        outputs = as_function(part.graph)(*(known[slot] for slot in part.inputs))
        new.update(zip(part.outputs, outputs, strict=True))
    return [new[Slot("optimizer", k)] for k in range(3)], [
        new[Slot("trainable", k)] for k in (0, 1)
    ]


@pytest.mark.parametrize("update", [adam_like, clipped, skipping, clipped_inside, two_rounds])
def test_the_parts_compute_the_update(update):
    found = jax.tree.leaves(run(cut(update)))
    for one, other in zip(found, jax.tree.leaves(update(*values())), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def large_inputs(found, stage):
    return {
        (s.role, s.index) for s in found.final[stage].inputs if s.role in ("gradient", "trainable")
    }


@pytest.mark.parametrize("update", [adam_like, clipped, skipping])
def test_each_stage_takes_its_own_values_only(update):
    found = cut(update)
    for stage in (0, 1):
        assert large_inputs(found, stage) == {("gradient", stage), ("trainable", stage)}
    assert found.owners == {
        Slot("optimizer", 0): 1,
        Slot("optimizer", 1): 0,
        Slot("optimizer", 2): 1,
    }


def test_only_scalars_pass_between_stages():
    for update, parts in ((adam_like, 0), (clipped, 2), (skipping, 2)):
        found = cut(update)
        assert len(found.partial) == parts
        assert (not found.shared) == (parts == 0)
        for part in found.partial.values():
            assert all(var.aval.shape == () for var in part.graph.outvars)


@pytest.mark.parametrize("update", [clipped_inside, two_rounds])
def test_what_cannot_be_cut_takes_the_gradients_of_all(update):
    found = cut(update)
    assert ("gradient", 1) in large_inputs(found, 0)
