"""What the pipeline runtime does, seen from a model: its numbers are in tests/equivalence."""

import jax
import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace._compat.jax_arrays import DeviceCopies
from millrace.compilation.executables import executable
from millrace.errors import NonFiniteError, TaskError
from millrace.run.pipelines.runtime import tasks as stage_tasks
from millrace.run.pipelines.runtime.buffers import Buffers
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.table import make_schedule

pytestmark = pytest.mark.quick


@pytest.fixture
def strategy():
    """A device for each of three stages: one replica of the pipeline."""
    return millrace.Strategy(devices="cpu:3")


def data(rows):
    x = np.random.default_rng(0).normal(size=(rows, 6)).astype("float32")
    return x, x[:, :1]


def pipeline(strategy, stages=(0, 1, 2), steps=4, updates=1, **options):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), *(layers.Dense(6, "tanh") for _ in stages[1:]), layers.Dense(1)]
        )
    model.set_pipeline_stage_assignment(list(stages))
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=steps, **options)
    model.compile("sgd", "mse", steps_per_execution=steps * updates)
    return model


@pytest.mark.parametrize("name", ["zb_v", "v_half", "v_min"])
@pytest.mark.parametrize("steps", [1, 7])
def test_the_default_devices_of_a_v(name, steps):
    strategy = millrace.Strategy(devices="cpu:2")
    model = pipeline(strategy, (0, 1, 2, 3), steps=steps, pipeline_schedule=name)
    model.fit(*data(2 * steps), batch_size=2, verbose=0)
    assert strategy.statistics().pipeline.last_tasks == 4 * 3 * steps
    first, second = strategy.devices
    on_devices = [next(iter(layer.kernel.value.devices())) for layer in model.layers]
    assert on_devices == [first, second, second, first]
    schedule = make_schedule(name, 4, steps, (0, 1, 1, 0))
    held = strategy.statistics().pipeline.last_in_flight
    assert held == simulate(schedule, UNIT_COST).in_flight


def test_the_stages_of_one_device_pass_values_on_without_a_copy(monkeypatch):
    """At the last device of a V, forward goes straight on to the next stage."""
    copied = []
    original = DeviceCopies.from_device

    def from_device(self, arrays):
        copied.extend(arrays)
        return original(self, arrays)

    monkeypatch.setattr(DeviceCopies, "from_device", from_device)
    for devices, mapping in (("cpu:2", "auto"), ("cpu:4", [0, 1, 2, 3])):
        copied.clear()
        model = pipeline(
            millrace.Strategy(devices=devices),
            (0, 1, 2, 3),
            steps=3,
            pipeline_schedule="zb_v" if mapping == "auto" else "zero_bubble",
            device_mapping=mapping,
        )
        model.fit(*data(6), batch_size=2, verbose=0)
        # There and back over each boundary between devices, for each of three micro-batches.
        assert len(copied) == 3 * 2 * (2 if mapping == "auto" else 3)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "grouped", "sequential", "zero_bubble"])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_one_dispatch_for_each_task(strategy, name, steps):
    model = pipeline(strategy, steps=steps, pipeline_schedule=name)
    model.fit(*data(2 * steps), batch_size=2, verbose=0)
    tasks = sum(map(len, make_schedule(name, 3, steps, (0, 1, 2))))
    assert strategy.statistics().pipeline.last_tasks == tasks
    assert strategy.statistics().pipeline.last_task_seconds > 0


@pytest.mark.parametrize(
    ("name", "in_flight"),
    [
        ("gpipe", lambda m: (m, m, m)),
        ("1f1b", lambda m: (min(3, m), min(2, m), 1)),
        ("grouped", lambda m: (min(5, m), min(3, m), 1)),
        ("sequential", lambda m: (1, 1, 1)),
    ],
)
def test_activations_in_flight_are_those_of_the_schedule(strategy, name, in_flight):
    for steps in (4, 16):
        model = pipeline(strategy, steps=steps, pipeline_schedule=name)
        model.fit(*data(2 * steps), batch_size=2, verbose=0)
        assert strategy.statistics().pipeline.last_in_flight == in_flight(steps)


@pytest.mark.slow
def test_nothing_is_left_in_flight_and_bytes_are_flat(strategy, monkeypatch):
    """Of all micro-batches of an update, 1F1B holds at most as many as there are stages."""
    made, peaks = [], {}

    class Watched(Buffers):
        def __init__(self):
            super().__init__()
            made.append(self)
            self.peak = 0

        def hold(self, *arguments):
            super().hold(*arguments)
            self.peak = max(self.peak, self.nbytes())

    monkeypatch.setattr("millrace.run.pipelines.runtime.update_tasks.Buffers", Watched)
    for name in ("1f1b", "gpipe"):
        for steps in (4, 32):
            model = pipeline(strategy, steps=steps, pipeline_schedule=name)
            model.fit(*data(2 * steps), batch_size=2, verbose=0)
            peaks[name, steps] = made[-1].peak
            assert made[-1].nbytes() == 0
    assert peaks["1f1b", 32] == peaks["1f1b", 4]
    assert peaks["gpipe", 32] > 4 * peaks["1f1b", 32]


def test_stages_compile_once(strategy):
    model = pipeline(strategy, steps=2)
    model.fit(*data(8), batch_size=2, verbose=0, epochs=2)
    compiled = len(strategy.compile_log)
    names = [record.program for record in strategy.compile_log]
    assert len(names) == len(set(names)) == 3 * 4 + 1  # four programs of each stage, and logs
    model.fit(*data(8), batch_size=2, verbose=0)
    model.fit(*data(20), batch_size=2, verbose=0)
    assert len(strategy.compile_log) == compiled


def test_a_failed_task_shows_the_schedule_with_its_cell_marked(strategy, monkeypatch):
    model = pipeline(strategy, steps=4)
    model.fit(*data(8), batch_size=2, verbose=0)
    weights = model.get_weights()
    backward = stage_tasks.StageTasks.backward

    def fails(self, micro_batch, *arguments):
        if (self._index, micro_batch) == (1, 2):
            raise ValueError("out of memory, say")
        return backward(self, micro_batch, *arguments)

    monkeypatch.setattr(stage_tasks.StageTasks, "backward", fails)
    with pytest.raises(TaskError, match=r"1B2 failed.*backward pass of stage 1 on micro-batch 2"):
        model.fit(*data(8), batch_size=2, verbose=0)
    with pytest.raises(TaskError, match=r"out of memory, say(.|\n)*>1B2<"):
        model.fit(*data(8), batch_size=2, verbose=0)
    monkeypatch.undo()
    # The update did not happen; the model continues from the one before.
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    model.fit(*data(8), batch_size=2, verbose=0)


@pytest.mark.slow
def test_nan_debugging_of_jax_names_the_task(strategy):
    model = pipeline(strategy, steps=2, updates=2)
    x, y = data(16)
    model.fit(x, y, batch_size=2, verbose=0)
    y = y.copy()
    y[11] = np.nan  # of micro-batch 5: the second of its update
    jax.config.update("jax_debug_nans", True)
    try:
        with pytest.raises(NonFiniteError, match=r"A nan came out of task 2F1(.|\n)*>2F1<"):
            model.fit(x, y, batch_size=2, verbose=0, shuffle=False)
    finally:
        jax.config.update("jax_debug_nans", False)
    assert all(np.isfinite(each).all() for each in model.get_weights())
    assert np.isfinite(model.fit(x, x[:, :1], batch_size=2, verbose=0).history["loss"]).all()


def test_the_updates_before_a_failed_one_stay(strategy):
    model = pipeline(strategy, steps=2, updates=2)

    def batches():
        x, y = data(12)
        for begin in range(0, 12, 2):
            if begin == 8:
                raise OSError("the disk is gone")
            yield x[begin : begin + 2], y[begin : begin + 2]

    before = model.get_weights()
    with pytest.raises(OSError, match="disk"):
        model.fit(batches(), steps_per_epoch=6, verbose=0, shuffle=False)
    after = model.get_weights()
    assert all(np.isfinite(each).all() for each in after)
    assert any((a != b).any() for a, b in zip(before, after, strict=True))


def test_compiler_options_reach_the_programs_of_their_stage_only(strategy, monkeypatch):
    seen = {}
    make = executable.share_or_compile

    def spy(lowering, log):
        seen[lowering.wanted.key.program] = lowering.options
        return make(lowering, log)

    monkeypatch.setattr(executable, "share_or_compile", spy)
    fast = {"xla_cpu_enable_fast_min_max": True}
    model = pipeline(
        strategy,
        steps=2,
        forward_propagation_stages_compiler_options=[{}, fast, {}],
        backward_propagation_stages_compiler_options=[{}, {}, {}],
        weight_update_compiler_options=fast,
    )
    model.fit(*data(4), batch_size=2, verbose=0)
    with_options = {program for program, options in seen.items() if options}
    assert with_options == {
        "train_forward of stage 1",
        *(f"train_final of stage {stage}" for stage in range(3)),
    }
