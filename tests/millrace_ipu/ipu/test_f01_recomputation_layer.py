import jax
import keras
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu.ipu.addons.keras.layers import RecomputationCheckpoint
from millrace_ipu.ipu.ops.schedules import PipelineSchedule, RecomputationMode

ROWS, WIDTH, ACCUMULATION = 4, 6, 2


def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS * ACCUMULATION, WIDTH)).astype("float32")
    return x, np.tanh(x[:, :1])


def build(layer):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((WIDTH,))
    for _ in range(3):
        x = layer()(keras.layers.Dense(8, "tanh")(x))
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def gradients(model):
    """Returns the gradients of the mean over all rows."""
    x, y = data()

    def loss(trainable):
        return ((model.stateless_call(trainable, [], x)[0] - y) ** 2).mean()

    return jax.grad(loss)([variable.value for variable in model.trainable_variables])


def test_f01_outputs_and_gradients_are_those_without_the_layer():
    model, plain = build(RecomputationCheckpoint), build(keras.layers.Identity)
    np.testing.assert_allclose(model(data()[0]), plain(data()[0]), atol=1e-6)
    for mine, theirs in zip(gradients(model), gradients(plain), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_f01_a_recomputed_pipeline_moves_weights_by_the_same_gradients(system):
    system(1, allow_recompute=True)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = build(RecomputationCheckpoint)
        calls = model.get_pipeline_stage_assignment()
        for number, call in enumerate(calls):
            call.pipeline_stage = int(number >= len(calls) - 1)
        model.set_pipeline_stage_assignment(calls)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=ACCUMULATION,
            device_mapping=[0, 0],
            pipeline_schedule=PipelineSchedule.Sequential,
            recomputation_mode=RecomputationMode.RecomputeAndBackpropagateInterleaved,
        )
        model.compile(keras.optimizers.SGD(1.0), "mse", steps_per_execution=ACCUMULATION)
        before = model.get_weights()
        model.fit(*data(), batch_size=ROWS, shuffle=False, verbose=0)
    expected = gradients(build(keras.layers.Identity))
    for old, new, gradient in zip(before, model.get_weights(), expected, strict=True):
        # The sum over micro-batches is their number times the gradient of the mean.
        np.testing.assert_allclose(old - new, ACCUMULATION * gradient, atol=1e-6)


def test_f01_any_structure_comes_back_and_there_are_no_weights():
    layer = RecomputationCheckpoint(name="marked")
    value = {
        "a": np.ones(3, "float32"),
        "b": (np.zeros((2, 1), "float32"), [np.arange(4, dtype="int32")]),
    }
    actual = layer(value)
    assert jax.tree.structure(actual) == jax.tree.structure(value)
    for mine, original in zip(jax.tree.leaves(actual), jax.tree.leaves(value), strict=True):
        np.testing.assert_array_equal(mine, original)
        assert mine.dtype == original.dtype
    assert layer.weights == []
    assert RecomputationCheckpoint.from_config(layer.get_config()).name == "marked"


def test_f01_the_layer_is_where_each_release_has_it():
    assert ipu.keras.layers.RecomputationCheckpoint is RecomputationCheckpoint


@pytest.mark.parametrize("time_major", [False, True])
def test_f05_fused_cells_are_layers_of_keras(time_major):
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    stock = keras.layers.LSTM(4, return_sequences=True, return_state=True)
    expected = stock(x)
    layer = ipu.keras.layers.PopnnLSTM(
        4, return_sequences=True, return_state=True, time_major=time_major, dropout_seed=[3, 4]
    )
    turned = (lambda a: np.swapaxes(a, 0, 1)) if time_major else (lambda a: a)
    layer(turned(x))
    layer.set_weights(stock.get_weights())
    actual, *states = layer(turned(x))
    np.testing.assert_allclose(turned(np.asarray(actual)), expected[0], atol=1e-6)
    for mine, theirs in zip(states, expected[1:], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    assert type(layer).from_config(layer.get_config()).time_major == time_major
    assert not ipu.keras.layers.PopnnGRU(4).reset_after


@pytest.mark.parametrize("strided", [False, True])
def test_f05_groups_of_channels_are_normalized(strided):
    x = np.random.default_rng(0).normal(size=(2, 3, 3, 8)).astype("float32")
    layer = ipu.keras.layers.GroupNorm(2, strided_channel_grouping=strided)
    groups = [x[..., 0::2], x[..., 1::2]] if strided else [x[..., :4], x[..., 4:]]
    expected = np.empty_like(x)
    for number, group in enumerate(groups):
        mean, variance = (f(group, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.var))
        channels = slice(number, None, 2) if strided else slice(4 * number, 4 * number + 4)
        expected[..., channels] = (group - mean) / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"8 channels are not 3 groups.*Set groups"):
        ipu.keras.layers.GroupNorm(3)(x)
