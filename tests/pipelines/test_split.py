"""Stages cut from a traced function, with scopes written by hand as marked calls make them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millrace._compat.jaxpr import as_function, trace
from millrace.errors import ModelError
from millrace.run.pipelines.programs.equation_stages import MODEL_SCOPE, Marks
from millrace.run.pipelines.programs.split import Slot, split

pytestmark = pytest.mark.quick

F32 = jax.ShapeDtypeStruct((3,), jnp.float32)


def call(number):
    return jax.named_scope(f"{MODEL_SCOPE}/mr.L{number}")


def cut(step, inputs, outputs, stages, specs=None):
    """Cuts `step`, whose inputs and outputs are slots, by the stages of its calls."""
    graph, result = trace(step, *(specs or [F32] * len(inputs)))
    marks = Marks(stages, max(stages) + 1, [f"layer_{k}" for k in range(len(stages))])
    return split(graph, inputs, outputs, result, marks, lambda slot: f"Variable {slot.index}")


def operations(stage):
    return [equation.primitive.name for equation in stage.graph.equations]


W = [Slot("trainable", k) for k in range(4)]
X, Y = Slot("batch", 0), Slot("batch", 1)
LOSS = Slot("loss", 0)


def test_values_go_to_every_stage_that_takes_them():
    def step(w, x):
        with call(0):
            a = x * w
        with call(1):
            b = jnp.sin(a)
        with call(2):
            c = b + a
        return jnp.sum(c)

    found = cut(step, [W[0], X], [LOSS], [0, 1, 2])
    assert [(v.producer, v.consumers) for v in found.values] == [(0, (1, 2)), (1, (2,))]
    assert [stage.carried for stage in found.stages] == [(), (0,), (0, 1)]
    assert [stage.sent for stage in found.stages] == [(0,), (1,), ()]
    assert [stage.batch for stage in found.stages] == [(0,), (), ()]
    assert [stage.has_loss for stage in found.stages] == [False, False, True]
    assert found.values[0].nbytes == 12


def test_stages_compute_what_the_whole_computes():
    def step(w, v, x, y):
        with call(0):
            a = jnp.tanh(x * w)
        with call(1):
            b = jnp.tanh(a * v)
        return jnp.mean((b - y) ** 2) + 0.1 * jnp.sum(w**2)

    found = cut(step, [W[0], W[1], X, Y], [LOSS], [0, 1])
    w, v, x, y = (np.linspace(k, k + 1, 3, dtype=np.float32) for k in range(4))
    sent = as_function(found.stages[0].graph)(w, x)
    (loss,) = as_function(found.stages[1].graph)(v, y, *sent)
    np.testing.assert_allclose(loss, step(w, v, x, y), rtol=1e-6)


def test_a_penalty_is_computed_where_its_weight_lives():
    def step(w, v, x):
        with call(0):
            a = x * w
        with call(1):
            b = a * v
        return jnp.sum(b) + jnp.sum(w**2) + jnp.sum(v**2)

    found = cut(step, [W[0], W[1], X], [LOSS], [0, 1])
    assert [stage.trainable for stage in found.stages] == [(0,), (1,)]
    assert found.values[-1].shape == ()  # the penalty of w, not w


def test_what_follows_from_a_tied_weight_is_there_for_every_stage_between_its_uses():
    def step(w, x):
        with call(0):
            a = x * w
        turned = w[::-1]
        with call(1):
            b = a * turned
        with call(2):
            c = b * w
        return jnp.sum(c) + jnp.sum(w**2)

    found = cut(step, [W[0], X], [LOSS], [0, 1, 2])
    assert ["rev" in operations(stage) for stage in found.stages] == [True, False, False]
    assert [stage.trainable for stage in found.stages] == [(0,), (), (0,)]
    assert [v.shape for v in found.values if v.consumers == (2,)] == [(3,), ()]  # b, the penalty


def test_what_follows_from_the_batch_is_computed_where_it_is_needed():
    def step(w, x, y):
        labels = jnp.cumsum(y)
        with call(0):
            a = x * w
        with call(1):
            b = a + 1
        return jnp.sum(b * labels)

    found = cut(step, [W[0], X, Y], [LOSS], [0, 1])
    assert [stage.batch for stage in found.stages] == [(0,), (1,)]


def test_an_operation_between_calls_follows_its_latest_value():
    def step(w, x):
        with call(0):
            a = x * w
        with jax.named_scope(MODEL_SCOPE):
            between = jnp.exp(a)
        with call(1):
            b = between + 1
        return jnp.sum(b)

    found = cut(step, [W[0], X], [LOSS], [0, 1])
    assert "exp" in operations(found.stages[0])


def test_an_operation_between_calls_of_two_stages_belongs_to_the_later_one():
    def step(w, x):
        with call(0):
            a = x * w
        with call(1):
            b = jnp.sin(a)
        with jax.named_scope(MODEL_SCOPE):
            skip = jnp.maximum(a, b)
        with call(2):
            c = jnp.cos(skip)
        return jnp.sum(c)

    found = cut(step, [W[0], X], [LOSS], [0, 1, 2])
    assert ["max" in operations(stage) for stage in found.stages] == [False, True, False]
    assert [(v.producer, v.consumers) for v in found.values] == [(0, (1,)), (1, (2,))]


def test_the_innermost_of_two_scopes_decides():
    def step(w, x):
        with call(0):
            a = x * w
            with call(1):
                b = jnp.sin(a)
        return jnp.sum(b)

    found = cut(step, [W[0], X], [LOSS], [0, 1])
    assert [stage.trainable for stage in found.stages] == [(0,), ()]
    assert "sin" in operations(found.stages[1])


def test_the_loss_is_in_the_last_stage_even_of_an_early_output():
    def step(w, x, y):
        with call(0):
            a = x * w
        with call(1):
            b = jnp.sin(y)
        return jnp.sum(a * a) + jnp.sum(b)

    found = cut(step, [W[0], X, Y], [LOSS], [0, 1])
    assert [v.shape for v in found.values] == [(3,)]  # the output itself is carried


@pytest.mark.parametrize("of_weights", [False, True])
def test_whole_numbers_get_no_cotangent(of_weights):
    def step(w, x):
        with call(0):
            a = x * w
            ids = jnp.argsort(a if of_weights else x)
        with call(1):
            b = a[ids]
        return jnp.sum(b)

    found = cut(step, [W[0], X], [LOSS], [0, 1])
    by_kind = {str(v.dtype): v.differentiable for v in found.values}
    assert by_kind == {"float32": True, "int32": False}


def test_what_no_weight_has_touched_gets_no_cotangent():
    def step(w, x):
        with call(0):
            a = jnp.sin(x)
        with call(1):
            b = a * w
        return jnp.sum(b)

    assert not cut(step, [W[0], X], [LOSS], [0, 1]).values[0].differentiable


def test_a_tied_weight_lives_at_its_first_stage():
    def step(w, x):
        with call(0):
            a = x * w
        with call(1):
            b = jnp.sin(a)
        with call(2):
            c = b * w
        return jnp.sum(c)

    found = cut(step, [W[0], X], [LOSS], [0, 1, 2])
    assert found.owners[W[0]] == 0
    assert [stage.trainable for stage in found.stages] == [(0,), (), (0,)]
    assert found.values[0].consumers == (1,)  # the weight itself is not sent with micro-batches


def test_state_that_two_stages_use_is_refused():
    state = Slot("non_trainable", 0)

    def step(mean, x):
        with call(0):
            a = x - mean
            mean = 0.9 * mean + 0.1 * x
        with call(1):
            b = a + mean
            mean = 0.9 * mean + 0.1 * b
        return {"loss": jnp.sum(b), "non_trainable": mean}

    with pytest.raises(ModelError, match=r"Variable 0 changes.*stages \[0, 1\].*layer of its own"):
        cut(step, [state, X], [LOSS, state], [0, 1])


def test_state_that_is_only_read_may_be_used_anywhere():
    state = Slot("non_trainable", 0)

    def step(mean, x):
        with call(0):
            a = x - mean
        with call(1):
            b = a * mean
        return {"loss": jnp.sum(b), "non_trainable": mean}

    found = cut(step, [state, X], [LOSS, state], [0, 1])
    assert [stage.state for stage in found.stages] == [(state,), (state,)]
    assert [stage.new_state for stage in found.stages] == [(), ()]


def test_a_stage_cannot_take_what_a_later_one_makes():
    def step(w, x):
        with call(0):
            a = x * w
        with call(1):
            b = a + 1
        return jnp.sum(b)

    with pytest.raises(ModelError, match=r"Layer 'layer_1' on stage 0 .* stage 1 makes"):
        cut(step, [W[0], X], [LOSS], [1, 0])


def test_one_loop_cannot_span_stages():
    def step(w, x):
        def turn(carry, _):
            with call(0):
                carry = carry * w
            with call(1):
                carry = jnp.sin(carry)
            return carry, None

        with jax.named_scope(MODEL_SCOPE):
            a, _ = jax.lax.scan(turn, x, None, length=3)
        return jnp.sum(a)

    with pytest.raises(ModelError, match=r"\(scan\) spans the stages \[0, 1\].*outside of it"):
        cut(step, [W[0], X], [LOSS], [0, 1])


def test_scopes_within_a_call_decide_where_no_list_is_set():
    def step(w, x):
        with jax.named_scope(f"{MODEL_SCOPE}/mr.S0"), call(0):
            a = x * w
        with jax.named_scope(f"{MODEL_SCOPE}/mr.S1"), call(1):
            b = jnp.sin(a)
        return jnp.sum(b)

    graph, result = trace(step, F32, F32)
    marks = Marks(None, 2, [])
    found = split(graph, [W[0], X], [LOSS], result, marks, str)
    assert [len(stage.carried) for stage in found.stages] == [0, 1]


S = Slot("non_trainable", 0)


def outside():
    """The scope of operations of the model that are in none of its layers."""
    return jax.named_scope(MODEL_SCOPE)


def test_state_outside_of_layers_is_renewed_where_it_is_used():
    def step(w, s, x):
        with outside():
            noise, after = jnp.sin(s), s + 1
        with call(0):
            a = x * w + noise
        with call(1):
            b = jnp.tanh(a)
        return jnp.sum(b), after

    found = cut(step, [W[0], S, X], [LOSS, S], [0, 1])
    assert [stage.new_state for stage in found.stages] == [(S,), ()]
    assert found.owners[S] == 0


def test_state_that_is_renewed_twice_is_on_the_stage_of_its_first_use():
    """As of a seed generator of the model: its second value goes to the second stage."""

    def step(w, s, x):
        with outside():
            first, s = jnp.sin(s), s + 1
        with call(0):
            a = x * w + first
        with outside():
            second, s = jnp.sin(s), s + 1
        with call(1):
            b = jnp.tanh(a) * second
        return jnp.sum(b), s

    found = cut(step, [W[0], S, X], [LOSS, S], [0, 1])
    assert [stage.new_state for stage in found.stages] == [(S,), ()]
    assert operations(found.stages[0]).count("sin") == 1
    assert operations(found.stages[1]).count("sin") == 1
    assert [(v.producer, v.consumers) for v in found.values] == [(0, (1,)), (0, (1,))]


def test_state_that_nothing_else_uses_is_on_the_last_stage():
    def step(w, s, x):
        with outside():
            after = s + 1
        with call(0):
            a = x * w
        with call(1):
            b = jnp.tanh(a)
        return jnp.sum(b), after

    found = cut(step, [W[0], S, X], [LOSS, S], [0, 1])
    assert [stage.new_state for stage in found.stages] == [(), (S,)]


def test_state_that_layers_of_two_stages_use_is_refused():
    def step(w, s, x):
        with call(0):
            a = x * w + s
        with call(1):
            b = jnp.tanh(a) * s
        return jnp.sum(b), s + 1

    with pytest.raises(ModelError, match=r"Variable 0 changes with .* used by the stages \[0, 1\]"):
        cut(step, [W[0], S, X], [LOSS, S], [0, 1])
