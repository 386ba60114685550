"""Data sets: their elements, numbers of them and shapes; and what Keras makes of them."""

import itertools

import keras
import numpy as np
import pytest

from millrace import InfeedQueue
from millrace.errors import DataError, OptionError
from millrace_ipu import tensorflow as tf

Dataset = tf.data.Dataset


def listed(dataset):
    return [np.asarray(element).tolist() for element in dataset.as_numpy_iterator()]


def rows(count=12):
    random = np.random.default_rng(5)
    x = random.normal(size=(count, 3)).astype("float32")
    return x, x.sum(1, keepdims=True)


def test_slices_of_a_pair_and_their_batches():
    x, y = rows(5)
    batches = list(Dataset.from_tensor_slices((x, y)).batch(2))
    assert [len(a) for a, _ in batches] == [2, 2, 1]
    np.testing.assert_array_equal(np.concatenate([b for _, b in batches]), y)
    assert isinstance(batches[0], tuple)
    np.testing.assert_array_equal(batches[0][0].numpy(), x[:2])


def test_numbers_are_of_32_bits_and_arrays_as_they_are():
    assert Dataset.from_tensor_slices([1, 2]).element_spec.dtype == tf.int32
    assert Dataset.from_tensors(0.5).element_spec.dtype == tf.float32
    assert Dataset.from_tensor_slices(np.zeros(2)).element_spec.dtype == tf.float64
    assert Dataset.range(3).element_spec.dtype == tf.int64


def test_a_dict_and_a_list_that_map_returns():
    dataset = Dataset.from_tensors(tf.constant(1.0, shape=[8])).map(lambda x: [x, x + 1])
    assert isinstance(next(iter(dataset)), tuple)  # as the original has it
    named = Dataset.from_tensor_slices({"b": [1, 2], "a": [3, 4]}).map(lambda e: e["b"] * e["a"])
    assert listed(named) == [3, 8]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Dataset.range(5).batch(2), 3),
        (Dataset.range(5).batch(2, drop_remainder=True), 2),
        (Dataset.range(5).repeat(3), 15),
        (Dataset.range(5).repeat(), tf.data.INFINITE_CARDINALITY),
        (Dataset.range(5).repeat().take(7), 7),
        (Dataset.range(5).skip(3), 2),
        (Dataset.range(5).take(9), 5),
        (Dataset.range(7).shard(3, 1), 2),
        (Dataset.range(5).filter(lambda x: x > 2), tf.data.UNKNOWN_CARDINALITY),
        (Dataset.range(5).concatenate(Dataset.range(2)), 7),
        (Dataset.zip((Dataset.range(5), Dataset.range(5).repeat())), 5),
        (Dataset.range(6).batch(3).unbatch(), 6),
        (Dataset.range(5).map(lambda x: x).cache().prefetch(tf.data.AUTOTUNE).enumerate(), 5),
    ],
)
def test_cardinality_is_the_number_of_elements(dataset, expected):
    assert dataset.cardinality() == expected
    found = len(list(itertools.islice(dataset.as_numpy_iterator(), 20)))
    assert found == (expected if expected >= 0 else 20 if expected == -1 else 2)


def test_length_of_what_has_none():
    with pytest.raises(TypeError, match=r"is infinite. Use take\(n\)"):
        len(Dataset.range(5).repeat())
    assert Dataset.range(0).repeat().cardinality() == 0
    assert listed(Dataset.range(0).repeat()) == []


def test_shuffle_is_a_permutation_that_changes_with_the_pass():
    dataset = Dataset.range(50).shuffle(10, seed=3)
    first, second = listed(dataset), listed(dataset)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert all(value <= place + 9 for place, value in enumerate(first))  # from a buffer of 10
    fixed = Dataset.range(50).shuffle(10, seed=3, reshuffle_each_iteration=False)
    assert listed(fixed) == listed(fixed)


def test_shuffle_without_a_seed_follows_that_of_keras():
    orders = []
    for _ in range(2):
        keras.utils.set_random_seed(8)
        orders.append(listed(Dataset.range(20).shuffle(20)))
    assert orders[0] == orders[1]


def test_cache_reads_once():
    read = []

    def generate():
        read.append(1)
        yield from range(3)

    spec = tf.TensorSpec((), tf.int32)
    dataset = Dataset.from_generator(generate, output_signature=spec).cache().repeat(3)
    assert listed(dataset) == [0, 1, 2] * 3
    assert read == [1]


def test_element_specs():
    x, _ = rows(10)
    dataset = Dataset.from_tensor_slices(x)
    assert dataset.batch(4).element_spec.shape == (None, 3)
    assert dataset.batch(5).element_spec.shape == (5, 3)
    assert dataset.repeat().batch(4).element_spec.shape == (4, 3)
    assert dataset.batch(4, drop_remainder=True).element_spec.shape == (4, 3)
    flat = dataset.batch(4).map(lambda x: (tf.cast(x, tf.float16), tf.reduce_sum(x, axis=1)))
    assert [(s.shape, s.dtype.name) for s in flat.element_spec] == [
        ((None, 3), "float16"),
        ((None,), "float32"),
    ]


def test_a_queue_refuses_a_shape_that_is_not_fixed():
    with pytest.raises(DataError, match=r"TensorSpec\(shape=\(None, 3\).*drop_remainder=True"):
        InfeedQueue(Dataset.from_tensor_slices(rows(10)[0]).batch(4))


def test_generators_are_held_to_their_signature():
    spec = (tf.TensorSpec((2,), tf.float32), tf.TensorSpec((), tf.int32))
    dataset = Dataset.from_generator(lambda: iter([([1, 2], 3)]), output_signature=spec)
    (element,) = dataset
    assert element[0].dtype == tf.float32
    wrong = Dataset.from_generator(lambda: iter([([1, 2, 3], 3)]), output_signature=spec)
    with pytest.raises(DataError, match=r"shape \(3,\), where output_signature has \(2,\). Set"):
        list(wrong)
    with pytest.raises(DataError, match=r"does not match output_signature.*Yield values"):
        list(Dataset.from_generator(lambda: iter([1]), output_signature=spec))
    with pytest.raises(OptionError, match=r"Set output_signature=tf.TensorSpec"):
        Dataset.from_generator(lambda: iter([1]))
    with pytest.raises(OptionError, match=r"Received: list. Set from_generator\(lambda"):
        Dataset.from_generator([1], output_signature=spec)
    shapes = ((), tf.TensorShape([]))
    old = Dataset.from_generator(lambda: iter([(1, 2)]), (tf.int32, tf.float32), shapes)
    assert old.element_spec[1].dtype == tf.float32


def test_what_cannot_be_stacked_or_sliced():
    with pytest.raises(DataError, match=r"\[\(2,\), \(3,\)\]. Use Dataset.from_tensors"):
        Dataset.from_tensor_slices((np.zeros(2), np.zeros(3)))
    ragged = Dataset.from_generator(
        lambda: iter([[1], [1, 2]]), output_signature=tf.TensorSpec((None,), tf.int32)
    )
    with pytest.raises(DataError, match=r"batch\(\) stacks elements of the same shape"):
        list(ragged.batch(2))
    with pytest.raises(DataError, match=r"which is not an array. Return arrays"):
        list(Dataset.range(1).map(lambda x: object()))
    with pytest.raises(DataError, match=r"is empty, so its elements have no shape"):
        _ = Dataset.range(1).skip(1).map(lambda x: {}[int(x)]).element_spec


def test_a_method_that_is_missing_is_named():
    with pytest.raises(AttributeError, match=r"no 'interleave'.*from_generator"):
        Dataset.range(3).interleave(lambda x: x)


def dense_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("endless", [False, True])
def test_fit_draws_what_it_would_draw_from_arrays(strategy, endless):
    x, y = rows()
    plain = dense_model()
    weights = plain.get_weights()
    plain.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
    model = strategy.attach(dense_model())
    model.set_weights(weights)
    dataset = Dataset.from_tensor_slices((x, y)).batch(4, drop_remainder=True)
    steps = {"steps_per_epoch": 3} if endless else {}
    model.fit(dataset.repeat() if endless else dataset, epochs=3, verbose=0, **steps)
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], rtol=1e-5)


def test_an_endless_data_set_goes_on_from_epoch_to_epoch(strategy):
    x, y = rows()
    order = np.r_[0:12, 0:4]  # two epochs of two batches
    plain = dense_model()
    weights = plain.get_weights()
    plain.fit(x[order], y[order], batch_size=4, shuffle=False, verbose=0)
    model = strategy.attach(dense_model())
    model.set_weights(weights)
    dataset = Dataset.from_tensor_slices((x, y)).batch(4).repeat()
    model.fit(dataset, epochs=2, steps_per_epoch=2, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], rtol=1e-5)


def test_plain_keras_takes_one_too():
    x, y = rows()
    dataset = Dataset.from_tensor_slices((x, y)).batch(5)
    model = dense_model()
    arrays = model.evaluate(x, y, batch_size=5, verbose=0)
    np.testing.assert_allclose(model.evaluate(dataset, verbose=0), arrays, rtol=1e-5)
    assert model.predict(dataset.map(lambda x, y: x), verbose=0).shape == (12, 1)


def test_class_weights_and_targets_beside_a_data_set():
    x, _ = rows()
    y = np.arange(12) % 2
    dataset = Dataset.from_tensor_slices((x, y)).batch(4)
    batches = dataset.as_data_adapter(class_weight={0: 1.0, 1: 3.0}).get_jax_iterator()
    assert next(batches)[2].tolist() == [1.0, 3.0, 1.0, 3.0]
    with pytest.raises(DataError, match=r"a data set and y. .*Dataset.zip\(\(x, y\)\)"):
        dense_model().fit(dataset, y, verbose=0)
    weighed = Dataset.zip((dataset, dataset.map(lambda x, y: y))).map(lambda a, w: (*a, w))
    batches = weighed.as_data_adapter(class_weight={1: 3.0}).get_jax_iterator()
    with pytest.raises(DataError, match=r"no sample weights.*in dataset.map\(\)"):
        next(batches)
