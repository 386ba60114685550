import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import stages as small

from case_marks import slow
from millrace._compat.jaxpr import as_function
from millrace.run.pipelines.programs.passes import make_passes

pytestmark = pytest.mark.quick


def values_of(split, model):
    """Runs the stages forward one after the other; returns each one's inputs and outputs."""
    state = small.state_of(model)
    leaves = jax.tree.leaves(small.batch())
    sent, runs = {}, []
    for stage in split.stages:
        inputs = [state.trainable[k] for k in stage.trainable]
        inputs += [getattr(state, slot.role)[slot.index] for slot in stage.state]
        inputs += [leaves[k] for k in stage.batch] + [sent[n] for n in stage.carried]
        passes = make_passes(stage, split)
        outputs = as_function(passes.forward)(*inputs)
        sent.update(zip(stage.sent, outputs, strict=False))
        runs.append((stage, passes, inputs, outputs))
    return runs


def held_of(stage, passes, inputs, outputs):
    carried = len(inputs) - len(stage.carried)
    groups = {
        "batch": inputs[carried - len(stage.batch) : carried],
        "carried": inputs[carried:],
        "sent": outputs[: len(stage.sent)],
        "residual": outputs[len(stage.sent) + len(stage.new_state) + len(stage.results) :],
    }
    return [groups[source][place] for source, place in passes.held]


def gradients(model, stages, halves):
    """Gradients by the passes, from the last stage to the first."""
    split = small.cut(model, stages)
    found, answers = {}, {}
    for stage, passes, inputs, outputs in reversed(values_of(split, model)):
        weights = inputs[: len(stage.trainable)]
        held = held_of(stage, passes, inputs, outputs)
        received = [answers[key] for key in passes.cotangents]
        count = len(passes.returns)
        if halves:
            results = as_function(passes.backward_input)(*weights, *held, *received)
            returned, kept = results[:count], results[count:]
            made = as_function(passes.backward_weight)(
                *weights,
                *(held[k] for k in passes.weight_held),
                *(received[k] for k in passes.weight_cotangents),
                *kept,
            )
        else:
            results = as_function(passes.backward)(*weights, *held, *received)
            returned, made = results[:count], results[count:]
        answers.update({(n, stage.index): c for n, c in zip(passes.returns, returned, strict=True)})
        for weight, gradient in zip(stage.trainable, made, strict=True):
            found[weight] = found.get(weight, 0) + gradient
    return [found[k] for k in range(len(model.trainable_variables))]


def plain_gradients(model):
    state = small.state_of(model)
    x, y, _ = small.batch()

    def loss(trainable):
        return model.compute_loss_and_updates(
            trainable, state.non_trainable, state.metric, x, y, None, training=True,
            optimizer_variables=state.optimizer,
        )[0]  # fmt: skip

    return jax.grad(loss)(list(state.trainable))


def assert_same(found, wanted):
    """Within 1e-6 of the largest gradient: that of a bias before BatchNormalization is only noise,
    what is left of sums that cancel."""
    scale = max(float(np.abs(each).max()) for each in wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("stages", [[0, 0, 1, 1, 1], [0, 1, 2, 2, 3]])
def test_gradients_are_those_of_the_whole_model(stages, halves):
    model = small.compiled(small.mlp())
    assert_same(gradients(model, stages, halves), plain_gradients(model))


def flops(graph):
    specs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in graph.invars]
    analysis = jax.jit(as_function(graph)).lower(*specs).compile().cost_analysis()
    return analysis["flops"]


def products(graph):
    return sum(e.primitive.name == "dot_general" for e in graph.equations)


@pytest.mark.slow
def test_the_halves_of_backward_take_the_flops_of_backward():
    """Zero bubble recomputes nothing: 12 products in all for four layers, as plain backward."""
    model = keras.Sequential([keras.Input((6,)), *(keras.layers.Dense(64, "tanh") for _ in "1234")])
    model = small.compiled(keras.Sequential([model, keras.layers.Dense(1)]))
    split = small.cut(model, [0, 0, 1, 1, 1])
    for stage in split.stages:
        passes = make_passes(stage, split)
        whole = flops(passes.backward)
        parts = flops(passes.backward_weight)
        if passes.returns:
            parts += flops(passes.backward_input)
            layers = len(stage.trainable) // 2
            assert products(passes.backward_input) == layers
            assert products(passes.backward_weight) == layers
            assert products(passes.backward) == 2 * layers
        assert parts <= whole * 1.001


@pytest.mark.parametrize("policy", [slow("float32"), "mixed_bfloat16"])
def test_weights_are_never_residuals(policy):
    """Nor is their cast: backward makes it again from the weights, one for each update in use."""
    keras.config.set_dtype_policy(policy)
    width = 32  # of no batch axis, so a weight is known by its shape
    model = small.compiled(small.mlp(width))
    split = small.cut(model, [0, 0, 1, 1, 1])
    for stage in split.stages:
        passes = make_passes(stage, split)
        first = len(stage.trainable)
        held = passes.backward.invars[first : first + len(passes.held)]
        shapes = [var.aval.shape for var in held]
        assert (width, width) not in shapes
        assert (6, width) not in shapes
        assert len(set(held)) == len(held)


def test_what_forward_sends_or_takes_is_not_kept_twice():
    dense = [keras.layers.Dense(4, "exponential") for _ in range(3)]
    model = small.compiled(keras.Sequential([keras.Input((6,)), *dense, keras.layers.Dense(1)]))
    split = small.cut(model, [0, 1, 1, 2])
    sources = [{source for source, _ in make_passes(s, split).held} for s in split.stages]
    assert "batch" in sources[0]  # x, for the gradient of the first kernel
    assert "sent" in sources[0]  # the derivative of the exponential is itself
    assert "carried" in sources[1]


def test_a_stage_that_gives_nothing_back_leaves_all_work_to_the_weight_half():
    model = small.compiled(small.mlp())
    split = small.cut(model, [0, 0, 1, 1, 1])
    first = make_passes(split.stages[0], split)
    assert first.returns == ()
    assert len(first.backward_input.equations) == 0
    assert products(first.backward_weight) == products(first.backward)


@pytest.mark.slow
def test_the_cotangents_of_a_value_are_added_up():
    inputs = keras.Input((6,))
    first = keras.layers.Dense(6, "tanh")(inputs)
    second = keras.layers.Dense(6, "tanh")(first)
    third = keras.layers.Dense(6, "tanh")(second + first)
    model = small.compiled(keras.Model(inputs, keras.layers.Dense(1)(third * first)))
    split = small.cut(model, [0, 1, 2, 2, 3, 3])
    assert next(value.consumers for value in split.values) == (1, 2, 3)
    passes = make_passes(split.stages[0], split)
    assert [consumer for _, consumer in passes.cotangents] == [3, 2, 1]
    assert_same(gradients(model, [0, 1, 2, 2, 3, 3], True), plain_gradients(model))


def test_printing_inside_a_stage_goes_on(capfd):
    class Prints(keras.layers.Layer):
        def call(self, inputs):
            jax.debug.print("sum {}", jnp.sum(inputs))
            return inputs

    model = small.compiled(keras.Sequential([keras.Input((6,)), Prints(), keras.layers.Dense(1)]))
    jax.effects_barrier()
    capfd.readouterr()
    values_of(small.cut(model, [0, 1]), model)
    jax.effects_barrier()
    assert "sum" in capfd.readouterr().out
