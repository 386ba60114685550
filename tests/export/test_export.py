"""Executables of another process: used where nothing differs, and nowhere else."""

import dataclasses
import json
import logging
import os
import pathlib
import subprocess
import sys

import jax
import keras
import numpy as np
import pytest
from keras import layers, ops

import millrace
from case_marks import slow, with_marks
from millrace.base.records.compilation import Origin
from millrace.compilation.executables.sharing import sharing
from millrace.compilation.explain.diagnose import history
from millrace.compilation.export import file as export_file
from millrace.compilation.export import read_ahead
from millrace.errors import OptionError

SCALE = 2.0
RNG = np.random.default_rng(0)


def half(x):
    return x * 0.5


class Scaled(layers.Layer):
    """Reads a global, an attribute, a function that is passed to it, and one of its module."""

    def __init__(self, function=half, **kwargs):
        super().__init__(**kwargs)
        self.function, self.offset = function, 1.0
        self.loss = 0.5  # as a model calls something else

    def build(self, shape):
        self.first = self.add_weight(shape=shape[-1:], initializer="ones")
        self.second = self.add_weight(shape=shape[-1:], initializer="zeros")

    def call(self, x):
        return self.shifted(self.function(x * self.first + self.second) * SCALE * self.loss)

    def shifted(self, x):
        return x + self.offset


class Noisy(layers.Layer):
    def call(self, x):
        return x + np.random.rand()


class Drawn(layers.Layer):
    def call(self, x):
        return x + RNG.random()


class Timed(layers.Layer):
    def call(self, x):
        import time

        return x * (time.time() > 0)


def loss(y, p):
    return ops.mean(ops.square(y - p))


def make_loss(power):
    def powered(y, p):
        return ops.mean(ops.abs(y - p) ** power)

    return powered


def make(
    units=4,
    rate=0.3,
    function=half,
    layer=Scaled,
    between=list,
    optimizer=lambda: keras.optimizers.SGD(0.1),
    loss=loss,
    activation="tanh",
    **compile_options,
):
    given = {"function": function} if layer is Scaled else {}
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(units, activation=activation),
            layer(**given),
            *between(),
            layers.Dropout(rate, seed=3),
            layers.Dense(1),
        ]
    )
    model.compile(
        optimizer(),
        loss,
        **{"steps_per_execution": 3, **compile_options},
    )
    return model


def run(directory=None, change=None, make=make, fit=None, **options):
    """Trains a new model under a new strategy, and returns what came out and how."""
    keras.utils.set_random_seed(0)
    sharing.clear()
    strategy = millrace.Strategy(devices=1)
    if directory is not None:
        strategy.load_executables(directory)
    model = strategy.attach(make(**options))
    if change is not None:
        change(model)
    random = np.random.default_rng(0)
    x, y = random.random((18, 6), np.float32), random.random((18, 1), np.float32)
    losses = model.fit(x, y, batch_size=3, verbose=0, **(fit or {})).history["loss"]
    return strategy, losses, model.get_weights()


def origins(strategy):
    return {record.origin for record in strategy.compile_log if record.is_executable}


def same(first, second):
    return first[1] == second[1] and all(
        np.array_equal(a, b) for a, b in zip(first[2], second[2], strict=True)
    )


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A directory with an export, and the run that it is from."""
    history.clear()
    directory = tmp_path_factory.mktemp("export")
    result = run()
    assert origins(result[0]) == {Origin.COMPILED}
    assert result[0].export_executables(directory) == 1
    return directory, result


def test_nothing_is_traced_or_compiled(exported):
    directory, plain = exported
    events = []

    def listen(event, seconds, **names):
        events.append((event.rpartition("/")[2], names.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        loaded = run(directory)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert same(loaded, plain)
    (record,) = loaded[0].compile_log
    assert record.origin is Origin.LOADED
    assert record.trace_seconds == record.lower_seconds == 0
    assert record.compile_seconds > 0
    assert record.peak_bytes == plain[0].compile_log[0].peak_bytes
    assert loaded[0].statistics().loaded == 1
    assert loaded[0].statistics().compilations == 0
    assert not [name for _, name in events if name and "run" in name]


def test_a_loop_of_any_length_is_one_executable(exported):
    loaded = run(exported[0], steps_per_execution=2)
    assert origins(loaded[0]) == {Origin.LOADED}
    assert same(loaded, run(steps_per_execution=2))


def patch_dense(model):
    stock = model.layers[0].call
    model.layers[0].call = lambda x, training=None: stock(x) * 2.0


def change_attribute(model):
    model.layers[1].offset = 2.0


def change_attribute_called_as_one_of_keras(model):
    model.layers[1].loss = 2.0


def exchange_variables(model):
    scaled = model.layers[1]
    first, second = scaled.first, scaled.second
    object.__setattr__(scaled, "first", second)
    object.__setattr__(scaled, "second", first)


def freeze(model):
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.1), loss, steps_per_execution=3)


def patch_instance(model):
    model.layers[1].shifted = lambda x: x - 1.0


def regularize(model):
    model.layers[0].kernel_regularizer = keras.regularizers.L2(0.1)


def clip(model):
    model.optimizer.clipnorm = 0.01


def set_activation(model):
    model.layers[0].activation = keras.activations.relu


def swap_order(model):
    scaled, dropout = model.layers[1:3]
    scaled.offset, dropout.rate = dropout.rate, scaled.offset / 2


def times(number):
    return lambda x: x * number


CHANGES = {
    "an attribute": {"change": change_attribute},
    "an attribute, called as one of Keras's": {"change": change_attribute_called_as_one_of_keras},
    "two variables": {"change": exchange_variables},
    "a method of one object": {"change": patch_instance},
    "a method of one object of Keras": {"change": patch_dense},
    "a layer that is not trained": {"change": freeze},
    "a regularizer": {"change": regularize},
    "clipping": {"change": clip},
    "an activation, set later": {"change": set_activation},
    "two attributes": {"change": swap_order},
    "an activation": {"activation": "relu"},
    "a size": {"units": 5},
    "the rate of a Dropout": {"rate": 0.4},
    "a closure": {"function": times(0.7)},
    "a constant of a function": {"function": lambda x: x * 0.25},
    "another loss": {"loss": make_loss(1)},
    "a loss's closure": {"loss": make_loss(3)},
    "a learning rate": {"optimizer": lambda: keras.optimizers.SGD(0.1, momentum=0.9)},
    "a schedule": {
        "optimizer": lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
        )
    },
    "another optimizer": {"optimizer": lambda: keras.optimizers.Adam(0.1)},
    "a variable more": {"between": lambda: [layers.Dense(4)]},
    "a layer without variables": {"between": lambda: [layers.Activation("relu")]},
    "metrics": {"metrics": ["mae"]},
    "loss weights": {"loss_weights": [2.0]},
    "sample weights": {"fit": {"class_weight": {0: 1.0, 1: 2.0}}},
}


SLOW = (
    "clipping",
    "two attributes",
    "another optimizer",
    "a variable more",
    "a layer without variables",
    "loss weights",
    "sample weights",
)


@pytest.mark.parametrize("name", with_marks(CHANGES, slow=SLOW))
def test_what_differs_is_compiled(exported, name, caplog):
    directory, _ = exported
    changed = run(directory, **CHANGES[name])
    assert origins(changed[0]) == {Origin.COMPILED}
    assert "is not as it was exported" in warnings_of(caplog)[0]
    assert same(changed, run(**CHANGES[name]))


def test_a_global_that_a_layer_reads(exported, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    changed = run(exported[0])
    assert origins(changed[0]) == {Origin.COMPILED}
    assert same(changed, run())
    assert not same(changed, exported[1])


def test_a_method_of_a_class(exported, monkeypatch):
    monkeypatch.setattr(Scaled, "shifted", lambda self, x: x - self.offset)
    changed = run(exported[0])
    assert origins(changed[0]) == {Origin.COMPILED}
    assert same(changed, run())
    assert not same(changed, exported[1])


def test_a_method_of_a_class_of_keras(exported, monkeypatch):
    stock = layers.Dense.call
    monkeypatch.setattr(layers.Dense, "call", lambda self, x, training=None: stock(self, x) * 2)
    changed = run(exported[0])
    assert origins(changed[0]) == {Origin.COMPILED}
    assert same(changed, run())
    assert not same(changed, exported[1])


def test_the_dtype_policy(exported):
    keras.config.set_dtype_policy("mixed_bfloat16")
    changed = run(exported[0])
    assert origins(changed[0]) == {Origin.COMPILED}
    assert same(changed, run())


@pytest.mark.parametrize(
    ("option", "value"),
    [("jax_default_matmul_precision", "bfloat16"), ("jax_debug_nans", True)],
)
def test_options_of_jax(exported, option, value):
    before = getattr(jax.config, option)
    jax.config.update(option, value)
    try:
        changed = run(exported[0])
        assert origins(changed[0]) == {Origin.COMPILED}
        assert same(changed, run())
    finally:
        jax.config.update(option, before)


def test_the_epsilon_of_keras(exported):
    before = keras.config.epsilon()
    keras.config.set_epsilon(1e-3)
    try:
        assert origins(run(exported[0])[0]) == {Origin.COMPILED}
    finally:
        keras.config.set_epsilon(before)


@pytest.mark.parametrize("layer", [Noisy, Drawn, Timed])
def test_what_nobody_can_describe_is_neither_written_nor_read(layer, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    strategy = run(layer=layer)[0]
    assert strategy.export_executables(tmp_path) == 0
    assert "train_run of 'sequential" in caplog.text
    assert "it may differ in another process, by" in caplog.text
    assert not list(tmp_path.iterdir())


def test_the_log_says_what_differs(exported, caplog):
    run(exported[0], units=5)
    (line,) = warnings_of(caplog)
    assert "train_run" in line
    assert "units 4 -> 5" in line


def test_a_damaged_file_is_said_once_and_compiled(exported, tmp_path, caplog):
    directory, plain = exported
    (path,) = directory.glob("*-executable-*")
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    (tmp_path / path.name).write_bytes(data)
    result = run(tmp_path)
    assert same(result, plain)
    assert origins(result[0]) == {Origin.COMPILED}
    (line,) = warnings_of(caplog)
    assert "its checksum is wrong" in line
    assert str(tmp_path / path.name) in line


def test_what_xla_refuses_is_compiled(exported, tmp_path, caplog):
    directory, plain = exported
    (path,) = directory.glob("*-executable-*")
    header = export_file.read_header(path)
    content = export_file.unpack(path.read_bytes(), header)
    broken = dataclasses.replace(content, data=content.data[:-50])
    (tmp_path / path.name).write_bytes(export_file.pack(header, broken))
    result = run(tmp_path)
    assert same(result, plain)
    assert origins(result[0]) == {Origin.COMPILED}
    assert len(warnings_of(caplog)) == 1


def test_another_environment_is_not_believed(exported, tmp_path, caplog):
    directory, plain = exported
    (path,) = directory.glob("*-executable-*")
    header = export_file.read_header(path)
    content = export_file.unpack(path.read_bytes(), header)
    other = dataclasses.replace(header, environment={**header.environment, "jaxlib": "0.9.0"})
    (tmp_path / path.name).write_bytes(export_file.pack(other, content))
    result = run(tmp_path)
    assert same(result, plain)
    assert origins(result[0]) == {Origin.COMPILED}
    (line,) = warnings_of(caplog)
    assert "jaxlib 0.9.0 -> " in line


def test_a_file_that_went_away_is_compiled(exported, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(read_ahead, "MAX_BYTES", 0)  # what has been read is there
    directory, plain = exported
    (path,) = directory.glob("*-executable-*")
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())

    result = run(tmp_path, change=lambda model: copy.unlink())
    assert same(result, plain)
    assert origins(result[0]) == {Origin.COMPILED}
    assert len(warnings_of(caplog)) == 1


def test_no_directory_is_an_error(strategy, tmp_path):
    with pytest.raises(OptionError, match=r"load_executables\(\) takes a directory.*nowhere"):
        strategy.load_executables(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"export_executables\(\) cannot write"):
        strategy.export_executables(tmp_path / "file")
    assert strategy.load_executables(tmp_path) == 0
    assert strategy.export_executables(tmp_path / "new") == 0


def test_what_was_loaded_is_exported_again(exported, tmp_path):
    directory, plain = exported
    assert run(directory)[0].export_executables(tmp_path) == 1
    again = run(tmp_path)
    assert origins(again[0]) == {Origin.LOADED}
    assert same(again, plain)


def test_what_was_shared_is_exported(tmp_path):
    """A model that is compiled again shares; what it shares was not compiled for it."""

    def compile_again(model):
        model.fit(np.zeros((18, 6)), np.zeros((18, 1)), batch_size=3, verbose=0)
        model.compile(keras.optimizers.SGD(0.1), loss, steps_per_execution=3)

    strategy = run(change=compile_again)[0]
    assert Origin.SHARED in origins(strategy)
    assert strategy.export_executables(tmp_path) == 1
    assert origins(run(tmp_path)[0]) == {Origin.LOADED}


def test_no_recompile_lets_load(exported):
    history.clear()
    sharing.clear()
    strategy = millrace.Strategy(devices=1)
    strategy.load_executables(exported[0])
    keras.utils.set_random_seed(0)
    model = strategy.attach(make())
    x, y = np.zeros((18, 6), np.float32), np.zeros((18, 1), np.float32)
    with strategy.no_recompile():
        model.fit(x, y, batch_size=3, verbose=0)
    assert origins(strategy) == {Origin.LOADED}


def test_all_modes_and_parts_of_a_window(tmp_path):
    def use(strategy):
        model = strategy.attach(make(steps_per_execution=4))
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        x = np.random.default_rng(0).random((21, 6), np.float32)
        history = model.fit(x, x[:, :1], batch_size=3, epochs=2, verbose=0).history["loss"]
        return history, model.evaluate(x, x[:, :1], verbose=0), model.predict(x, verbose=0).tolist()

    def fresh():
        keras.utils.set_random_seed(0)
        sharing.clear()
        return millrace.Strategy(devices=1)

    first = fresh()
    plain = use(first)
    names = {record.program for record in first.compile_log}
    assert {"train_run", "train_accumulate", "train_zeros", "train_apply"} <= names
    made = sum(record.is_executable for record in first.compile_log)
    assert first.export_executables(tmp_path) == made
    second = fresh()
    second.load_executables(tmp_path)
    assert use(second) == plain
    assert origins(second) == {Origin.LOADED}


def test_attempts_of_a_budget_are_not_exported(tmp_path):
    """The plain one is compiled for its memory only: slow code, which nobody else should run."""
    keras.utils.set_random_seed(0)
    sharing.clear()
    strategy = millrace.Strategy(devices=1)
    model = strategy.attach(
        keras.Sequential([keras.Input((8,)), *(layers.Dense(64, "tanh") for _ in range(6))])
    )
    model.compile("sgd", "mse")
    model.set_recomputation_options(budget=0.9)
    x = np.zeros((512, 8), np.float32)
    model.fit(x, np.zeros((512, 64), np.float32), batch_size=512, verbose=0)
    assert sum(record.is_executable for record in strategy.compile_log) >= 2
    assert strategy.export_executables(tmp_path) == 0


def test_replicas(tmp_path):
    def use(directory=None):
        keras.utils.set_random_seed(0)
        sharing.clear()
        strategy = millrace.Strategy(devices=2)
        if directory:
            strategy.load_executables(directory)
        model = strategy.attach(make(steps_per_execution=2))
        x = np.random.default_rng(0).random((24, 6), np.float32)
        losses = model.fit(x, x[:, :1], batch_size=3, verbose=0).history["loss"]
        return strategy, losses, model.get_weights()

    plain = use()
    assert plain[0].export_executables(tmp_path) > 0
    loaded = use(tmp_path)
    assert origins(loaded[0]) == {Origin.LOADED}
    assert same(loaded, plain)


def pipeline(directory=None, stages=(0, 0, 1, 1), clipnorm=None, schedule="1f1b"):
    keras.utils.set_random_seed(0)
    sharing.clear()
    strategy = millrace.Strategy(devices=2)
    if directory:
        strategy.load_executables(directory)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(4, "tanh"),
            layers.Dropout(0.2, seed=1),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.1, clipnorm=clipnorm), "mse", steps_per_execution=4)
    strategy.attach(model)
    model.set_pipeline_stage_assignment(list(stages))
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=4, pipeline_schedule=schedule
    )
    x = np.random.default_rng(0).random((48, 6), np.float32)
    losses = model.fit(x, x[:, :1], batch_size=4, verbose=0).history["loss"]
    losses += [
        model.evaluate(x, x[:, :1], verbose=0),
        *model.predict(x, verbose=0).ravel().tolist(),
    ]
    return strategy, losses, model.get_weights()


@pytest.fixture(scope="module")
def pipelined(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pipeline")
    plain = pipeline()
    count = sum(record.is_executable for record in plain[0].compile_log)
    assert plain[0].export_executables(directory) == count
    return directory, plain


def test_a_pipeline_is_not_traced(pipelined, monkeypatch):
    directory, plain = pipelined
    monkeypatch.setattr("millrace.run.pipelines.programs.stages.split_step", None)
    monkeypatch.setattr("millrace.run.pipelines.programs.stages.make_passes", None)
    loaded = pipeline(directory)
    assert origins(loaded[0]) == {Origin.LOADED}
    assert sum(record.trace_seconds for record in loaded[0].compile_log) == 0
    assert same(loaded, plain)


@pytest.mark.parametrize("change", [{"stages": (0, 1, 1, 1)}, slow({"clipnorm": 0.1})])
def test_another_pipeline_is_compiled(pipelined, change):
    changed = pipeline(pipelined[0], **change)
    training = [r.origin for r in changed[0].compile_log if r.program.startswith("train_backward")]
    assert training
    if "stages" in change:
        assert set(training) == {Origin.COMPILED}
    assert same(changed, pipeline(**change))


def test_a_pipeline_without_one_of_its_files(pipelined, tmp_path):
    directory, plain = pipelined
    for path in directory.iterdir():
        if not path.name.startswith("train_backward_of_stage_1"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    result = pipeline(tmp_path)
    compiled = [r.program for r in result[0].compile_log if r.origin is Origin.COMPILED]
    assert compiled == ["train_backward of stage 1"]
    assert same(result, plain)


def test_a_pipeline_without_what_is_known_of_its_stages(pipelined, tmp_path):
    directory, plain = pipelined
    for path in directory.glob("*-executable-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    result = pipeline(tmp_path)
    assert origins(result[0]) == {Origin.LOADED}
    assert same(result, plain)


SCRIPT = pathlib.Path(__file__).parent / "export_script.py"


def in_process(directory, what, offset=1.0, cache="off"):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(directory), what, str(offset)],
        env={**os.environ, "MILLRACE_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return *json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
def test_another_process(tmp_path):
    losses, count, origins, _ = in_process(tmp_path, "export")
    assert (count, origins) == (1, ["compiled"])
    assert in_process(tmp_path, "load")[:3] == (losses, 1, ["loaded"])
    changed, _, origins, errors = in_process(tmp_path, "load", 2.0)
    assert origins == ["compiled"]
    assert changed != losses
    assert "`offset`" in errors


@pytest.mark.slow
def test_what_was_read_from_the_cache_is_exported_whole(tmp_path):
    """XLA for CPU writes only a part of what it has read."""
    cache, export = tmp_path / "cache", tmp_path / "export"
    losses = in_process(tmp_path / "first", "export", cache=cache)[0]
    again, count, origins, _ = in_process(export, "export", cache=cache)
    assert (again, count, origins) == (losses, 1, ["cache"])
    assert in_process(export, "load")[:3] == (losses, 1, ["loaded"])
    assert pathlib.Path(export).stat().st_mode & 0o077 == 0
