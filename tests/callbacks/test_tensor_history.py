"""Rows of the history: their order, their numbers, and how many are kept."""

import keras
import numpy as np
import pytest
from watching import built, column, data, fit, watch

import millrace
from millrace.base.records.tensors import STATISTICS

COLUMNS = ["epoch", "step", "update", "kind", "name", "stage", *STATISTICS]


def test_columns_are_those_of_a_table(strategy):
    statistics = watch("hidden")
    fit(strategy.attach(built()), statistics)
    assert list(statistics.history) == COLUMNS
    assert {len(values) for values in statistics.history.values()} == {6}
    assert statistics.history["nans"].dtype == statistics.history["step"].dtype == np.int64
    assert set(statistics.history["stage"]) == {0}


def test_rows_are_in_the_order_of_training(strategy):
    model = strategy.attach(built(steps_per_execution=4))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    statistics = watch("out", "out/bias")
    fit(model, statistics, data(4))
    order = list(
        zip(column(statistics.history, "kind"), column(statistics.history, "step"), strict=True)
    )
    step = [("activation", k) for k in range(4)]
    assert order == [*step[:2], ("gradient", 1), *step[2:], ("gradient", 3)]


@pytest.mark.parametrize("activations", ["out", ()])
def test_numbers_go_on_over_epochs_with_a_shorter_last_update(strategy, activations):
    model = strategy.attach(built(steps_per_execution=6))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    statistics = watch(activations, "out/bias")
    fit(model, statistics, epochs=2)  # 6 steps, of which 4 and 2 are an update
    history = statistics.history
    gradients = [column(history, name, "gradient") for name in ("epoch", "step", "update")]
    assert gradients == [[0, 0, 1, 1], [3, 5, 9, 11], [0, 1, 2, 3]]
    if activations:
        assert column(history, "step", "activation") == list(range(12))
        expected = [0] * 4 + [1] * 2 + [2] * 4 + [3] * 2
        assert column(history, "update", "activation") == expected


def test_a_ragged_last_batch(strategy):
    x, y = data()
    statistics = watch("out", "out/bias")
    fit(strategy.attach(built(steps_per_execution=3)), statistics, (x[:22], y[:22]), epochs=2)
    assert column(statistics.history, "step", "activation") == list(range(12))
    assert column(statistics.history, "step", "gradient") == list(range(12))


def batches():
    x, y = data(7)
    for begin in range(0, len(x), 4):
        yield x[begin : begin + 4], y[begin : begin + 4]


class Batches(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.batches = list(batches())

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


@pytest.mark.parametrize("source", [batches, Batches])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_of_any_source(strategy, source):
    model = strategy.attach(built(steps_per_execution=4))
    statistics = watch("out", "out/bias")
    for _ in range(2):
        model.fit(source(), verbose=0, shuffle=False, callbacks=[statistics])
    assert column(statistics.history, "step", "activation") == list(range(14))
    assert column(statistics.history, "step", "gradient") == list(range(14))


def test_a_second_fit_continues(strategy):
    model = strategy.attach(built(steps_per_execution=6))
    statistics = watch("out")
    fit(model, statistics)
    fit(model)
    fit(model, statistics)
    assert column(statistics.history, "step") == list(range(12))
    assert column(statistics.history, "epoch") == [0] * 12


def test_replicas_count_every_micro_batch():
    model = millrace.Strategy(devices=2).attach(built(steps_per_execution=8))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    statistics = watch("out", "out/bias")
    fit(model, statistics, data(8), epochs=2)
    history = statistics.history
    assert column(history, "step", "activation") == list(range(16))
    assert column(history, "update", "activation") == [k // 4 for k in range(16)]
    assert column(history, "step", "gradient") == [3, 7, 11, 15]


def test_a_row_knows_its_stage():
    model = millrace.Strategy(devices=2).attach(built(steps_per_execution=8))
    stages = model.get_pipeline_stage_assignment()
    for call, stage in zip(stages, (0, 0, 1), strict=True):
        call.pipeline_stage = stage
    model.set_pipeline_stage_assignment(stages)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    statistics = watch("*", "*/kernel")
    fit(model, statistics, data(8))
    history = statistics.history
    found = set(zip(history["name"], history["stage"].tolist(), strict=True))
    expected = {("hidden", 0), ("middle", 0), ("out", 1)}
    assert found == expected | {(f"{name}/kernel", stage) for name, stage in expected}
    assert column(history, "step", "gradient") == [3] * 3 + [7] * 3


def test_it_keeps_max_rows(strategy):
    statistics = watch("*", max_rows=10)
    with pytest.warns(UserWarning, match=r"has reached max_rows=10 rows.*Set every= or max_rows="):
        fit(strategy.attach(built()), statistics)
    assert column(statistics.history, "step") == [3] * 3 + [4] * 3 + [5] * 3
