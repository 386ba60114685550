"""The position in the data: losses after a resume are those without a break, bit by bit."""

import itertools
import random
import signal

import keras
import numpy as np
import pytest
from passes import BATCH, ROWS, assert_goes_on, assert_same, compiled, copied_up_to, rows, trained

from case_marks import exhaustive, with_marks
from millrace._compat import keras_positions
from millrace.errors import CheckpointError, DataError
from millrace.programs.feeds import source_position

pytestmark = pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning")
X, Y = rows()


def arrays(**options):
    return lambda: {"x": X, "y": Y, "batch_size": BATCH, **options}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("resident", "shuffle"),
    [
        (True, True),
        (True, "batch"),
        (False, False),
        (False, "batch"),
        exhaustive(True, False),
        exhaustive(False, True),
    ],
)
def test_arrays(tmp_path, resident, shuffle):
    assert_goes_on(
        arrays(shuffle=shuffle), tmp_path, model={"resident": resident}, epochs=2, steps=[4, 6, 9]
    )


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [True, exhaustive(False), "batch"])
def test_arrays_that_go_on_over_epochs(tmp_path, shuffle):
    assert_goes_on(
        arrays(shuffle=shuffle, steps_per_epoch=4), tmp_path, epochs=4, steps=[3, 5, 6, 11]
    )


class Rows(keras.utils.PyDataset):
    """Batches of rows in an order of its own, with noise."""

    def __init__(self, noise=None, reorder=None, is_endless=False, **options):
        super().__init__(**options)
        self.x, self.y = rows()
        self.order = np.arange(ROWS)
        self.noise, self.reorder, self.is_endless = noise, reorder, is_endless
        self.generator = np.random.default_rng(1)
        self.python = random.Random(2)
        self.epochs = 0

    @property
    def num_batches(self):
        return None if self.is_endless else -(-ROWS // BATCH)

    def __getitem__(self, index):
        begin = index * BATCH % (ROWS - 2 if self.is_endless else ROWS)
        chosen = self.order[begin : begin + BATCH]
        x = self.x[chosen]
        if self.noise == "attribute":
            x = x + self.generator.normal(size=x.shape).astype("float32") * self.python.random()
        if self.noise == "global":
            x = x + np.random.normal(size=x.shape).astype("float32") * random.random()
        return x.astype("float32"), self.y[chosen]

    def on_epoch_end(self):
        self.epochs += 1
        if self.reorder == "global":
            np.random.shuffle(self.order)
        if self.reorder == "attribute":
            self.generator.shuffle(self.order)
        if self.reorder == "number":
            np.random.default_rng(self.epochs).shuffle(self.order)


def dataset(shuffle=False, steps_per_epoch=None, kind=Rows, **options):
    return lambda: {
        "x": kind(**options),
        "shuffle": shuffle,
        "steps_per_epoch": steps_per_epoch,
    }


DATASETS = {
    "plain": dataset(),
    "shuffle": dataset(shuffle=True),
    "own generators": dataset(noise="attribute"),
    "shared generators": dataset(noise="global", shuffle=True),
    "order": dataset(reorder="global"),
    "order, own generator": dataset(reorder="attribute", noise="attribute"),
    "over epochs": dataset(steps_per_epoch=4),
    "over epochs, shuffle": dataset(steps_per_epoch=4, shuffle=True),
    "over epochs, order": dataset(steps_per_epoch=4, reorder="number"),
    "over epochs, order by shared generator": dataset(steps_per_epoch=4, reorder="global"),
    "over epochs, all": dataset(
        steps_per_epoch=4, reorder="attribute", noise="attribute", shuffle=True
    ),
    "endless": dataset(steps_per_epoch=4, is_endless=True, noise="attribute", reorder="number"),
    "workers": dataset(workers=2),
    "workers, shuffle": dataset(workers=2, shuffle=True),
    "workers, order": dataset(workers=2, reorder="global", shuffle=True),
    "workers over epochs": dataset(workers=2, steps_per_epoch=4, reorder="number"),
    "workers, endless": dataset(workers=2, steps_per_epoch=4, is_endless=True),
    "processes": dataset(workers=1, use_multiprocessing=True, shuffle=True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    with_marks(DATASETS, exhaustive=("order", "workers", "workers, order", "workers over epochs")),
)
def test_datasets(tmp_path, name):
    assert_goes_on(DATASETS[name], tmp_path)


def seeded(end=None):
    generator = np.random.default_rng(4)
    for _ in itertools.count() if end is None else range(end):
        x = generator.normal(size=(BATCH, 3)).astype("float32")
        yield x, x[:, :1]


def from_shared_generators(end=None):
    for _ in itertools.count() if end is None else range(end):
        x = np.random.normal(size=(BATCH, 3)).astype("float32")
        yield x, x[:, :1] * random.random()


@pytest.mark.parametrize("generator", [seeded, from_shared_generators])
@pytest.mark.parametrize(
    ("end", "steps_per_epoch"), [(None, 4), (5, None), (5, 3), (12, 4), (1, None)]
)
@pytest.mark.slow
def test_generators(tmp_path, generator, end, steps_per_epoch):
    source = lambda: {"x": generator(end), "steps_per_epoch": steps_per_epoch, "shuffle": False}  # noqa: E731
    assert_goes_on(source, tmp_path)


class Noisy(Rows):
    """Says what its state is."""

    read = 0

    def __getitem__(self, index):
        type(self).read += 1
        return super().__getitem__(index)

    def get_state(self):
        return {
            "generator": self.generator.bit_generator.state,
            "python": self.python.getstate(),
            "order": self.order,
            "epochs": self.epochs,
        }

    def set_state(self, state):
        self.generator.bit_generator.state = state["generator"]
        self.python.setstate(state["python"])
        self.order, self.epochs = state["order"], state["epochs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "steps_per_epoch"),
    [(1, 4), (2, None), exhaustive(1, None), exhaustive(2, 4)],
)
def test_datasets_with_a_state(tmp_path, workers, steps_per_epoch):
    noise = "attribute" if workers == 1 else None
    source = dataset(
        kind=Noisy,
        noise=noise,
        reorder="attribute",
        shuffle=True,
        workers=workers,
        steps_per_epoch=steps_per_epoch,
    )
    assert_goes_on(source, tmp_path, steps=[3, 6, 8, 10])


@pytest.mark.slow
def test_a_dataset_with_a_state_reads_no_batch_again(tmp_path, monkeypatch):
    monkeypatch.setattr(source_position, "_SHARE", 1e9)  # a state after each batch
    source = dataset(kind=Noisy, noise="attribute", reorder="attribute", shuffle=True)
    assert_goes_on(source, tmp_path, steps=[9])
    place = copied_up_to(tmp_path / "whole", 9, tmp_path / "copy")
    Noisy.read = 0
    trained(source, place)
    assert Noisy.read == 1 + 9  # one to build the model


@pytest.mark.slow
def test_arrays_are_not_sliced_up_to_the_position(tmp_path, monkeypatch):
    model = {"resident": False}
    source = arrays(shuffle=True)
    assert_goes_on(source, tmp_path, steps=[10], model=model, epochs=2)
    sliced = []
    place = copied_up_to(tmp_path / "whole", 10, tmp_path / "copy")
    take = keras_positions._ArrayBatches.__next__
    monkeypatch.setattr(
        keras_positions._ArrayBatches,
        "__next__",
        lambda self: sliced.append(take(self)) or sliced[-1],
    )
    trained(source, place, model=model, epochs=2)
    assert len(sliced) == 2


class Stream:
    """An iterator with a state, which ends after some batches."""

    def __init__(self, end=None):
        self.end, self.drawn = end, 0
        self.generator = np.random.default_rng(5)

    def __iter__(self):
        return self

    def __next__(self):
        if self.drawn == self.end:
            raise StopIteration
        self.drawn += 1
        x = self.generator.normal(size=(BATCH, 3)).astype("float32")
        return [x, x[:, :1] + self.drawn]

    def get_state(self):
        return {"drawn": self.drawn, "generator": self.generator.bit_generator.state}

    def set_state(self, state):
        self.drawn = state["drawn"]
        self.generator.bit_generator.state = state["generator"]


class Reshuffled(Stream):
    """Begins again by itself, in another order."""

    def __init__(self):
        super().__init__(end=6)
        self.order = np.arange(6)

    def __iter__(self):
        self.drawn = 0
        self.generator.shuffle(self.order)
        return self

    def __next__(self):
        if self.drawn == self.end:
            raise StopIteration
        self.drawn += 1
        begin = self.order[self.drawn - 1] * 3
        return X[begin : begin + 3], Y[begin : begin + 3]

    def get_state(self):
        return {**super().get_state(), "order": self.order}

    def set_state(self, state):
        super().set_state(state)
        self.order[:] = state["order"]


class Iterable:
    """Has no `__next__`, and continues where its state is."""

    def __init__(self):
        self.index = 0

    def __iter__(self):
        while self.index < 6:
            begin = self.index * 3
            self.index += 1
            yield X[begin : begin + 3], Y[begin : begin + 3]
        self.index = 0

    def get_state(self):
        return self.index

    def set_state(self, state):
        self.index = state


STREAMS = {
    "endless": (Stream, 4),
    "ends": (lambda: Stream(6), None),
    "ends in an epoch": (lambda: Stream(6), 4),
    "reshuffled": (Reshuffled, None),
    "reshuffled, over epochs": (Reshuffled, 4),
    "iterable": (Iterable, None),
    "iterable, over epochs": (Iterable, 4),
}


def stream(kind, steps_per_epoch=None):
    return lambda: {"x": kind(), "steps_per_epoch": steps_per_epoch}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps_per_execution"),
    with_marks(itertools.product(STREAMS, (1, 3)), exhaustive=[("ends", 1)]),
)
def test_iterators_with_a_state(tmp_path, name, steps_per_execution):
    model = {"steps_per_execution": steps_per_execution, "is_built": steps_per_execution == 1}
    assert_goes_on(stream(*STREAMS[name]), tmp_path, model=model)


@pytest.mark.slow
def test_an_iterator_loses_no_batch(tmp_path):
    """Neither that with which a model is built, nor those that are drawn ahead."""

    def generator():
        yield from (tuple(batch) for batch in Stream(8))

    options = {"model": {"is_built": False, "steps_per_execution": 2}, "epochs": 2}
    expected = trained(
        lambda: {"x": generator(), "shuffle": False, "steps_per_epoch": 4}, **options
    )
    assert_same(trained(stream(Stream, 4), **options), expected)
    assert_goes_on(stream(Stream, 4), tmp_path, steps=[4], **options)


def test_an_iterator_is_validation_data_too():
    model = compiled()
    history = model.fit(
        Stream(), steps_per_epoch=2, validation_data=Stream(), validation_steps=2, verbose=0
    )
    validation = Stream()
    loss = model.evaluate(validation, steps=2, verbose=0)
    assert history.history["val_loss"] == [loss]


def test_an_iterator_with_targets_is_refused():
    with pytest.raises(DataError, match=r"Stream and y\. Let the iterator yield"):
        compiled().fit(Stream(), Y, steps_per_epoch=2)


class State:
    """No plain value."""

    def __init__(self, values):
        self.values = values


class Opaque(Stream):
    def get_state(self):
        return State(super().get_state())

    def set_state(self, state):
        super().set_state(state.values)


@pytest.mark.slow
def test_a_state_that_is_not_plain_is_read_again(tmp_path, caplog):
    assert_goes_on(stream(Opaque, 4), tmp_path, steps=[6], epochs=2)
    lines = [record.message for record in caplog.records if "cannot be saved" in record.message]
    assert len(lines) == 2  # one of each training with checkpoints
    assert "a value of type test_source_positions.State" in lines[0]
    assert "reads the data again" in lines[0]


def test_reading_again_is_announced_and_can_be_interrupted(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(source_position, "_SLOW_SECONDS", 0.0)
    source = lambda: {"x": seeded(), "steps_per_epoch": 4, "shuffle": False}  # noqa: E731
    whole = trained(source, tmp_path, epochs=2)
    place = copied_up_to(tmp_path, 6, tmp_path.with_name("copy"))

    def interrupting():
        for number, batch in enumerate(seeded()):
            if number == 4:
                signal.raise_signal(signal.SIGINT)
            yield batch

    with pytest.raises(KeyboardInterrupt):
        trained(lambda: {**source(), "x": interrupting()}, place, epochs=2)
    assert "read again up to batch 6, which takes some 0 s" in caplog.text
    assert_same(trained(source, place, epochs=2), whole)


def test_fewer_batches_than_were_trained_are_refused(tmp_path):
    trained(stream(Opaque, 4), tmp_path, epochs=2)
    place = copied_up_to(tmp_path, 6, tmp_path.with_name("copy"))
    with pytest.raises(CheckpointError, match="ends after 2 batches, and 6 were trained"):
        trained(lambda: {"x": Opaque(2), "steps_per_epoch": 4}, place, epochs=2)


OTHERS = {
    "class of the data set was Rows there and is Noisy here": (dataset(), dataset(kind=Noisy)),
    "class of the data set was Stream there and is Reshuffled": (
        stream(Stream, 4),
        stream(Reshuffled, 4),
    ),
    r"batches was float32\[4, 3\], float32\[4, 1\] there and is float32\[2, 3\]": (
        lambda: {"x": seeded(), "steps_per_epoch": 2, "shuffle": False},
        lambda: {
            "x": ((x[:2], y[:2]) for x, y in seeded()),
            "steps_per_epoch": 2,
            "shuffle": False,
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("difference", OTHERS)
def test_another_data_set_is_refused(tmp_path, difference):
    source, other = OTHERS[difference]
    trained(source, tmp_path, epochs=1)
    with pytest.raises(CheckpointError, match=difference):
        trained(other, tmp_path, epochs=2)
