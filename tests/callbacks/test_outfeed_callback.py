import tracemalloc

import keras
import ml_dtypes
import numpy as np
import pytest

from millrace.api.callbacks.outfeed_callback import OutfeedCallback
from millrace.layers import Outfeed
from millrace.optimizers import OutfeedOptimizer, OutfeedOptimizerMode
from millrace.programs.taps.maybe_outfeed import MaybeOutfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue

KEYS = ["Dense_128/bias:0_grad", "Dense_128/kernel:0_grad"]


class Filled(OutfeedQueue):
    """A queue in which something has arrived."""

    def __init__(self, data):
        super().__init__()
        self.data = data

    @property
    def enqueued(self):
        return True

    def dequeue(self, wait_for_completion=False):
        return self.data


def lines_of(callback, capsys, epoch=0):
    capsys.readouterr()
    callback.on_epoch_end(epoch)
    return capsys.readouterr().out.split("\n")


def test_the_text_is_exact(capsys):
    kernel = np.array([[-1.0, 2.0], [0.5, -0.25]], "float32")
    bias = np.array([-0.000663, 12.5], "float32")
    callback = OutfeedCallback(Filled(dict(zip(KEYS, (bias, kernel), strict=True))), "Gradients")
    assert lines_of(callback, capsys, epoch=2) == [
        "",
        "Gradients",
        "key: Dense_128/bias:0_grad shape: (2,)",
        "key: Dense_128/kernel:0_grad shape: (2, 2)",
        "Epoch 3 - Summary Stats",
        "Index Name                         Mean         Std          Minimum      "
        "Maximum      NaNs    infs   ",
        "0     Dense_128/bias:0_grad        6.249669     6.250331     -0.000663    "
        "12.500000    False   False  ",
        "1     Dense_128/kernel:0_grad      0.312500     1.109265     -1.000000    "
        "2.000000     False   False  ",
        "",
    ]


def test_nans_and_infinities_are_told_and_go_into_the_numbers(capsys):
    data = {
        "fine": np.ones(3),
        "nan": np.array([1.0, np.nan, 3.0]),
        "inf": np.array([1.0, np.inf, -np.inf]),
    }
    callback = OutfeedCallback(Filled(data))
    lines = lines_of(callback, capsys)
    assert lines[1] == "OutfeedCallback"
    assert [line[-16:] for line in lines[-4:-1]] == [
        " False   False  ",
        " True    False  ",
        " False   True   ",
    ]
    assert lines[-3].split()[2:6] == ["nan"] * 4
    assert lines[-2].split()[2:6] == ["nan", "nan", "-inf", "inf"]
    assert [(row.has_nans, row.has_infs) for row in callback.history] == [
        (False, False),
        (True, False),
        (False, True),
    ]


def test_a_queue_that_nobody_enqueues_into(capsys):
    callback = OutfeedCallback(MaybeOutfeedQueue(filters=[]), "Activations")
    assert lines_of(callback, capsys) == ["", "Activations", "No data enqueued", ""]
    assert callback.history == []


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (np.arange(4.0), [("value", (4,), 1.5)]),
        ((np.ones(2), [np.zeros(3)]), [("0", (2,), 1.0), ("1/0", (3,), 0.0)]),
        ({"both": {"a": np.ones(2)}}, [("both/a", (2,), 1.0)]),
        ({"few": np.array([1, 2, 3], ml_dtypes.bfloat16)}, [("few", (3,), 2.0)]),
        ({"int": np.array([1, 2])}, [("int", (2,), 1.5)]),
        ({"truth": np.array([True, False])}, [("truth", (2,), 0.5)]),
        ({"none": np.ones((0, 3))}, [("none", (0, 3), float("nan"))]),
        ([], []),
    ],
)
def test_any_structure_and_type(capsys, data, rows):
    callback = OutfeedCallback(Filled(data))
    lines_of(callback, capsys)
    found = [(row.key, row.shape, row.mean) for row in callback.history]
    for mine, theirs in zip(found, rows, strict=True):
        assert mine[:2] == theirs[:2]
        assert mine[2] == pytest.approx(theirs[2], nan_ok=True)


def test_statistics_are_those_of_all_elements():
    values = np.random.default_rng(0).normal(1e4, 1e-2, (50, 7)).astype("float32")
    callback = OutfeedCallback(Filled({"x": values}))
    callback.on_epoch_end(4)
    (row,) = callback.history
    assert (row.epoch, row.key, row.shape) == (4, "x", (50, 7))
    exact = values.astype("float64")
    assert row.mean == pytest.approx(exact.mean(), rel=1e-12)
    assert row.std == pytest.approx(exact.std(), rel=1e-9)
    assert (row.minimum, row.maximum) == (values.min(), values.max())


def test_statistics_of_many_elements_need_little_memory():
    values = np.random.default_rng(0).normal(1, 2, (2**16, 64)).astype("float32")  # 16 MiB
    queue = Filled({"x": values})
    callback = OutfeedCallback(queue)
    tracemalloc.start()
    callback.on_epoch_end(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < values.nbytes / 4
    assert callback.history[0].std == pytest.approx(values.astype("float64").std(), rel=1e-12)
    assert not callback.history[0].has_nans
    values[-1, -1], values[0, 0] = np.nan, np.inf
    callback.on_epoch_end(1)
    row = callback.history[1]
    assert row.has_nans
    assert row.has_infs
    assert np.isnan(row.std)


# In training


def train(strategy, callbacks_of, epochs=3, steps=20, accumulation=4, mode="before_apply"):
    gradients, activations = MaybeOutfeedQueue(filters=["Dense_128"]), OutfeedQueue()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Flatten(),
                keras.layers.Dense(16, "relu", name="Dense_128"),
                Outfeed(activations, name="Dense_128_acts"),
                keras.layers.Dense(10, "softmax", name="Dense_10"),
            ]
        )
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    optimizer = OutfeedOptimizer(keras.optimizers.SGD(), gradients, mode, model=model)
    model.compile(optimizer, "sparse_categorical_crossentropy", steps_per_execution=steps)
    callbacks = callbacks_of(gradients, activations)
    random = np.random.default_rng(0)
    x, y = random.random((steps * 4, 5, 5, 1), np.float32), random.integers(0, 10, steps * 4)
    model.fit(x, y.astype("float32"), batch_size=4, epochs=epochs, callbacks=callbacks, verbose=0)
    return callbacks


def both(gradients, activations):
    return [OutfeedCallback(gradients, "Gradients"), OutfeedCallback(activations, "Activations")]


@pytest.mark.parametrize(
    ("accumulation", "mode", "elements"),
    [(4, "before_apply", 5), (4, "after_compute", 20), (1, "before_apply", 20)],
)
def test_each_epoch_gives_its_own_elements(strategy, accumulation, mode, elements):
    gradients, activations = train(strategy, both, accumulation=accumulation, mode=mode)
    for epoch in range(3):
        of_gradients = [row for row in gradients.history if row.epoch == epoch]
        assert [(row.key, row.shape) for row in of_gradients] == [
            (KEYS[0], (elements, 16)),
            (KEYS[1], (elements, 25, 16)),
        ]
    assert [row.shape for row in activations.history] == [(20, 4, 16)] * 3
    assert all(row.minimum == 0 and row.std > 0 for row in activations.history)  # after a relu


def test_a_queue_that_nobody_reads_stops_nothing(strategy, capsys):
    unused = MaybeOutfeedQueue()
    train(
        strategy, lambda g, a: [OutfeedCallback(g, "Gradients"), OutfeedCallback(unused, "Other")]
    )
    lines = capsys.readouterr().out.split("\n")
    titles = [line for line in lines if line in ("Gradients", "Other", "No data enqueued")]
    assert titles == ["Gradients", "Other", "No data enqueued"] * 3
    assert len([line for line in lines if line.startswith("key: Dense_128/bias:0_grad")]) == 3


def test_without_a_strategy_there_is_no_data(capsys):
    queue = OutfeedQueue()
    model = keras.Sequential([keras.layers.Dense(1), Outfeed(queue)])
    mode = OutfeedOptimizerMode.AFTER_COMPUTE
    model.compile(OutfeedOptimizer(keras.optimizers.SGD(), queue, mode, model=model), "mse")
    callback = OutfeedCallback(queue)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[callback])
    assert capsys.readouterr().out == "\nOutfeedCallback\nNo data enqueued\n"
