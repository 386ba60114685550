"""Idioms of operations of `ipu`, compared with JAX and Keras."""

import io
import sys

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from idioms import idiom

from case_marks import slow
from millrace.errors import OptionError
from millrace_ipu import ipu
from millrace_ipu.errors import UnsupportedNameError

HEAD = """
import numpy as np
import tensorflow as tf
from tensorflow.python import ipu
x = np.linspace(-3, 3, 24, dtype="float32").reshape(2, 3, 4)
"""
X = np.linspace(-3, 3, 24, dtype="float32").reshape(2, 3, 4)


@idiom("Layers", "`ipu.nn_ops.gelu(x)`, `ipu.ops.nn_ops.swish(x)`, `hard_sigmoid(x)`")
@idiom("Layers", "`@ipu.nn_ops.multi_conv`, `@ipu.outlined_function`: the function itself")
def test_activations_and_outlined_functions(program):
    printed = program(f"""{HEAD}
from tensorflow.python.ipu.ops.functional_ops import outlined_function
from tensorflow.python.ipu.ops import nn_ops
@ipu.nn_ops.multi_conv(options={{"perConvReservedTiles": "50"}})
def convolve(x):
    return nn_ops.gelu(x)
@outlined_function
def block(x):
    return convolve(x) + nn_ops.swish(x)
@ipu.outlined_function(unique_sharding=True)
def other(x):
    return nn_ops.hard_sigmoid(x)
@tf.function(jit_compile=True)
def run(x):
    return block(x) + other(x)
with ipu.ipu_strategy.IPUStrategy().scope() as strategy:
    print(np.asarray(ipu.ipu_strategy.IPUStrategy().run(run, [x])).ravel().tolist())
""")
    expected = jax.nn.gelu(X, approximate=True) + X * jax.nn.sigmoid(X)
    expected += jnp.clip(0.2 * X + 0.5, 0, 1)
    np.testing.assert_allclose(eval(printed), expected.ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@idiom("Layers", "`ipu.rand_ops.dropout(x, seed=[1, 2], rate=0.25)`")
def test_dropout():
    x = np.ones((64, 64), "float32")
    dropped = np.asarray(ipu.rand_ops.dropout(x, seed=[1, 2], rate=0.25))
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert 0.2 < (dropped == 0).mean() < 0.3
    np.testing.assert_array_equal(dropped, ipu.rand_ops.dropout(x, seed=(1, 2), rate=0.25))
    compiled = jax.jit(lambda x, s: ipu.rand_ops.dropout(x, seed=s, rate=0.25))
    np.testing.assert_array_equal(dropped, compiled(x, jnp.array([1, 2])))
    assert (dropped != np.asarray(ipu.rand_ops.dropout(x, seed=[1, 3], rate=0.25))).any()
    other = ipu.rand_ops.dropout(x, seed=[1, 2], rate=0.25, seed_modifier=5)
    assert (dropped != np.asarray(other)).any()
    rows = np.asarray(ipu.rand_ops.dropout(x, seed=[1, 2], noise_shape=(64, 1)))
    assert (rows == rows[:, :1]).all()
    keras.utils.set_random_seed(1)
    unseeded = np.asarray(ipu.ops.rand_ops.dropout(x, rate=0.5))
    keras.utils.set_random_seed(1)
    np.testing.assert_array_equal(unseeded, keras.random.dropout(x, 0.5))
    with pytest.raises(OptionError, match=r"two whole numbers. Received: 3. Set seed=\[1, 2\]"):
        ipu.rand_ops.dropout(x, seed=3)
    with pytest.raises(OptionError, match=r"at least 0 and below 1. Received: 1"):
        ipu.rand_ops.dropout(x, rate=1)


@idiom("Layers", "`ipu.normalization_ops.group_norm`, `instance_norm`, `layer_norm` of arrays")
@pytest.mark.parametrize("axis", [slow(-1), 1])
def test_normalizations(axis):
    x = np.random.default_rng(0).standard_normal((3, 4, 5, 4), dtype="float32")
    flat = np.moveaxis(x, axis, -1)
    ops = ipu.normalization_ops
    for groups, computed in (
        (2, ops.group_norm(x, 2, axis, center=False, scale=False)),
        (4, ops.instance_norm(x, axis, center=False, scale=False)),
        (1, ops.layer_norm(x, axis, center=False, scale=False, epsilon=1e-6)),
    ):
        # Channel c is in group c % groups.
        each = np.stack([flat[..., k::groups] for k in range(groups)])
        mean = each.mean((2, 3, 4), keepdims=True)
        normal = (each - mean) / np.sqrt(each.var((2, 3, 4), keepdims=True) + 1e-6)
        expected = np.empty_like(flat)
        for k in range(groups):
            expected[..., k::groups] = normal[k]
        np.testing.assert_allclose(np.moveaxis(computed, axis, -1), expected, atol=2e-5)
    together = ops.group_norm(x, 2, axis, None, False, False, strided_channel_grouping=False)
    assert abs(np.moveaxis(together, axis, -1)[..., :2].mean((1, 2, 3))).max() < 1e-5
    with pytest.raises(OptionError, match=r"channels are not 3 groups of equal size. Set groups"):
        ops.group_norm(x, 3, axis, center=False, scale=False)
    for function, layer in (
        (ops.group_norm, f"GroupNorm(groups=2, channels_axis={axis}, epsilon=1e-06, center=True, "),
        (ops.instance_norm, f"InstanceNorm(channels_axis={axis}, epsilon=1e-06, center=True, sc"),
        (ops.layer_norm, f"GroupNorm(groups=1, channels_axis={axis}, epsilon=1e-06, center=True,"),
    ):
        with pytest.raises(UnsupportedNameError, match=r"with weights is not in millrace") as error:
            function(x, channels_axis=axis)
        assert f"In its place: ipu.keras.layers.{layer}" in str(error.value)
        code = str(error.value).rpartition("ipu.keras.layers.")[2].partition(". `millrace")[0]
        assert eval(f"layers.{code}", {"layers": ipu.keras.layers, "inputs": x}).shape == x.shape


@idiom("Layers", "`ipu.embedding_ops.embedding_lookup(table, ids)`")
@idiom("Training", "`ipu.ops.math_ops.segment_sum`, `ipu.control_flow_ops.barrier`")
def test_look_ups_sums_and_barriers():
    table, ids = np.arange(12.0, dtype="float32").reshape(4, 3), np.array([[2, 0], [3, 3]])
    looked = ipu.embedding_ops.embedding_lookup(table, ids, serialization_factor=2)
    np.testing.assert_array_equal(looked, table[ids])
    with pytest.raises(UnsupportedNameError, match=r"HostEmbedding is not .*keras.layers.Embed"):
        ipu.embedding_ops.HostEmbedding("table", None)
    sums = ipu.ops.math_ops.segment_sum(table, np.array([0, 0, 2, 2]), 4)
    np.testing.assert_array_equal(sums, [table[:2].sum(0), [0] * 3, table[2:].sum(0), [0] * 3])

    def loss(x):
        a, b = ipu.control_flow_ops.barrier([x * 2, x * 3], insert_barrier_for_gradients=True)
        return (a * b).sum()

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(X), 12 * X, rtol=1e-6)


@idiom("Inspection", "`ipu.internal_ops.print_tensor(x, 'name')`, in functions and in models")
def test_print_tensor(program, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    program(f"""{HEAD}
from tensorflow.python.ipu.ops import internal_ops
@tf.function(jit_compile=True)
def run(x):
    return ipu.internal_ops.print_tensor(x, "half") + internal_ops.remap(x)
strategy = ipu.ipu_strategy.IPUStrategy()
assert np.allclose(strategy.run(run, [x[0, 0, :2] / 2]), x[0, 0, :2])
with strategy.scope():
    inputs = tf.keras.Input((2,))
    model = tf.keras.Model(inputs, internal_ops.print_tensor(inputs, name="in") * 2.0)
    print(model.predict(np.ones((2, 2), "float32"), batch_size=2, verbose=0).sum())
""")
    jax.effects_barrier()
    errors = sys.stderr.getvalue()
    assert "half: [-1.5" in errors
    assert "in: [[1. 1.]\n [1. 1.]]" in errors


@idiom(
    "Unsupported, with an error that says what to write",
    "`ipu.data.ops.dataset_ops.BufferDataset(dataset, n)`",
)
def test_a_data_set_of_whole_groups(program):
    with pytest.raises(UnsupportedNameError, match=r"dataset\.take\(len\(dataset\) // n \* n\)"):
        program(f"""{HEAD}
from tensorflow.python.ipu.data.ops.dataset_ops import BufferDataset
BufferDataset(tf.data.Dataset.range(10), 4)
""")


@idiom("Devices", "`with ipu.autoshard.ipu_autoshard():`")
def test_the_scope_of_automatic_sharding(program, caplog):
    assert program(f"""{HEAD}
from tensorflow.python.ipu import autoshard
with autoshard.ipu_autoshard():
    print(x.shape)
""") == ("(2, 3, 4)\n")
    assert "ipu_autoshard has no effect. To spread a model over devices: ipu.keras.Pipe" in (
        caplog.text
    )


@pytest.mark.parametrize(
    "name",
    ["nn_ops", "rand_ops", "embedding_ops", "internal_ops", "functional_ops", "control_flow_ops",
     "math_ops", "normalization_ops"],
)  # fmt: skip
def test_other_names_of_these_modules(name):
    with pytest.raises(UnsupportedNameError, match=rf"ipu.{name}.no_such is not in millrace"):
        getattr(ipu, name).no_such()
    assert getattr(ipu.ops, name) is getattr(ipu, name)
