"""Planted causes of recompilation, each named in the user's words; see also test_run_... .

A cause is a function that changes something between two calls of `fit`. JAX itself says of each of
them only that it has never seen the function: executables of ours are compiled ahead of time.
"""

import logging
import pathlib
import subprocess
import sys

import jax
import keras
import numpy as np
import pytest
from keras import layers

import millrace
from case_marks import with_marks
from millrace.base.records.compilation import Origin
from millrace.compilation.executables.sharing import sharing
from millrace.compilation.explain.diagnose import history
from millrace.errors import RecompilationError

SCALE = 3.0


@pytest.fixture(autouse=True)
def nothing_known():
    """Lets every test compile, whatever the others have compiled."""
    sharing.clear()
    history.clear()


def data(rows=16, inputs=8, dtype="float32"):
    random = np.random.default_rng(0)
    return random.random((rows, inputs)).astype(dtype), random.random((rows, 1), np.float32)


def mlp(units=16, rate=0.1, **compile_options):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(units, "relu", name="hidden"),
            layers.Dropout(rate),
            layers.Dense(1),
        ]
    )
    compile_model(model, **compile_options)
    return model


def compile_model(model, optimizer="sgd", loss="mse", **others):
    model.compile(optimizer, loss, **{"steps_per_execution": 4, **others})


def fit(model, x=None, y=None, **options):
    given = data() if x is None else (x, y)
    model.fit(*given, **{"batch_size": 4, "verbose": 0, **options})


def last(strategy, program="train_run"):
    return next(r for r in reversed(strategy.compile_log) if r.program == program)


class Scaled(layers.Layer):
    def call(self, x):
        return x * SCALE


def other_rows(model, strategy):
    fit(model, *data(18))


def dtype_of_x(model, strategy):
    fit(model, *data(dtype="int32"))


def shape_of_y(model, strategy):
    x, y = data()
    fit(model, x, np.concatenate([y, y], axis=1))


def weights_of_samples(model, strategy):
    fit(model, sample_weight=np.ones(16, np.float32))


def accumulation(model, strategy):
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    fit(model)


def reduction(model, strategy):
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=2, gradient_accumulation_reduction_method="sum"
    )
    fit(model)


def callbacks_for_every_step(model, strategy):
    model.set_asynchronous_callbacks(True)
    fit(model)


def tensors_watched(model, strategy):
    fit(model, callbacks=[millrace.callbacks.TensorStatistics(["hidden"])])


def longer_execution(model, strategy):
    compile_model(model, steps_per_execution=64)
    fit(model, *data(1024))


def frozen_layer(model, strategy):
    model.get_layer("hidden").trainable = False
    compile_model(model)
    fit(model)


def another_optimizer(model, strategy):
    compile_model(model, optimizer="adam")
    fit(model)


def momentum(model, strategy):
    compile_model(model, optimizer=keras.optimizers.SGD(momentum=0.9))
    fit(model)


def another_loss(model, strategy):
    compile_model(model, loss="mae")
    fit(model)


def another_metric(model, strategy):
    compile_model(model, metrics=["mae"])
    fit(model)


def loss_weights(model, strategy):
    compile_model(model, loss_weights=[0.5])
    fit(model)


def rate_of_dropout(model, strategy):
    model.layers[1].rate = 0.4
    compile_model(model)
    fit(model)


def matmul_precision(model, strategy):
    with jax.default_matmul_precision("float32"):
        fit(model)


def looking_for_nans(model, strategy):
    with jax.debug_nans(True):
        fit(model)


def constant_of_a_loss(model, strategy):
    for rate in (0.5, 0.25):

        def scaled(y, p):
            return rate * keras.ops.mean(keras.ops.square(y - p))  # noqa: B023

        compile_model(model, loss=scaled)
        fit(model)


def body_of_a_loss(model, strategy):
    for loss in (lambda y, p: keras.ops.mean(y - p), lambda y, p: keras.ops.mean(p - y)):
        compile_model(model, loss=loss)
        fit(model)


def default_of_a_loss(model, strategy):
    for rate in (0.5, 0.25):

        def scaled(y, p, rate=rate):
            return rate * keras.ops.mean(keras.ops.square(y - p))

        compile_model(model, loss=scaled)
        fit(model)


def schedule_of_the_rate(model, strategy):
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    compile_model(model, optimizer=keras.optimizers.SGD(decay))
    fit(model)


CAUSES = {
    other_rows: ["argument x", "(4, 8) -> (2, 8)", "batch 5 of epoch 1 of fit", "drop_remainder"],
    dtype_of_x: ["argument x", "dtype float32 -> int32"],
    shape_of_y: ["argument y", "(4, 1) -> (4, 2)"],
    weights_of_samples: ["sample_weight"],
    accumulation: ["gradient_accumulation_steps_per_replica", "1 -> 2"],
    reduction: ["gradient_accumulation_reduction_method", "auto -> sum"],
    callbacks_for_every_step: ["asynchronous_callbacks"],
    tensors_watched: ["hidden"],
    longer_execution: ["steps in a block", "32 -> "],
    frozen_layer: ["hidden", "trainable"],
    another_optimizer: ["optimizer", "Adam"],
    momentum: ["momentum", "0.0 -> 0.9"],
    another_loss: ["loss"],
    another_metric: ["metric"],
    loss_weights: ["loss_weights", "0.5"],
    rate_of_dropout: ["rate", "0.1 -> 0.4"],
    matmul_precision: ["jax_default_matmul_precision", "float32"],
    looking_for_nans: ["jax_debug_nans"],
    constant_of_a_loss: ["`rate`", "scaled()", "0.5 -> 0.25", "test_recompilations.py:"],
    body_of_a_loss: ["test_recompilations.py:"],
    default_of_a_loss: ["`rate`", "0.5 -> 0.25"],
    schedule_of_the_rate: ["learning_rate", "ExponentialDecay"],
}


SLOW = ("other_rows", "matmul_precision", "constant_of_a_loss", "body_of_a_loss")


@pytest.mark.parametrize("cause", with_marks(CAUSES, slow=SLOW), ids=lambda cause: cause.__name__)
def test_a_cause_is_named(strategy, cause):
    model = strategy.attach(mlp())
    fit(model)
    assert last(strategy).cause == "first compilation"
    cause(model, strategy)
    found = last(strategy)
    assert found.origin is Origin.COMPILED
    text = f"{found.cause} {found.remedy}"
    assert [words for words in CAUSES[cause] if words not in text] == [], text


def test_a_global_that_a_layer_reads(strategy, monkeypatch):
    model = strategy.attach(keras.Sequential([keras.Input((8,)), Scaled(), layers.Dense(1)]))
    compile_model(model)
    fit(model)
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    compile_model(model)
    fit(model)
    cause = last(strategy).cause
    assert "`SCALE`" in cause
    assert "3.0 -> 4.0" in cause
    assert "test_recompilations.py:" in cause


def test_another_strategy():
    model = millrace.Strategy(devices=1).attach(mlp())
    fit(model)
    other = millrace.Strategy(devices=1)
    other.attach(model)
    fit(model)
    assert last(other).origin is Origin.SHARED
    assert "another Strategy" in last(other).cause
    assert "Strategy" in last(other).remedy


def test_other_devices():
    model = millrace.Strategy(devices=1).attach(mlp())
    fit(model)
    other = millrace.Strategy(devices=jax.devices()[1:2])
    other.attach(model)
    fit(model)
    assert "devices: 0 -> 1" in last(other).cause or "device" in last(other).cause


def test_a_model_built_anew_is_shared_and_said_to_be_another_object(strategy):
    for _ in range(2):
        fit(strategy.attach(mlp()))
    assert last(strategy).origin is Origin.SHARED
    assert not last(strategy).is_recompilation
    assert "another model object" in last(strategy).cause


def test_compile_called_again_is_shared_and_said(strategy):
    model = strategy.attach(mlp())
    fit(model)
    compile_model(model)
    fit(model)
    assert last(strategy).origin is Origin.SHARED
    assert "compile() was called" in last(strategy).cause


class Noisy(layers.Layer):
    """A constant that no field of a key can know of."""

    def call(self, x):
        return x + np.float32(np.random.default_rng().random())


def test_what_no_field_explains_is_shown_in_the_program(strategy):
    model = strategy.attach(keras.Sequential([keras.Input((8,)), Noisy(), layers.Dense(1)]))
    for _ in range(2):
        compile_model(model)
        fit(model)
    found = last(strategy)
    assert found.origin is Origin.COMPILED
    assert "in the program: constant" in found.cause, found.cause


def test_weights_and_rates_never_recompile(strategy):
    model = strategy.attach(mlp())
    fit(model)
    model.set_weights([w + 1 for w in model.get_weights()])
    model.optimizer.learning_rate = 0.5
    fit(model, epochs=2)
    model.predict(data()[0], verbose=0)
    model.set_weights([w + 1 for w in model.get_weights()])
    model.predict(data()[0], verbose=0)
    assert [r.program for r in strategy.compile_log if r.is_executable] == [
        "train_run",
        "predict_run",
    ]


def test_programs_that_take_turns_are_switches(strategy):
    model = strategy.attach(mlp())
    for _ in range(3):
        fit(model)
        model.evaluate(*data(), batch_size=4, verbose=0)
    assert strategy.statistics().switches == 5
    switches = [r for r in strategy.compile_log if r.origin is Origin.SWITCH]
    assert [(r.cause.split()[1], r.count) for r in switches] == [("train", 3), ("test", 2)]


def test_warm_code_may_stand_where_nothing_may_be_compiled(strategy):
    model = strategy.attach(mlp())
    fit(model)
    with strategy.no_recompile():
        fit(model, epochs=2)
        with pytest.raises(RecompilationError, match=r"batch 5 of epoch 1.*precompile"):
            fit(model, *data(18))
    fit(model, *data(18))


def test_a_recompilation_can_be_refused_before_it_takes_place():
    strategy = millrace.Strategy(devices=1, on_recompile="error")
    model = strategy.attach(mlp())
    fit(model)
    model.predict(data()[0], batch_size=4, verbose=0)  # another program
    with pytest.raises(RecompilationError, match=r"argument x.*\(4, 8\) -> \(2, 8\).*drop_rem"):
        fit(model, *data(18))
    assert all(np.isfinite(w).all() for w in model.get_weights())
    fit(model)


def test_what_has_failed_may_be_tried_again_where_recompilations_are_refused(monkeypatch):
    strategy = millrace.Strategy(devices=1, on_recompile="error")
    model = strategy.attach(mlp())

    def fails(*_):
        raise RuntimeError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", fails)
        with pytest.raises(RuntimeError, match="no space left"):
            fit(model)
    fit(model)
    (record,) = strategy.compile_log
    assert not record.is_recompilation
    with pytest.raises(RecompilationError, match="argument x"):
        fit(model, *data(18))


def test_a_recompilation_can_be_a_warning():
    strategy = millrace.Strategy(devices=1, on_recompile="WARN")
    model = strategy.attach(mlp())
    fit(model)
    with pytest.warns(RuntimeWarning, match=r"compiled again: argument x"):
        fit(model, *data(18))


def test_unknown_policies_are_refused():
    with pytest.raises(millrace.errors.OptionError, match=r"on_recompile must be one of.*'raise'"):
        millrace.Strategy(on_recompile="raise")


def test_every_compilation_is_a_line_at_level_info(strategy, caplog):
    caplog.set_level(logging.INFO, logger="millrace")
    model = strategy.attach(mlp())
    fit(model)
    fit(model)
    lines = [r.getMessage() for r in caplog.records if "train_run" in r.getMessage()]
    assert len([line for line in lines if ": compiled in" in line]) == 1
    assert "first compilation" in lines[-1]


@pytest.mark.slow
def test_records_are_there_when_a_run_was_killed(tmp_path):
    script = pathlib.Path(__file__).parent / "abandoned_run.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=False)
    (record,) = millrace.base.records.run.read_compile_log(tmp_path)
    assert (record.program, record.cause) == ("train_run", "first compilation")
    assert record.peak_bytes > 0


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_place_is_that_of_the_first_fit_too(strategy, epochs):
    """Keras draws a batch to build the model before epoch 1 begins."""
    with strategy.scope():
        model = keras.Sequential([layers.Dense(1, name="only")])
    model.compile("sgd", "mse", steps_per_execution=2)
    fit(model, *data(rows=15), epochs=epochs)
    causes = [record.cause for record in strategy.compile_log if "->" in record.cause]
    assert len(causes) == 1
    assert "batch 4 of epoch 1 of fit" in causes[0]
