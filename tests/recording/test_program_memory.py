"""The memory of every executable, in the records of a run."""

import logging

import keras
import numpy as np
import pytest

import millrace
from case_marks import slow
from millrace.base.records.program_memory import ROLES
from millrace.base.records.run import load
from millrace.tools.recording import program_memory as recorded

LAYERS = keras.layers


def strategy(tmp_path, devices=1):
    return millrace.Strategy(devices=devices, report_dir=tmp_path)


def mlp(*between, width=64):
    return keras.Sequential(
        [
            keras.Input((16,)),
            LAYERS.Dense(width, "tanh", name="first"),
            *between,
            LAYERS.Dense(width, "tanh", name="second"),
            LAYERS.Dense(1, name="last"),
        ]
    )


def data(rows=72):
    random = np.random.default_rng(0)
    return random.random((rows, 16), np.float32), random.random((rows, 1), np.float32)


def check(memory):
    """What holds for the memory of every program."""
    lengths = {len(area.curve) for area in memory.areas}
    assert lengths == {len(memory.curve)}
    assert [area.role for area in memory.areas] == [
        role for role in ROLES if any(area.role == role for area in memory.areas)
    ]
    assert memory.curve[memory.point] == max(memory.curve) == memory.peak.bytes
    assert sum(tensor.nbytes for tensor in memory.alive) == memory.peak.bytes
    for area in memory.areas:
        here = sum(tensor.nbytes for tensor in memory.alive if tensor.role == area.role)
        assert here == area.curve[memory.point], area.role
    assert memory.attributed > 0.95 or memory.peak.bytes < 1000  # metrics alone
    firsts = [segment.first for segment in memory.segments]
    assert firsts == sorted(set(firsts))
    assert firsts[:1] == [0]
    assert memory.peak.bytes <= memory.requirement + 1000  # constants, which need no allocation


def areas(memory):
    return {area.role: max(area.curve) for area in memory.areas}


def test_each_program_of_a_run_has_its_memory(tmp_path):
    with strategy(tmp_path).scope():
        model = mlp()
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=4)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    x, y = data()
    model.fit(x, y, batch_size=8, verbose=0)
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)

    run = load(tmp_path)
    programs = {each.program for each in run.memory_profiles}
    assert programs >= {"train_run", "train_accumulate", "train_zeros", "train_apply"}
    assert programs >= {"test_run", "predict_run"}
    executables = [each for each in run.compilations if each.is_executable]
    made = sorted((each.program, each.key) for each in executables)
    assert sorted((each.program, each.key) for each in run.memory_profiles) == made
    for memory in run.memory_profiles:
        check(memory)
        assert memory.devices == ("cpu:0",)
        assert memory.model == model.name
    train = run.memory["train_run"]
    weights = sum(each.nbytes for each in model.get_weights())
    found = areas(train)
    assert weights <= found["parameters"] <= 1.1 * weights
    assert 2 * weights <= found["optimizer"] <= 2.2 * weights
    assert found["accumulators"] == weights
    assert 0.9 * weights <= found["gradients"] <= 2 * weights  # and cotangents
    assert found["activations"] >= 2 * 8 * 64 * 4
    assert "gradients" not in areas(run.memory["test_run"])
    assert train.peak.tensors[0].layer == "second"
    kinds = {(each.layer, each.kind) for each in train.segments}
    assert kinds >= {("first", "forward"), ("first", "backward")}
    assert any(kind == "update" for _, kind in kinds)
    assert any(kind == "accumulation" for _, kind in kinds)


def test_an_error_of_the_analysis_is_logged_once_and_training_goes_on(
    tmp_path, caplog, monkeypatch
):
    def fails(*_):
        raise ValueError("a field of an unknown kind")

    monkeypatch.setattr(recorded, "analyze", fails)
    with strategy(tmp_path).scope():
        model = mlp()
    model.compile("sgd", "mse")
    with caplog.at_level(logging.WARNING, "millrace"):
        model.fit(*data(), batch_size=8, verbose=0)
        model.predict(data()[0], verbose=0)
    lines = [each.getMessage() for each in caplog.records if "a field" in each.getMessage()]
    assert len(lines) == 1
    assert "train_run" in lines[0]
    assert repr(model.name) in lines[0]
    assert load(tmp_path).memory_profiles == ()


def test_recording_changes_no_number(tmp_path):
    def weights(**options):
        keras.utils.set_random_seed(1)
        with millrace.Strategy(devices=1, **options).scope():
            model = mlp(LAYERS.Dropout(0.2))
        model.compile("adam", "mse", steps_per_execution=2)
        model.fit(*data(), batch_size=8, verbose=0)
        return model.get_weights()

    for with_records, without in zip(weights(report_dir=tmp_path), weights(), strict=True):
        np.testing.assert_array_equal(with_records, without)


def test_a_long_program_keeps_its_peak(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.run.memory.program.MOST_POINTS", 20)
    monkeypatch.setattr("millrace.run.memory.program.MOST_TENSORS", 5)
    with strategy(tmp_path).scope():
        model = mlp()
    model.compile("adam", "mse")
    model.fit(*data(), batch_size=8, verbose=0)
    memory = load(tmp_path).memory["train"]
    check(memory)
    assert len(memory.curve) <= 20 < memory.num_points
    assert any("smaller tensors" in each.name for each in memory.alive)


@pytest.mark.parametrize(
    "name", ["<script>alert(1)", "jvp(x)", slow("transpose"), slow("a b"), "adam"]
)
def test_any_name_of_a_layer_is_kept(tmp_path, name):
    with strategy(tmp_path).scope():
        model = keras.Sequential([keras.Input((16,)), LAYERS.Dense(256, name=name)])
    model.compile("sgd", "mse")
    model.fit(data()[0], np.ones((72, 256), np.float32), batch_size=8, verbose=0)
    memory = load(tmp_path).memory["train"]
    assert any(name in each.layer for each in memory.alive)


@pytest.fixture(scope="module")
def pipeline_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    with strategy(path, 2).scope():
        model = mlp(LAYERS.LayerNormalization(name="norm"))
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=4)
    model.fit(*data(), batch_size=8, verbose=0)
    return model, load(path)


def test_the_programs_of_stages_have_theirs(pipeline_run):
    model, run = pipeline_run
    programs = {(each.program, each.stage) for each in run.memory_profiles}
    for stage in (0, 1):
        for name in ("forward", "backward", "zeros", "final"):
            assert (f"train_{name} of stage {stage}", stage) in programs
    for memory in run.memory_profiles:
        check(memory)
    of_stages = [sum(w.numpy().nbytes for w in model.layers[k].weights) for k in range(4)]
    sizes = [sum(of_stages[:2]), sum(of_stages[2:])]
    for stage, nbytes in enumerate(sizes):
        backward = areas(run.memory[f"train_backward of stage {stage}"])
        forward = areas(run.memory[f"train_forward of stage {stage}"])
        assert nbytes <= forward["parameters"] <= 1.5 * nbytes
        assert backward["accumulators"] >= nbytes
        assert backward["activations"] >= 8 * 64 * 4
        final = areas(run.memory[f"train_final of stage {stage}"])
        assert 2 * nbytes <= final["optimizer"] <= 3 * nbytes
    assert run.memory["train"].program.startswith("train_")


def test_a_function_of_a_strategy_has_its_memory(tmp_path):
    with (run := strategy(tmp_path)).scope():
        model = mlp()
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    weights = model.trainable_variables

    @millrace.compile
    def predict(x):
        return model(x)

    def step(x):
        return model(x) * 2

    x, _ = data()
    run.run(predict, (x,))
    run.run(millrace.compile(step), (x,))
    profiles = {each.program: each for each in load(tmp_path).memory_profiles}
    assert set(profiles) >= {"predict", "step"}
    for memory in profiles.values():
        check(memory)
        found = areas(memory)
        assert found["parameters"] >= sum(each.numpy().nbytes for each in weights)
        assert found["batches"] == x.nbytes
        assert found["activations"] >= 72 * 64 * 4
        assert memory.peak.tensors[0].layer == "second"
