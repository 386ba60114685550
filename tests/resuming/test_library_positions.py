"""The position in the data sets of Grain, torch and tf.data: as in test_source_positions.py.

`make test-sources` runs this with all three installed.
"""

import logging
import random

import numpy as np
import pytest
from passes import BATCH, assert_goes_on, rows

pytestmark = pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning")
X, Y = rows(24)
slow = pytest.mark.slow
warns_of_forks = pytest.mark.filterwarnings(
    "ignore:.*fork:Warning", "ignore:'set_vital' is deprecated:UserWarning"
)


def data(make, steps_per_epoch=None):
    """Returns the arguments of `fit` for a data set of a library."""
    return lambda: {"x": make(), "steps_per_epoch": steps_per_epoch, "shuffle": False}


@pytest.fixture
def notes():
    """What is logged, also where TensorFlow has changed the handlers of all loggers."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("millrace").addHandler(handler)
    yield messages
    logging.getLogger("millrace").removeHandler(handler)


def unsaved(notes):
    return [each for each in notes if "cannot be saved" in each]


# Grain


def grain_rows():
    import grain

    return grain.MapDataset.source([(X[row], Y[row]) for row in range(24)])


def noisy(rows):
    return rows.seed(7).random_map(_Noise())


class _Noise:
    def __new__(cls):
        import grain

        class Noise(grain.transforms.RandomMap):
            def random_map(self, element, rng):
                x, y = element
                return x + rng.normal(size=x.shape).astype("float32"), y

        return Noise()


def grain_loader(workers=0, epochs=1, is_unnamed=False):
    import grain

    class Rows:
        def __len__(self):
            return 24

        def __repr__(self):  # by which Grain compares data sources
            return object.__repr__(self) if is_unnamed else "Rows()"

        def __getitem__(self, index):
            return X[index], Y[index]

    sampler = grain.samplers.IndexSampler(24, shuffle=True, seed=3, num_epochs=epochs)
    return grain.DataLoader(
        data_source=Rows(),
        sampler=sampler,
        operations=[grain.transforms.Batch(BATCH, drop_remainder=True)],
        worker_count=workers,
    )


def with_processes(dataset):
    import grain

    return dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))


GRAIN = {
    "map": (lambda: grain_rows().shuffle(1).batch(BATCH), None),
    "map, over epochs": (lambda: grain_rows().shuffle(1).batch(BATCH), 4),
    "repeated": (lambda: noisy(grain_rows()).shuffle(1).repeat().batch(BATCH), 5),
    "iter": (lambda: noisy(grain_rows().to_iter_dataset()).batch(BATCH), None),
    "loader": (grain_loader, None),
    "loader, repeated": (lambda: grain_loader(epochs=None), 5),
    "iterator": (lambda: iter(grain_rows().shuffle(1).repeat().batch(BATCH)), 5),
    "iterator that ends": (
        lambda: iter(grain_rows().shuffle(1).batch(BATCH).to_iter_dataset()),
        None,
    ),
    "iterator of a loader": (lambda: iter(grain_loader(epochs=None)), 5),
}


@slow
@pytest.mark.parametrize("name", GRAIN)
def test_grain(tmp_path, name, notes):
    pytest.importorskip("grain")
    assert_goes_on(data(*GRAIN[name]), tmp_path)
    assert not unsaved(notes)


@slow
def test_a_state_that_grain_refuses_is_read_again(tmp_path, notes):
    pytest.importorskip("grain")
    assert_goes_on(data(lambda: grain_loader(is_unnamed=True)), tmp_path, steps=[9])
    assert "is read again: DataSource in checkpoint does not match" in "".join(notes)


@slow
@warns_of_forks
@pytest.mark.parametrize("kind", ["dataset", pytest.param("loader", marks=pytest.mark.exhaustive)])
def test_grain_with_processes(tmp_path, kind):
    pytest.importorskip("grain")
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain asks for one when it starts processes
    if kind == "loader":
        make = lambda: grain_loader(workers=2)  # noqa: E731
    else:
        make = lambda: with_processes(  # noqa: E731
            noisy(grain_rows().to_iter_dataset()).batch(BATCH)
        )
    assert_goes_on(data(make), tmp_path, steps=[4, 9], epochs=2)


# torch


class TorchRows:
    """Rows with noise of all generators that there are."""

    def __init__(self, noise=True):
        self.generator = np.random.default_rng(1)
        self.noise = noise

    def __len__(self):
        return 24

    def __getitem__(self, index):
        import torch

        x = torch.from_numpy(X[index])
        if self.noise:
            scale = self.generator.normal() + random.random() + np.random.random()
            x = x + torch.randn(x.shape) * scale
        return x.float(), torch.from_numpy(Y[index])


def torch_loader(seed=None, workers=0, kind="DataLoader", noise=True, sampler=False, **options):
    import torch

    if kind == "DataLoader":
        from torch.utils.data import DataLoader as Loader
    else:
        from torchdata.stateful_dataloader import StatefulDataLoader as Loader
    torch.manual_seed(3)  # Keras seeds it with another backend only
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    dataset = TorchRows(noise)
    if sampler:
        chosen = torch.utils.data.RandomSampler(dataset, generator=generator)
        options, generator = {**options, "sampler": chosen}, None
    return Loader(dataset, batch_size=BATCH, num_workers=workers, generator=generator, **options)


TORCH = {
    "in order": (lambda: torch_loader(), None),
    "shuffle": (lambda: torch_loader(shuffle=True), None),
    "shuffle, over epochs": (lambda: torch_loader(shuffle=True), 4),
    "generator": (lambda: torch_loader(shuffle=True, seed=5), None),
    "generator of a sampler": (lambda: torch_loader(sampler=True, seed=5), None),
    "workers": (lambda: torch_loader(shuffle=True, workers=2, noise=False), None),
    "workers, generator": (
        lambda: torch_loader(shuffle=True, workers=2, seed=5, noise=False),
        None,
    ),
}


@slow
@warns_of_forks
@pytest.mark.parametrize("name", TORCH)
def test_torch(tmp_path, name):
    pytest.importorskip("torch")
    assert_goes_on(data(*TORCH[name]), tmp_path)


STATEFUL = {
    "in order": (lambda: torch_loader(kind="stateful", noise=False), None),
    "shuffle": (lambda: torch_loader(kind="stateful", noise=False, shuffle=True), None),
    "shuffle, over epochs": (lambda: torch_loader(kind="stateful", noise=False, shuffle=True), 4),
    "generator": (lambda: torch_loader(kind="stateful", noise=False, shuffle=True, seed=5), None),
    "workers": (
        lambda: torch_loader(kind="stateful", noise=False, shuffle=True, workers=2),
        None,
    ),
}


@slow
@warns_of_forks
@pytest.mark.parametrize("name", STATEFUL)
def test_stateful_loaders_of_torchdata(tmp_path, name, notes):
    pytest.importorskip("torchdata.stateful_dataloader")
    assert_goes_on(data(*STATEFUL[name]), tmp_path, steps=[3, 6, 8])
    assert not unsaved(notes)


# tf.data


def tf_rows():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y))


def tf_from_generator():
    import tensorflow as tf

    spec = tf.TensorSpec((3,), "float32"), tf.TensorSpec((1,), "float32")
    return tf.data.Dataset.from_generator(lambda: zip(X, Y, strict=True), output_signature=spec)


def interleaved():
    import tensorflow as tf

    def part(number):
        return tf_rows().shard(3, number)

    return tf.data.Dataset.range(3).interleave(part, cycle_length=3, block_length=2)


def is_large(x, y):
    return x[0] > -1


TF = {
    "in order": (lambda: tf_rows().batch(BATCH).prefetch(2), None),
    "over epochs": (lambda: tf_rows().batch(BATCH).prefetch(2), 4),
    "reshuffled": (lambda: tf_rows().shuffle(8, seed=1).batch(BATCH).prefetch(2), None),
    "reshuffled, over epochs": (lambda: tf_rows().shuffle(8, seed=1).batch(BATCH), 4),
    "shuffled once": (
        lambda: tf_rows().shuffle(24, seed=1, reshuffle_each_iteration=False).batch(BATCH),
        None,
    ),
    "repeated": (lambda: tf_rows().shuffle(8, seed=1).repeat().batch(BATCH).prefetch(2), 5),
    "repeated twice": (lambda: tf_rows().shuffle(8, seed=1).repeat(2).batch(BATCH), None),
    "interleaved": (lambda: interleaved().shuffle(8, seed=1).batch(BATCH), None),
    "unknown length": (lambda: tf_rows().filter(is_large).batch(BATCH), None),
    "global seed": (lambda: tf_rows().shuffle(8).batch(BATCH), None),
}


@slow
@pytest.mark.parametrize("name", TF)
def test_tf_data(tmp_path, name, notes):
    pytest.importorskip("tensorflow")
    assert_goes_on(data(*TF[name]), tmp_path)
    assert not unsaved(notes)


@slow
@pytest.mark.parametrize("steps_per_epoch", [None, 4])
def test_tf_data_from_generators_is_read_again(tmp_path, notes, steps_per_epoch):
    pytest.importorskip("tensorflow")
    make = lambda: tf_from_generator().shuffle(8, seed=1).batch(BATCH)  # noqa: E731
    assert_goes_on(data(make, steps_per_epoch), tmp_path)
    assert unsaved(notes)
    assert "PyFunc" in unsaved(notes)[0]
