"""The place in the data that other trainers lost; see test_lost_state.py."""

import itertools
import json

import keras
import numpy as np
import pytest
from breaks import BATCH, EPOCHS, ROWS, STEPS, Shuffled, X, Y, break_and_compare

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_py_dataset(tmp_path, workers, shuffle):
    """Order of another epoch after a restart."""
    data = lambda: {"x": Shuffled(workers=workers), "shuffle": shuffle}  # noqa: E731
    break_and_compare(tmp_path, 8, 6, data=data)


def stream(read=None):
    random = np.random.default_rng(5)
    for number in itertools.count():
        if read is not None:
            read.append(number)
        x = random.normal(size=(BATCH, 5)).astype("float32")
        yield x, x[:, :1]


def test_a_generator_is_read_to_its_place(tmp_path):
    """It started again at its first batch."""
    data = lambda: {"x": stream(), "steps_per_epoch": STEPS, "shuffle": False}  # noqa: E731
    break_and_compare(tmp_path, 8, 6, data=data)


class Stream(keras.utils.PyDataset):
    """A stream that knows its place, whatever index it is asked for."""

    def __init__(self):
        super().__init__()
        self._random = np.random.default_rng(5)
        self.skipped = []  # places that it was set to

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        x = self._random.normal(size=(BATCH, 5)).astype("float32")
        return x, x[:, :1]

    def get_state(self):
        return {"random": json.dumps(self._random.bit_generator.state)}

    def set_state(self, state):
        self.skipped.append(state)
        self._random.bit_generator.state = json.loads(state["random"])


def test_the_state_of_a_stream_is_that_of_trained_batches(tmp_path):
    """What had been read ahead counted as trained, and was left out."""
    made = []

    def data():
        made.append(Stream())
        return {"x": made[-1], "shuffle": False}

    break_and_compare(tmp_path, 8, 6, data=data)
    assert made[-1].skipped


def test_data_of_unknown_length(tmp_path):
    """No number of steps, no resume."""

    def finite():
        for number in range(EPOCHS * STEPS + 2):
            rows = np.random.default_rng(number).permutation(ROWS)[:BATCH]
            yield X[rows], Y[rows]

    data = lambda: {"x": finite(), "shuffle": False}  # noqa: E731
    break_and_compare(tmp_path, 7, data=data, epochs=1)


def grain_of_rows(length=None):
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.range(ROWS).seed(3).shuffle()
    if length is not None:
        data = data.repeat(length)
    return data.map(lambda row: (X[row], Y[row]))


def test_grain_maps(tmp_path):
    """Weights were restored, and the data began again."""
    break_and_compare(
        tmp_path, 8, 6, data=lambda: {"x": grain_of_rows().batch(BATCH), "shuffle": False}
    )


@pytest.mark.parametrize("window", [None, 10])
def test_grain_iterators_over_several_epochs(tmp_path, window):
    """A window that is shuffled got another seed after set_state."""
    grain = pytest.importorskip("grain")

    def data():
        rows = grain_of_rows(EPOCHS + 1).to_iter_dataset()
        if window is not None:
            shuffle = getattr(grain.experimental, "WindowShuffleIterDataset", None)
            if shuffle is None:
                pytest.skip("grain has no window that is shuffled")
            rows = shuffle(rows, window_size=window, seed=4)
        return {"x": rows.batch(BATCH), "steps_per_epoch": STEPS, "shuffle": False}

    break_and_compare(tmp_path, 8, 6, data=data)


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loader(tmp_path, workers):
    """Epochs shortened or dropped after load_state_dict."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    torch = pytest.importorskip("torch")
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))

    def data():
        torch.manual_seed(3)
        loader = loaders.StatefulDataLoader(
            tensors, batch_size=BATCH, shuffle=True, num_workers=workers,
            persistent_workers=workers > 0,
        )  # fmt: skip
        return {"x": loader, "shuffle": False}

    break_and_compare(tmp_path, 8, 6, data=data)


def test_tf_data(tmp_path):
    """An iterator with a buffer that is shuffled was not restored."""
    tf = pytest.importorskip("tensorflow")
    rows = lambda: tf.data.Dataset.from_tensor_slices((X, Y))  # noqa: E731
    break_and_compare(
        tmp_path, 8, 6, data=lambda: {"x": rows().shuffle(9, seed=3).batch(BATCH), "shuffle": False}
    )
