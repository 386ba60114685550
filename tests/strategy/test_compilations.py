"""How often something is compiled, and that it does not grow with the steps of an execution."""

import keras
import numpy as np
import pytest

from millrace.base.records.compilation import Origin


def mlp(steps_per_execution):
    layers = keras.layers
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=steps_per_execution)
    return model


def convnet(steps_per_execution):
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(1)]
    )
    model.compile("adam", "mse", steps_per_execution=steps_per_execution)
    return model


def data(rows, inputs=(8,)):
    random = np.random.default_rng(0)
    return random.random((rows, *inputs), np.float32), random.random((rows, 1), np.float32)


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, size=4):
        super().__init__()
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __getitem__(self, index):
        part = slice(index * self.size, (index + 1) * self.size)
        return self.x[part], self.y[part]


def programs(strategy):
    return [(record.program, record.batch) for record in executables(strategy)]


def executables(strategy):
    return [record for record in strategy.compile_log if record.is_executable]


FULL, RAGGED = "float32[4,8], float32[4,1]", "float32[2,8], float32[2,1]"


def test_two_fits_compile_once(strategy):
    model = strategy.attach(mlp(3))
    model.fit(*data(40), batch_size=4, epochs=2, verbose=0)
    assert programs(strategy) == [("train_run", FULL)]
    model.fit(*data(40), batch_size=4, verbose=0)
    model.fit(Batches(*data(40)), verbose=0)
    assert programs(strategy) == [("train_run", FULL)]


def test_a_shorter_execution_and_a_smaller_data_set_run_the_same_executable(strategy):
    model = strategy.attach(mlp(7))
    for rows in (40, 36, 12, 4):
        model.fit(*data(rows), batch_size=4, verbose=0)
    model.fit(Batches(*data(40)), verbose=0)
    assert programs(strategy) == [("train_run", FULL)]


def test_the_smaller_last_batch_compiles_once_more(strategy):
    model = strategy.attach(mlp(3))
    for _ in range(2):
        model.fit(*data(42), batch_size=4, epochs=2, verbose=0)
    assert programs(strategy) == [("train_run", FULL), ("train_run", RAGGED)]


def test_evaluate_and_predict_compile_one_program_each(strategy):
    model = strategy.attach(mlp(3))
    for _ in range(2):
        model.evaluate(*data(40), batch_size=4, verbose=0)
        model.predict(data(40)[0], batch_size=4, verbose=0)
    assert [name for name, _ in programs(strategy)] == ["test_run", "predict_run"]


def test_on_batch_methods_do_not_pad_to_an_execution(strategy):
    model = strategy.attach(mlp(100))
    for _ in range(3):
        model.train_on_batch(*data(4))
    (record,) = strategy.compile_log
    assert (record.program, record.capacity) == ("train_run", 1)


def test_a_shorter_window_compiles_its_parts_once(strategy):
    model = strategy.attach(mlp(4))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    for _ in range(2):
        model.fit(*data(42), batch_size=4, verbose=0)  # windows of 4, 4 and 2 + a smaller batch
    assert programs(strategy) == [
        ("train_run", FULL),
        ("train_zeros", FULL),
        ("train_accumulate", FULL),
        ("train_accumulate", RAGGED),
        ("train_apply", RAGGED),
    ]


def test_setting_an_option_traces_anew_and_callbacks_do_not(strategy):
    model = strategy.attach(mlp(4))
    model.fit(*data(40), batch_size=4, verbose=0)
    model.set_infeed_queue_options(prefetch_depth=1)
    model.fit(*data(40), batch_size=4, verbose=0)
    assert [record.origin for record in strategy.compile_log][1:] == [Origin.SHARED]
    model.set_asynchronous_callbacks(True)
    model.set_asynchronous_callbacks(False)
    model.fit(*data(40), batch_size=4, verbose=0)
    assert len(strategy.compile_log) == 2


@pytest.mark.parametrize(("build", "inputs"), [(mlp, (8,)), (convnet, (8, 8, 1))])
def test_one_program_serves_any_number_of_steps(strategy, build, inputs):
    records = []
    for steps in (8, 1000):
        model = strategy.attach(build(steps))
        model.set_infeed_queue_options(max_resident_bytes=0)  # blocks as long as executions
        before = len(executables(strategy))
        model.fit(*data(4000, inputs), batch_size=4, verbose=0)
        records.append(executables(strategy)[before:])
    assert len(records[0]) == len(records[1]) == 1
    assert (records[0][0].capacity, records[1][0].capacity) == (32, 1000)
    assert records[1][0].temporary_bytes <= 1.1 * records[0][0].temporary_bytes


def test_blocks_stay_within_their_bytes(strategy):
    model = strategy.attach(mlp(1000))
    model.set_infeed_queue_options(max_block_bytes=10 * 4 * 9 * 4, max_resident_bytes=0)
    model.fit(*data(4000), batch_size=4, verbose=0)
    (record,) = strategy.compile_log
    assert record.capacity == 10
    assert strategy.statistics().executions == 1
    assert strategy.statistics().dispatches == 100


def test_an_execution_is_one_dispatch(strategy):
    model = strategy.attach(mlp(10))
    model.fit(*data(400), batch_size=4, epochs=3, verbose=0)
    statistics = strategy.statistics()
    assert (statistics.executions, statistics.dispatches) == (30, 30)
    assert statistics.infeed.steps == 300
