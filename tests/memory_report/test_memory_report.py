"""`strategy.memory_report`, as a user calls it, against the compiler and what is really there."""

import gc
import io
import itertools

import jax
import keras
import numpy as np
import pytest
from rich.console import Console

import millrace
from millrace._compat.jax_executables import argument_bytes, requirement
from millrace.base.records.memory import bytes_text
from millrace.errors import ModelError, OptionError, OutOfMemoryError, PlanError
from millrace.run.compiled_loop.runner import ScanRunner
from millrace.run.pipelines.programs.executables import StageExecutables

ROWS, FEATURES = 512, 32


def make_model(strategy, steps=4, layers=3, width=128, optimizer="adam"):
    with strategy.scope():
        hidden = [keras.layers.Dense(width, "relu", name=f"hidden_{k}") for k in range(layers)]
        model = keras.Sequential(
            [keras.Input((FEATURES,)), *hidden, keras.layers.Dense(1, name="head")], name="mlp"
        )
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=steps)
    return model


def batch(rows=ROWS):
    return ((rows, FEATURES), "float32"), ((rows, 1), "float32")


def fit(model, steps, rows=ROWS, epochs=1):
    x, y = np.ones((steps * rows, FEATURES), "float32"), np.ones((steps * rows, 1), "float32")
    model.fit(x, y, batch_size=rows, epochs=epochs, verbose=0)


def parameters(model):
    return sum(v.value.nbytes for v in model.trainable_variables)


@pytest.mark.shipped_compiler
def test_the_peak_is_the_compilers_and_fit_compiles_nothing_more(strategy):
    model = make_model(strategy)
    weights = [v.numpy() for v in model.trainable_variables]
    report = strategy.memory_report(model, batch())
    (record,) = strategy.compile_log
    assert record.program == "train_run"
    assert report.peak == record.peak_bytes > record.temporary_bytes
    for before, variable in zip(weights, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(before, variable.numpy())
    assert strategy.statistics().executions == 0
    fit(model, 4)
    assert strategy.compile_log == (record,)


def test_without_a_budget_the_memory_of_the_strategy_is_the_limit():
    model = make_model(strategy := millrace.Strategy(devices=1, memory="10MB"), layers=1)
    assert strategy.memory_report(model, batch(32)).fits
    assert not strategy.memory_report(model, batch(32), budget="10KB").fits


def test_every_byte_has_its_use(strategy):
    model = make_model(strategy)
    report = strategy.memory_report(model, batch())
    (device,), ((stage,),) = report.devices, [device.stages for device in report.devices]
    assert stage.total == report.peak == device.peak
    assert stage.parameters == parameters(model)
    assert stage.optimizer_state == sum(v.value.nbytes for v in model.optimizer.variables)
    assert stage.batches == strategy.compile_log[0].capacity * ROWS * (FEATURES + 1) * 4
    assert stage.temporaries == strategy.compile_log[0].temporary_bytes
    assert (stage.accumulators, stage.in_flight) == (0, 0)
    assert 0 <= stage.other < 1000
    assert 0.99 * report.peak < sum(each.nbytes for each in device.alive) <= report.peak
    names = {each.name for each in device.alive}
    assert "mlp/hidden_1/kernel" in names
    assert any(each.layer == "hidden_1" for each in device.alive)


def test_the_sums_by_layer_say_where_it_all_is(strategy):
    model = make_model(strategy)
    report = strategy.memory_report(model, batch())
    (device,) = report.devices
    layers = {each.layer: each for each in device.layers}
    assert list(layers) == sorted(layers, key=lambda name: -layers[name].nbytes)
    assert sum(each.nbytes for each in device.layers) == sum(each.nbytes for each in device.alive)
    assert sum(each.tensors for each in device.layers) == len(device.alive)
    for name in ("hidden_0", "hidden_1", "hidden_2"):  # with weights and two moments of Adam's
        weights = sum(v.value.nbytes for v in model.get_layer(name).trainable_variables)
        assert layers[name].nbytes >= 3 * weights
    assert 0 <= layers["(no layer)"].nbytes - device.stages[0].batches < 1000
    table = str(report).partition("by layer\n")[2].partition("\n\n")[0].splitlines()
    assert table[0].split() == ["bytes", "share", "tensors", "layer"]
    shares = [float(line.split()[2].rstrip("%")) for line in table[1:]]
    assert sum(shares) == pytest.approx(100, abs=0.5)


def test_accumulators_are_counted_apart(strategy):
    model = make_model(strategy)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    report = strategy.memory_report(model, batch())
    assert report.devices[0].stages[0].accumulators == parameters(model)
    assert report.peak == strategy.compile_log[0].peak_bytes
    fit(model, 4)
    assert len(strategy.compile_log) == 1


def test_an_update_in_parts(strategy):
    model = make_model(strategy)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    model.set_infeed_queue_options(max_block_bytes=2 * ROWS * (FEATURES + 1) * 4)
    report = strategy.memory_report(model, batch())
    programs = {record.program: record.peak_bytes for record in strategy.compile_log}
    assert set(programs) == {"train_zeros", "train_accumulate", "train_apply"}
    assert report.peak >= max(programs.values())
    assert report.devices[0].stages[0].accumulators == parameters(model)
    before = len(strategy.compile_log)
    fit(model, 4)
    assert len(strategy.compile_log) == before


def test_the_length_of_an_epoch_decides_on_blocks(strategy):
    model = make_model(strategy)
    report = strategy.memory_report(model, batch(), steps_per_epoch=24)
    assert report.devices[0].stages[0].batches == 24 * ROWS * (FEATURES + 1) * 4
    fit(model, 24)
    assert len(strategy.compile_log) == 1


@pytest.mark.slow
def test_convolutions_are_unrolled(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                keras.layers.Conv2D(4, 3),
                keras.layers.Flatten(),
                keras.layers.Dense(2),
            ]
        )
    model.compile("sgd", "mse", steps_per_execution=4)
    x = jax.ShapeDtypeStruct((16, 8, 8, 3), "float32")
    report = strategy.memory_report(model, (x, jax.ShapeDtypeStruct((16, 2), "float32")))
    assert report.peak == max(record.peak_bytes for record in strategy.compile_log)
    compiled = len(strategy.compile_log)
    model.fit(np.ones((64, 8, 8, 3)), np.ones((64, 2)), batch_size=16, verbose=0)
    assert len(strategy.compile_log) == compiled


def test_it_fits_or_not(strategy):
    model = make_model(strategy)
    unknown = strategy.memory_report(model, batch())
    assert unknown.fits is None
    assert "No limit is known: set one, such as budget" in str(unknown)
    limited = millrace.Strategy(devices=1, memory="1GB")
    assert limited.memory_report(make_model(limited), batch()).fits
    enough = strategy.memory_report(model, batch(), budget="1GB")
    assert enough.fits
    assert enough.changes == ()
    assert f"Fits: needs {bytes_text(enough.peak)} of 1.00 GB." in str(enough)
    assert len(strategy.compile_log) == 1


@pytest.mark.slow
def test_changes_that_make_it_fit_are_what_they_promise(strategy):
    model = make_model(strategy)
    whole = strategy.memory_report(model, batch()).peak
    budget = int(whole * 0.7)
    report = strategy.memory_report(model, batch(), budget=budget)
    assert not report.fits
    assert len(strategy.compile_log) == 1  # what was only tried is not in it
    assert all(each.fits and each.peak <= budget for each in report.changes)
    in_budget, change = report.changes
    assert in_budget.code == f"model.set_recomputation_options(budget={budget})"
    assert -0.01 < change.extra_flops < 0.05
    assert change.code == "model.set_gradient_accumulation_options(micro_batch=128)"
    text = str(report)
    assert "Does not fit: needs" in text
    assert "what would make it fit" in text
    other = make_model(strategy)
    other.set_gradient_accumulation_options(micro_batch=128)
    assert strategy.memory_report(other, batch()).peak == change.peak


@pytest.mark.slow
def test_changes_of_single_steps_are_what_they_promise(strategy):
    model = make_model(strategy, steps=1, layers=2)
    whole = strategy.memory_report(model, batch()).peak
    report = strategy.memory_report(model, batch(), budget=int(whole * 0.9))
    (change,) = (each for each in report.changes if "accumulation" in each.code)
    assert change.code == "model.set_gradient_accumulation_options(micro_batch=256)"
    assert -0.01 < change.extra_flops < 0.05
    other = make_model(strategy, steps=1, layers=2)
    other.set_gradient_accumulation_options(micro_batch=256)
    assert strategy.memory_report(other, batch()).peak == change.peak


@pytest.mark.slow
def test_the_nearest_change_is_shown_where_none_is_enough(strategy):
    model = make_model(strategy)
    report = strategy.memory_report(model, batch(8), budget=1000)
    assert not report.fits
    (change,) = report.changes
    assert not change.fits
    assert "nothing tried makes it fit; the nearest" in str(report)


@pytest.mark.slow
def test_blocks_get_shorter_where_batches_are_what_is_too_much(strategy):
    model = make_model(strategy, steps=64, layers=1, width=8)
    before = strategy.memory_report(model, batch())
    report = strategy.memory_report(model, batch(), budget=before.peak * 3 // 4)
    assert any("set_infeed_queue_options(max_block_bytes=" in c.code for c in report.changes)
    assert all(change.fits for change in report.changes)


def test_replicas_need_the_same():
    strategy = millrace.Strategy(devices=2)
    model = make_model(strategy)
    report = strategy.memory_report(model, batch(64))
    assert [str(device) for device in strategy.devices] == list(report.devices[0].devices)
    assert report.peak == strategy.compile_log[0].peak_bytes
    assert report.devices[0].stages[0].parameters == parameters(model)
    fit(model, 4, 64)
    assert len(strategy.compile_log) == 1


@pytest.mark.slow
def test_replicas_share_out_what_is_too_much():
    strategy = millrace.Strategy(devices=4)
    model = make_model(strategy, width=256)
    before = strategy.memory_report(model, batch(64))
    state = before.devices[0].stages[0].optimizer_state
    report = strategy.memory_report(model, batch(64), budget=before.peak - state // 2)
    codes = [change.code for change in report.changes]
    assert "model.set_replication_options(replicated_optimizer_state_sharding=True)" in codes


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 4])
def test_stages_share_out_what_each_replica_has(steps):
    strategy = millrace.Strategy(devices=2)
    model = make_model(strategy, steps=steps, layers=4, width=256)
    before = strategy.memory_report(model, batch(64))
    report = strategy.memory_report(model, batch(64), budget=before.peak * 7 // 10)
    change = next(each for each in report.changes if "stage" in each.code)
    assert change.code == (
        "model.set_pipeline_stage_assignment('auto', num_stages=2); "
        "model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)"
    )
    assert change.fits
    assert abs(change.extra_flops) < 0.05
    other = make_model(strategy, steps=steps, layers=4, width=256)
    other.set_pipeline_stage_assignment("auto", num_stages=2)
    other.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    assert strategy.memory_report(other, batch(64)).peak == change.peak
    fit(other, 4, 64)


def live_bytes(device):
    """Bytes of all arrays on a device; two arrays of one memory count once."""
    return sum(
        {
            shard.data.unsafe_buffer_pointer(): shard.data.nbytes
            for array in jax.live_arrays()
            if not array.is_deleted()
            for shard in array.addressable_shards
            if shard.device == device
        }.values()
    )


def measured_peaks(strategy, monkeypatch, run):
    """Runs, and returns the most bytes of each device, before or within a call."""
    original, peaks = StageExecutables.find, {}

    def find(self, builder, name, stage):
        executable, group = original(self, builder, name, stage), self.groups[stage]
        own = requirement(executable) - argument_bytes(executable)

        def call(*arguments):
            jax.block_until_ready(arguments)
            for device in group.devices:
                live = live_bytes(device) - before[device] + own
                peaks[device] = max(peaks.get(device, 0), live)
            return executable(*arguments)

        return call

    gc.collect()
    before = {device: live_bytes(device) for device in strategy.devices}
    with monkeypatch.context() as patch:
        patch.setattr(StageExecutables, "find", find)
        run()
    return peaks


OLDEST = keras.__version__.startswith("3.13.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "stages", "mapping", "steps"),
    [
        ("1f1b", 2, None, 4),
        ("gpipe", 3, None, 3),
        ("zero_bubble", 2, None, 4),
        ("zero_bubble", 4, (0, 1, 1, 0), 4),
        ("grouped", 3, None, 6),
        ("looped", 4, (0, 1, 0, 1), 4),
        ("zb_v", 4, (0, 1, 1, 0), 4),
        ("v_half", 4, (0, 1, 1, 0), 4),
    ],
)
def test_a_pipeline_needs_what_the_report_says(schedule, stages, mapping, steps, monkeypatch):
    strategy = millrace.Strategy(devices=max(mapping) + 1 if mapping else stages)
    other = make_model(strategy, steps, layers=4)  # keeps what was there before apart
    gc.collect()
    there = {device: live_bytes(device) for device in strategy.devices}
    model = make_model(strategy, steps, layers=4)
    del other
    model.set_pipeline_stage_assignment("auto", num_stages=stages)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=steps,
        pipeline_schedule=schedule,
        device_mapping=mapping,
    )
    report = strategy.memory_report(model, batch())
    compiled = len(strategy.compile_log)
    mine = {device: live_bytes(device) - there[device] for device in strategy.devices}
    peaks = measured_peaks(strategy, monkeypatch, lambda: fit(model, steps))
    assert len(strategy.compile_log) == compiled
    for memory in report.devices:
        (device,) = [d for d in strategy.devices if str(d) in memory.devices]
        found = peaks[device] + mine[device]
        if OLDEST:  # something is held for longer there: see the limits in docs/memory_report.md
            assert found >= 0.998 * memory.peak
        else:
            assert found == pytest.approx(memory.peak, rel=2e-3, abs=2000), memory.program
    assert sum(len(memory.stages) for memory in report.devices) == stages


@pytest.mark.skipif(OLDEST, reason="Keras 3.13 holds the values of the last epoch")
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_values_that_have_moved_to_their_stages_are_not_held_twice(optimizer, monkeypatch):
    """Each epoch begins with all weights on one device, where Keras's callbacks see them."""
    strategy = millrace.Strategy(devices=2)
    there = {device: live_bytes(device) for device in strategy.devices}
    model = make_model(strategy, 2, layers=6, width=256, optimizer=optimizer)
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    report = strategy.memory_report(model, batch(8))
    gc.collect()
    at_first = {device: live_bytes(device) - there[device] for device in strategy.devices}
    peaks = measured_peaks(strategy, monkeypatch, lambda: fit(model, 2, 8, epochs=3))
    for memory, device in zip(report.devices, strategy.devices, strict=True):
        assert memory.devices == (str(device),)
        found = max(peaks[device] + at_first[device], at_first[device])
        assert found <= 1.002 * memory.peak + 2000
    first, last = (memory.peak for memory in report.devices)
    assert peaks[strategy.devices[1]] == pytest.approx(last, rel=2e-3, abs=2000)
    if optimizer == "adam":  # whose state is most of the model
        whole = parameters(model) + sum(v.value.nbytes for v in model.optimizer.variables)
        assert first < 1.3 * whole


@pytest.mark.slow
def test_a_v_shaped_schedule_needs_less_for_micro_batches_in_flight():
    """Eight stages on four devices; each stage keeps two arrays of a layer, or four before W."""
    width, rows = 64, 512

    def in_flight(schedule, **options):
        strategy = millrace.Strategy(devices=4)
        with strategy.scope():
            hidden = [keras.layers.Dense(width, "tanh") for _ in range(16)]
            model = keras.Sequential([keras.Input((width,)), *hidden])
        model.compile("sgd", "mse", steps_per_execution=8)
        model.set_pipeline_stage_assignment([k // 2 for k in range(16)])
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=8, pipeline_schedule=schedule, **options
        )
        spec = ((rows, width), "float32")
        report = strategy.memory_report(model, (spec, spec))
        return [sum(stage.in_flight for stage in each.stages) for each in report.devices]

    same_devices = {"device_mapping": [0, 1, 2, 3, 3, 2, 1, 0]}
    plain = in_flight("1f1b", **same_devices)
    found = [in_flight(name) for name in ("zb_v", "v_half", "v_min")]
    for more, less in itertools.pairwise([plain, *found]):
        assert all(a > b for a, b in zip(more, less, strict=True)), (more, less)
    array = rows * width * 4
    assert max(plain) >= 36 * array  # 8 + 7 + ... + 1 sets of two arrays, over four devices
    assert max(found[1]) < 0.8 * max(found[0])
    assert max(found[2]) < 0.55 * max(found[0])


@pytest.mark.slow
def test_a_pipeline_fits_with_smaller_micro_batches():
    strategy = millrace.Strategy(devices=2)
    model = make_model(strategy)
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    whole = strategy.memory_report(model, batch())
    report = strategy.memory_report(model, batch(), budget=int(whole.peak * 0.75))
    (change,) = report.changes
    assert change.fits
    assert "set_gradient_accumulation_options(micro_batch=256)" in change.code
    text = str(report)
    assert "other micro-batches in flight" in text
    assert "mlp/" in text


def test_it_prints_on_a_console_as_it_does_in_a_file(strategy):
    report = strategy.memory_report(make_model(strategy), batch())
    file = io.StringIO()
    report.show(Console(file=file))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert lines == str(report).splitlines()
    assert lines[0] == "mlp, batches of float32[512,32], float32[512,1]"
    assert max(map(len, lines)) <= 110


def test_arrays_are_as_good_as_their_shapes(strategy):
    model = make_model(strategy)
    peak = strategy.memory_report(model, batch()).peak
    arrays = np.ones((ROWS, FEATURES)), np.ones((ROWS, 1))  # float64, as fit would get them
    assert strategy.memory_report(model, arrays).peak == peak
    assert len(strategy.compile_log) == 1


def test_what_is_no_batch_is_refused(strategy):
    model = make_model(strategy)
    with pytest.raises(OptionError, match=r"made of arrays.*Received: 3\. Set it to"):
        strategy.memory_report(model, (3, 4))
    with pytest.raises(OptionError, match=r"\(x, y, sample_weight\)\. Received a tuple of 4"):
        strategy.memory_report(model, (np.ones(3),) * 4)
    with pytest.raises(OptionError, match=r"has no leaf with rows\. Set it to arrays"):
        strategy.memory_report(model, (np.ones(()), np.ones(3)))


def test_what_is_no_budget_is_refused(strategy):
    model = make_model(strategy)
    with pytest.raises(OptionError, match="budget must be bytes"):
        strategy.memory_report(model, batch(), budget="much")
    with pytest.raises(
        OptionError, match=r"bytes of one device\. Received: 0\.5\. Set it to a whole"
    ):
        strategy.memory_report(model, batch(), budget=0.5)


def test_models_that_are_not_the_strategys_are_refused(strategy):
    with pytest.raises(ModelError, match="takes a model of this strategy"):
        strategy.memory_report(make_model(millrace.Strategy(devices=1)), batch())
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with pytest.raises(ModelError, match=r"not compiled, .* its loss\. Call model\.compile"):
        strategy.memory_report(model, batch())


def test_options_that_do_not_fit_together_are_refused_as_in_fit(strategy):
    model = make_model(strategy, steps=3)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    with pytest.raises(PlanError, match="steps_per_execution=3 is not a whole number"):
        strategy.memory_report(model, batch())


def no_memory(*arguments):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.")


def test_running_out_of_memory_shows_where_it_goes(strategy, monkeypatch):
    model = make_model(strategy)
    fit(model, 4)
    original = ScanRunner._call
    with monkeypatch.context() as patch:
        patch.setattr(ScanRunner, "_call", no_memory)
        with pytest.raises(OutOfMemoryError) as raised:
            fit(model, 4)
    assert ScanRunner._call is original
    text = str(raised.value)
    assert "ran out of memory in 'train' of 'mlp', in an execution of 4 steps" in text
    assert "Out of memory allocating 99 bytes" in text
    assert "Call strategy.memory_report(model, batch)" in text
    assert "hidden_1" in text.split("alive at the peak")[1]
    # Keras takes the cause off what it lets through.
    assert isinstance(raised.value.__context__, jax.errors.JaxRuntimeError)
    assert isinstance(raised.value, MemoryError)
    fit(model, 4)  # the model has its values
    assert len(strategy.compile_log) == 1


def test_a_task_that_runs_out_of_memory_is_shown_too(monkeypatch):
    strategy = millrace.Strategy(devices=2)
    model = make_model(strategy)
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    original = StageExecutables.find

    def find(self, builder, name, stage):
        found = original(self, builder, name, stage)
        return no_memory if name == "backward" else found

    with monkeypatch.context() as patch:
        patch.setattr(StageExecutables, "find", find)
        with pytest.raises(OutOfMemoryError, match="RESOURCE_EXHAUSTED") as raised:
            fit(model, 4)
    assert "Task 1B0 failed" in str(raised.value.__context__)
