"""Liveness, against the peak in the heap trace that XLA dumps."""

import jax
import jax.numpy as jnp
import keras
import pytest
from heap_oracle import compiled_with_peak
from jax import lax

from millrace.run.memory.labels import ValueLabel
from millrace.run.memory.liveness import memory_profile
from millrace.run.memory.owners import layer_finder

MOST = 1e-3  # of the peak, by which ours may be above


def mlp(weights, x):
    def loss(weights):
        hidden = x
        for weight in weights:
            hidden = jnp.tanh(hidden @ weight)
        return jnp.mean(hidden**2)

    return jax.tree.map(jnp.subtract, weights, jax.grad(loss)(weights))


def scan_and_cond(weight, rows):
    def loss(weight):
        def body(carry, row):
            carry = lax.cond(
                row.sum() > 0, lambda c: jnp.tanh(c @ weight), lambda c: jnp.sin(c) * 2, carry
            )
            return carry, carry

        carry, made = lax.scan(body, jnp.ones((64, 128)), rows)
        return (made**2).sum() + carry.sum()

    return jax.grad(loss)(weight)


def loop_and_sort(x):
    def body(carry):
        index, a, b = carry
        return index + 1, b @ a, jnp.sort(a, axis=0)

    return lax.while_loop(lambda carry: carry[0] < 5, body, (0, x, x + 1))


def convolutions(kernels, x):
    def loss(kernels):
        hidden = x
        for kernel in kernels:
            hidden = lax.conv_general_dilated(
                hidden, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            hidden = jax.nn.relu(hidden)
        return hidden.mean()

    return jax.grad(loss)(kernels)


def switch(index, x):
    branches = [jnp.cumsum, lambda x: jnp.fft.fft(x).real.ravel(), lambda x: jnp.sort(x).ravel()]
    return lax.switch(index, branches, x)


def ones(*shape):
    return jnp.ones(shape)


PROGRAMS = {
    "mlp": (mlp, [ones(256, 256)] * 8, ones(2048, 256)),
    "scan_and_cond": (scan_and_cond, ones(128, 128), ones(32, 8)),
    "loop_and_sort": (loop_and_sort, ones(128, 128)),
    "convolutions": (convolutions, [ones(3, 3, 3, 16), ones(3, 3, 16, 32)], ones(16, 16, 16, 3)),
    "switch": (switch, 1, ones(64, 64)),
}


def keras_step(model):
    def step(trainable, non_trainable, x):
        def loss(trainable):
            made, state = model.stateless_call(trainable, non_trainable, x, training=True)
            return jnp.mean(made**2), state

        gradients, state = jax.grad(loss, has_aux=True)(trainable)
        return jax.tree.map(jnp.subtract, trainable, gradients), state

    return step


def check(function, *arguments, donated=()):
    compiled, rest, heap = compiled_with_peak(function, *arguments, donated=donated)
    profile = memory_profile(compiled)
    assert heap
    assert rest + heap <= profile.peak <= (rest + heap) * (1 + MOST)
    assert sum(each.nbytes for each in profile.alive) == profile.peak
    memory = compiled.memory_analysis()
    assert profile.peak <= rest + memory.temp_size_in_bytes
    return compiled, profile


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_peak_is_that_of_the_compiler(name):
    check(*PROGRAMS[name])


def test_donated_memory_counts_once():
    function, weights, x = PROGRAMS["mlp"]
    _, plain = check(function, weights, x)
    _, donated = check(function, [weight + 0 for weight in weights], x, donated=0)
    assert donated.peak < plain.peak


@pytest.mark.slow
def test_the_peak_of_a_keras_lstm():
    layers = [keras.layers.LSTM(32, return_sequences=True), keras.layers.LSTM(32)]
    model = keras.Sequential([keras.Input((24, 8)), *layers, keras.layers.Dense(1)])
    values = [v.value for v in model.trainable_variables]
    state = [v.value for v in model.non_trainable_variables]
    check(keras_step(model), values, state, ones(32, 24, 8))


@pytest.mark.slow
def test_the_peak_of_resnet50():
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    values = [v.value for v in model.trainable_variables]
    state = [v.value for v in model.non_trainable_variables]
    check(keras_step(model), values, state, ones(32, 32, 32, 3), donated=(0, 1))


def test_tensors_have_the_layer_and_the_operation_that_made_them():
    names = [f"dense_{k}" for k in range(4)]
    model = keras.Sequential(
        [keras.Input((64,)), *(keras.layers.Dense(256, "tanh", name=name) for name in names)]
    )
    values = [v.value for v in model.trainable_variables]
    compiled = jax.jit(keras_step(model)).lower(values, [], ones(1024, 64)).compile()
    profile = memory_profile(
        compiled,
        layer_finder(names),
        lambda path: ValueLabel(name=f"value {path[0].idx} {path[1:]}"),
    )
    large = [each for each in profile.alive if each.nbytes >= 1024 * 256 * 4]
    assert large
    assert all(each.layer in names for each in large)
    assert any(each.operation for each in large)
    given = [each for each in profile.alive if each.opcode == "parameter"]
    assert {each.name.split()[1] for each in given} == {"0", "2"}
    assert {each.shape for each in given} >= {"f32[64,256]", "f32[1024,64]"}
    assert list(profile.alive) == sorted(profile.alive, key=lambda each: -each.nbytes)


@pytest.mark.parametrize(
    ("op_name", "layer"),
    [
        ("jit(step)/jvp(dense_3)/dot_general", "dense_3"),
        ("jit(step)/transpose(jvp(inner))/bn/mul", "inner/bn"),
        ("jit(step)/checkpoint/rematted_computation/dense_0/tanh", "dense_0"),
        ("jit(step)/add;jit(step)/jvp(bn)/mul", "bn"),
        ("jit(step)/add", ""),
        ("", ""),
    ],
)
def test_the_layer_in_the_name_of_an_operation(op_name, layer):
    assert layer_finder(["dense_0", "dense_3", "inner", "bn"])(op_name) == layer
