"""Whatever Keras's `fit` takes as data: against plain Keras on the same data.

Sources that need another library are skipped where it is missing.
"""

import contextlib
import warnings

import jax
import keras
import numpy as np
import pytest

from case_marks import slow
from own_threads import own_threads

RTOL = ATOL = 1e-6  # float32, compiled into other programs
ROWS, BATCH_SIZE = 22, 4


# To build a model, Keras before 3.15 draws more batches than one, and trains without the others.
KEEPS_BATCHES = tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 15)
keras_keeps_batches = pytest.mark.skipif(not KEEPS_BATCHES, reason="this Keras loses batches")


def rows(count=ROWS):
    random = np.random.default_rng(8)
    x = random.normal(size=(count, 3)).astype("float32")
    return x, random.normal(size=(count, 1)).astype("float32")


def compiled(strategy=None, inputs=1):
    keras.utils.set_random_seed(1)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        if inputs == 1:
            model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        else:
            entries = [keras.Input((3,)) for _ in range(inputs)]
            hidden = keras.layers.concatenate(entries)
            model = keras.Model(entries, keras.layers.Dense(1)(hidden))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(
        optimizer, "mse", metrics=["mae"], steps_per_execution=1 if strategy is None else 3
    )
    return model


def assert_close(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for value, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, other, rtol=RTOL, atol=ATOL)


def assert_same(found, expected):
    """Both are attached model or stock one, and history."""
    assert_close(found[1].history, expected[1].history)
    assert_close(found[0].get_weights(), expected[0].get_weights())
    for value, other in zip(
        found[0].optimizer.variables, expected[0].optimizer.variables, strict=True
    ):
        assert_close(np.asarray(value.value), np.asarray(other.value))


@contextlib.contextmanager
def quiet():
    """Plain Keras finds the end of data of unknown length by running into it, and says so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")
        yield


def fit(source, strategy=None, inputs=1, **arguments):
    """Fits `source()`: arguments of fit, or its `x`."""
    model = compiled(strategy, inputs)
    data = source()
    data = data if isinstance(data, dict) else {"x": data}
    keras.utils.set_random_seed(2)
    with quiet():
        history = model.fit(**data, **{"shuffle": False, "verbose": 0, **arguments})
    return model, history


def assert_fits_are_same(strategy, source, **arguments):
    found = fit(source, strategy, **arguments)
    assert_same(found, fit(source, **arguments))
    assert not own_threads()
    return found


def arrays(convert=lambda leaf: leaf):
    x, y = rows()
    return lambda: {"x": convert(x), "y": convert(y), "batch_size": BATCH_SIZE}


KINDS = {
    "float32": lambda leaf: leaf,
    "float64": lambda leaf: leaf.astype("float64"),
    "int64": lambda leaf: (10 * leaf).astype("int64"),
    "float16": lambda leaf: leaf.astype("float16"),
    "uint8": lambda leaf: (np.abs(leaf) * 50).astype("uint8"),
    "bool": lambda leaf: leaf > 0,
    "jax": jax.numpy.asarray,
    "fortran-order": np.asfortranarray,
    "strided": lambda leaf: np.repeat(leaf, 2, axis=0)[::2],
}


@pytest.mark.parametrize(
    ("kind", "shuffle"),
    [
        *((kind, False) for kind in KINDS),
        *(
            (kind, True) if kind in ("float32", "jax", "strided") else slow(kind, True)
            for kind in KINDS
        ),
    ],
)
def test_arrays(strategy, kind, shuffle):
    assert_fits_are_same(strategy, arrays(KINDS[kind]), epochs=2, shuffle=shuffle)


def test_arrays_are_not_changed_and_may_be_read_only(strategy):
    def read_only(leaf):
        leaf = leaf.copy()
        leaf.flags.writeable = False
        return leaf

    assert_fits_are_same(strategy, arrays(read_only), epochs=2)


def test_arrays_that_change_between_fits(strategy):
    """Nothing of the first fit's data is left for the second one."""
    x, y = rows()
    outcomes = []
    for owner in (strategy, None):
        model = compiled(owner)
        for factor in (1, 2):
            data = {"x": factor * x, "y": y - factor}
            history = model.fit(**data, batch_size=4, shuffle=False, verbose=0)
        outcomes.append((model, history))
    assert_same(*outcomes)


def test_an_array_that_a_callback_changes_between_epochs(strategy):
    """Plain Keras reads NumPy arrays anew in every epoch: the second one sees the change."""
    outcomes = []
    for owner in (strategy, None):
        x, y = rows()

        class Changes(keras.callbacks.Callback):
            def __init__(self, x):
                super().__init__()
                self.x = x

            def on_epoch_end(self, epoch, logs=None):
                self.x *= 0.5

        outcomes.append(
            fit(lambda x=x, y=y: {"x": x, "y": y}, owner, epochs=3, callbacks=[Changes(x)])
        )
    assert_same(*outcomes)


def test_lists_of_arrays(strategy):
    x, y = rows()
    assert_fits_are_same(
        strategy, lambda: {"x": [x, 2 * x], "y": [y], "batch_size": 4}, inputs=2, epochs=2
    )


def test_sample_weights_and_validation_from_arrays(strategy):
    x, y = rows()
    weights = np.linspace(0, 1, ROWS)
    assert_fits_are_same(
        strategy,
        lambda: {"x": x, "y": y, "sample_weight": weights, "batch_size": 4},
        epochs=2,
        validation_data=(x[:7], y[:7], weights[:7]),
    )


def test_x_alone(strategy):
    x, _ = rows()

    class OwnLoss(keras.Sequential):
        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            return keras.ops.mean(keras.ops.square(y_pred))

    results = []
    for owner in (strategy, None):
        keras.utils.set_random_seed(1)
        model = OwnLoss([keras.Input((3,)), keras.layers.Dense(1)])
        if owner is not None:
            owner.attach(model)
        model.compile("sgd", steps_per_execution=1 if owner is None else 3)
        results.append((model, model.fit(x, batch_size=4, shuffle=False, verbose=0)))
    assert_same(*results)


def test_pandas(strategy):
    pandas = pytest.importorskip("pandas")
    x, y = rows()
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    assert_fits_are_same(
        strategy, lambda: {"x": frame, "y": pandas.Series(y[:, 0]), "batch_size": 4}, epochs=2
    )
    predictions = [compiled(owner).predict(frame, verbose=0) for owner in (strategy, None)]
    assert_close(*predictions)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csr_matrix", "coo_matrix"])
def test_scipy_sparse(strategy, kind):
    sparse = pytest.importorskip("scipy.sparse")
    x, y = rows()
    x[np.abs(x) < 0.7] = 0
    matrix = getattr(sparse, kind)(x)
    assert_fits_are_same(strategy, lambda: {"x": matrix, "y": y, "batch_size": 4}, epochs=2)


class Batches(keras.utils.PyDataset):
    """Batches of these sizes; it counts what Keras calls."""

    def __init__(self, sizes=(4, 4, 4, 4, 4, 2), **arguments):
        super().__init__(**arguments)
        self.x, self.y = rows(sum(sizes))
        self.ends = np.cumsum([0, *sizes])
        self.begun = self.ended = 0

    def __len__(self):
        return len(self.ends) - 1

    def __getitem__(self, index):
        begin, end = self.ends[index : index + 2]
        return self.x[begin:end], self.y[begin:end]

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1
        self.x = self.x * 0.9  # a data set that changes from epoch to epoch


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=keras_keeps_batches)])
@pytest.mark.parametrize("sizes", [(4, 4, 4, 4, 4, 2), (4, 4, 3, 4, 4)])
def test_py_dataset(strategy, sizes, workers, shuffle):
    assert_fits_are_same(
        strategy, lambda: Batches(sizes, workers=workers), epochs=3, shuffle=shuffle
    )


def test_py_dataset_is_told_of_epochs_as_often(strategy):
    counts = []
    for owner in (strategy, None):
        made = []

        def source(made=made):
            made.append(Batches())
            return made[0]

        fit(source, owner, epochs=3)
        counts.append((made[0].begun, made[0].ended))
    assert counts[0] == counts[1]


@keras_keeps_batches
def test_py_dataset_with_steps_weights_and_validation(strategy):
    assert_fits_are_same(
        strategy,
        lambda: {"x": Batches((4,) * 6), "validation_data": Batches((4, 3))},
        epochs=3,
        steps_per_epoch=2,
    )


@keras_keeps_batches
def test_an_endless_py_dataset(strategy):
    class Endless(Batches):
        def __len__(self):
            raise NotImplementedError

        @property
        def num_batches(self):
            return None

        def __getitem__(self, index):
            return super().__getitem__(index % 5)

    assert_fits_are_same(strategy, Endless, epochs=3, steps_per_epoch=4)


def test_evaluate_and_predict_a_py_dataset(strategy):
    results = []
    for owner in (strategy, None):
        model = compiled(owner)
        results.append(
            (
                model.evaluate(Batches((4, 4, 2, 4)), return_dict=True, verbose=0),
                model.predict(Batches((4, 4, 2, 4)), verbose=0),
            )
        )
    assert_close(*results)
    assert results[0][1].shape == (14, 1)


def generate(count, drawn=None, size=BATCH_SIZE):
    """Yields `count` batches, and notes each in `drawn`."""
    x, y = rows(1000)
    for index in range(count):
        if drawn is not None:
            drawn.append(index)
        part = slice(index * size, (index + 1) * size)
        yield x[part], y[part]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_finite_generators(strategy, count):
    found, _ = assert_fits_are_same(strategy, lambda: generate(count))
    assert int(found.optimizer.iterations) == count


def test_a_generator_with_steps_per_epoch_goes_on(strategy):
    assert_fits_are_same(strategy, lambda: generate(12), epochs=3, steps_per_epoch=4)


def test_a_generator_that_ends_within_an_epoch(strategy):
    assert_fits_are_same(strategy, lambda: generate(10), epochs=3, steps_per_epoch=4)


def test_a_generator_that_ends_after_the_first_epoch(strategy):
    """The second epoch has nothing to train on."""
    assert_fits_are_same(strategy, lambda: generate(5), epochs=2)


@pytest.mark.parametrize("steps_per_epoch", [2, 3, 5])
def test_no_more_is_drawn_from_a_generator_than_is_trained_on(strategy, steps_per_epoch):
    drawn, at_epoch_end = [], []

    class Counts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            at_epoch_end.append(len(drawn))

    source = generate(100, drawn)
    fit(lambda: source, strategy, epochs=3, steps_per_epoch=steps_per_epoch, callbacks=[Counts()])
    assert at_epoch_end == [steps_per_epoch, 2 * steps_per_epoch, 3 * steps_per_epoch]
    model = compiled(strategy)
    model.evaluate(source, steps=2, verbose=0)
    model.predict(source, steps=4, verbose=0)
    assert drawn == list(range(3 * steps_per_epoch + 6))


def test_a_generator_that_refills_one_buffer(strategy):
    """Keras draws two batches to look at them, so both are the second one; the others differ."""
    x, y = rows(40)
    order = [1, 1, *range(2, 10)]
    taken = np.concatenate([np.arange(4 * index, 4 * index + 4) for index in order])

    def refilling():
        buffers = np.empty((4, 3), "float32"), np.empty((4, 1), "float32")
        for index in range(10):
            for buffer, source in zip(buffers, (x, y), strict=True):
                buffer[:] = source[4 * index : 4 * index + 4]
            yield buffers

    found = fit(refilling, strategy)
    expected = fit(lambda: {"x": x[taken], "y": y[taken], "batch_size": 4})
    assert_same(found, expected)


def test_a_generator_that_raises(strategy):
    def failing():
        yield from generate(4)
        raise OSError("disk gone")

    model = compiled(strategy)
    with pytest.raises(OSError, match="disk gone"):
        model.fit(failing(), shuffle=False, verbose=0)
    assert not own_threads()
    assert_close(*[fit(arrays(), owner)[1].history for owner in (strategy, None)])


def test_generators_of_weights_dicts_and_other_shapes(strategy):
    x, y = rows()

    def weighted():
        for begin, end in [(0, 4), (4, 8), (8, 9), (9, 20), (20, 22)]:
            yield x[begin:end], y[begin:end], np.linspace(0, 1, end - begin)

    assert_fits_are_same(strategy, weighted)


@keras_keeps_batches
def test_validation_data_from_a_generator(strategy):
    x, y = rows()
    assert_fits_are_same(
        strategy,
        lambda: {"x": x, "y": y, "validation_data": generate(100)},
        batch_size=4,
        epochs=3,
        validation_steps=4,
    )


def test_tf_data(strategy):
    tensorflow = pytest.importorskip("tensorflow")
    x, y = rows()
    dataset = tensorflow.data.Dataset.from_tensor_slices((x, y))
    unknown = dataset.filter(lambda x, y: True).batch(4)
    assert_fits_are_same(strategy, lambda: dataset.batch(4), epochs=2)
    assert_fits_are_same(strategy, lambda: unknown, epochs=2)
    repeated = dataset.batch(4).repeat()
    assert_fits_are_same(strategy, lambda: repeated, epochs=3, steps_per_epoch=4)
    with quiet():
        results = [
            (model.evaluate(dataset.batch(4), verbose=0), model.predict(unknown, verbose=0))
            for model in (compiled(strategy), compiled())
        ]
    assert_close(*results)


def test_tf_data_shuffled_with_a_seed(strategy):
    tensorflow = pytest.importorskip("tensorflow")
    dataset = tensorflow.data.Dataset.from_tensor_slices(rows())
    assert_fits_are_same(
        strategy, lambda: dataset.shuffle(22, seed=3).batch(4).prefetch(2), epochs=2
    )


@pytest.mark.parametrize("kind", [slow("map"), "iter", "loader"])
def test_grain(strategy, kind):
    grain = pytest.importorskip("grain")
    x, y = rows()
    pairs = list(zip(x, y, strict=True))

    def source():
        dataset = grain.MapDataset.source(pairs)
        if kind == "map":
            return dataset.shuffle(seed=1).batch(4)
        if kind == "iter":
            return dataset.to_iter_dataset().batch(4)
        sampler = grain.samplers.IndexSampler(len(pairs), shuffle=False, num_epochs=1)
        batch = grain.transforms.Batch(4)
        return grain.DataLoader(data_source=pairs, sampler=sampler, operations=[batch])

    assert_fits_are_same(strategy, source, epochs=2)
    with quiet():
        results = [compiled(owner).predict(source(), verbose=0) for owner in (strategy, None)]
    assert_close(*results)


def test_torch_data_loader(strategy):
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(leaf) for leaf in rows()]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), batch_size=4)
    assert_fits_are_same(strategy, lambda: loader, epochs=2)
    results = [compiled(owner).evaluate(loader, verbose=0) for owner in (strategy, None)]
    assert_close(*results)
