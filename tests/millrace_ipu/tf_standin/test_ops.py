"""Operations, dtypes and names of `tf`, compared with NumPy."""

import time

import keras
import numpy as np
import pytest

from millrace.errors import DataError
from millrace_ipu import tensorflow as tf

X = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: tf.reduce_mean(X, axis=1), X.mean(1)),
        (lambda: tf.reduce_sum(input_tensor=X, axis=0, keepdims=True), X.sum(0, keepdims=True)),
        (lambda: tf.math.reduce_max(X), 5),
        (lambda: tf.matmul(X, X, transpose_b=True), X @ X.T),
        (lambda: tf.concat([X, X], axis=0), np.r_[X, X]),
        (lambda: tf.concat(values=[X, X], axis=1), np.c_[X, X]),
        (lambda: tf.stack([X, X], axis=-1), np.stack([X, X], -1)),
        (lambda: tf.unstack(X)[1], X[1]),
        (lambda: tf.split(X, 3, axis=1)[2], X[:, 2:]),
        (lambda: tf.split(X, [1, 2], axis=1)[1], X[:, 1:]),
        (lambda: tf.unstack(X, axis=1)[2], X[:, 2]),
        (lambda: tf.experimental.numpy.dsplit(X[None], 3)[1], X[None, :, 1:2]),
        (lambda: tf.experimental.numpy.hsplit(X[0], [1])[1], X[0, 1:]),
        (lambda: tf.squeeze(X[None], axis=[0]), X),
        (lambda: tf.expand_dims(X, -1), X[..., None]),
        (lambda: X[..., tf.newaxis], X[..., None]),
        (lambda: tf.transpose(X, perm=[1, 0]), X.T),
        (lambda: tf.reshape(X, [3, -1]), X.reshape(3, 2)),
        (lambda: tf.one_hot([0, 2], 3, on_value=5.0), [[5, 0, 0], [0, 0, 5]]),
        (lambda: tf.gather(X, [2, 0], axis=1), X[:, [2, 0]]),
        (lambda: tf.where(X > 2, X, tf.zeros_like(X)), np.where(X > 2, X, 0)),
        (lambda: tf.where(X > 3), np.argwhere(X > 3)),
        (lambda: tf.pad(X, [[0, 0], [1, 0]], constant_values=9.0), np.c_[[9, 9], X]),
        (lambda: tf.tile(X, [1, 2]), np.tile(X, [1, 2])),
        (lambda: tf.fill([2], 3), [3, 3]),
        (lambda: tf.zeros([2]) + tf.ones(2, tf.float32), [1, 1]),
        (lambda: tf.range(2, 8, 3), [2, 5]),
        (lambda: tf.argmax(X, axis=1), [2, 2]),
        (lambda: tf.math.squared_difference(X, 1.0), (X - 1) ** 2),
        (lambda: tf.add_n([X, X, X]), 3 * X),
        (lambda: tf.clip_by_value(X, 1, 3), X.clip(1, 3)),
        (lambda: tf.clip_by_global_norm([np.float32([3, 4])], 1.0)[0][0], [0.6, 0.8]),
        (lambda: tf.constant([1, 2, 3, 4], shape=[2, 2]), [[1, 2], [3, 4]]),
        (lambda: tf.shape(X), [2, 3]),
        (lambda: tf.rank(X), 2),
        (lambda: tf.nn.relu(-X + 1), (1 - X).clip(0)),
        (lambda: tf.nn.l2_loss(X), (X**2).sum() / 2),
        (lambda: tf.nn.softmax(X), np.exp(X) / np.exp(X).sum(1, keepdims=True)),
        (
            lambda: tf.nn.sigmoid_cross_entropy_with_logits(labels=np.ones(1), logits=[0.0]),
            [np.log(2)],
        ),
        (
            lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[2], logits=X[:1]),
            [np.log(np.exp(X[0] - 2).sum())],
        ),
        (lambda: tf.cond(tf.constant(True), lambda: 1.0, lambda: 2.0), 1),
        (lambda: tf.while_loop(lambda k: k < 5, lambda k: [k + 2], [0])[0], 6),
        (lambda: tf.eye(2), np.eye(2)),
        (lambda: tf.convert_to_tensor(tf.Variable(2.0)), 2),
        (lambda: tf.nest.map_structure(lambda a: a + 1, {"a": 1})["a"], 2),
    ],
)
def test_operations(found, expected):
    np.testing.assert_allclose(np.asarray(found()), expected, rtol=1e-5)


def test_dtypes_are_those_of_numpy_and_keras_takes_them():
    assert (tf.float32.name, tf.bfloat16.name, tf.bool.name) == ("float32", "bfloat16", "bool")
    assert tf.constant(1).dtype == tf.int32
    assert tf.constant(0.5).dtype == tf.float32
    assert not tf.constant(0.5).weak_type
    assert tf.cast(X, tf.bfloat16).dtype == tf.bfloat16
    assert keras.layers.Input((2,), dtype=tf.float16).dtype == "float16"


def test_casts_of_host_arrays_stay_on_the_host():
    cast = tf.cast(np.arange(3), tf.float64)
    assert isinstance(cast, np.ndarray)
    assert cast.numpy().dtype == "float64"


def test_operations_on_symbolic_tensors():
    x = keras.Input((3,))
    model = keras.Model(x, tf.reduce_sum(tf.cast(x, tf.float32) * 2, axis=1))
    np.testing.assert_allclose(model(X), 2 * X.sum(1))


def test_results_are_arrays_with_numpy():
    assert tf.constant([1.0]).numpy().tolist() == [1.0]
    assert isinstance(tf.constant(1), tf.Tensor)


def test_random_numbers_follow_the_seed():
    drawn = []
    for _ in range(2):
        tf.random.set_seed(5)
        drawn.append(tf.random.normal([3], stddev=2.0).numpy())
    np.testing.assert_array_equal(*drawn)
    numbers = tf.random.uniform([50], maxval=3, dtype=tf.int32)
    assert set(np.asarray(numbers).tolist()) == {0, 1, 2}


def test_printing(capsys):
    tf.print("value", 3)
    tf.function(lambda x: tf.print("traced", x))(tf.constant(4))
    assert capsys.readouterr().out.split("\n")[:2] == ["value 3", "traced 4"]


def test_the_places_of_names():
    assert tf.__version__.startswith("2")
    assert tf.keras is keras
    assert tf.errors.OutOfRangeError is DataError
    assert (tf.losses, tf.metrics, tf.optimizers) == (keras.losses, keras.metrics, keras.optimizers)
    assert tf.get_logger().name == "millrace"
    assert tf.TensorShape([2, None]) == (2, None)
    with tf.device("/device:IPU:0"), tf.name_scope("part") as name:
        assert name == "part"
    from millrace_ipu.tensorflow.keras.layers import Dense

    assert Dense is keras.layers.Dense
    with pytest.raises(AttributeError, match=r"has no 'math.bessel'"):
        _ = tf.math.bessel


def test_thousands_of_parts_are_not_compiled_one_by_one():
    filters = tf.ones((3, 3, 2048))
    begin = time.process_time()
    parts = tf.experimental.numpy.dsplit(filters, 2048), tf.split(filters, 2048, axis=-1)
    parts += (tf.unstack(filters, axis=2), [filters[..., k : k + 1] for k in range(2048)])
    seconds = time.process_time() - begin
    assert [len(each) for each in parts] == [2048] * 4
    assert seconds < 10  # 150 s when each part is a part of a program
