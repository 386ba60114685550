"""docs/works_with.md: packages around Keras, with models that train in compiled loops.

Each test trains in plain Keras, too. They need packages of `make test-sources`.
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import millrace

# Packages warn of one another, which is no fault of a test.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
ROWS = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False}


def build(strategy=None, layers=()):
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense(1, name="out")
    model = keras.Sequential([keras.Input((4,)), *layers, dense], name="net")
    if strategy is not None:
        strategy.attach(model)
    model.compile("adam", "mse", steps_per_execution=1 if strategy is None else 4)
    return model


def losses(model, *data, **arguments):
    return model.fit(*(data or (X, Y)), **{**ROWS, **arguments}).history["loss"]


@pytest.fixture(scope="module")
def plain():
    return losses(build())


@pytest.mark.parametrize("form", ["numpy", "jax"])
def test_columns_of_a_hugging_face_dataset(strategy, plain, form):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": X, "y": Y}).with_format(form)
    assert losses(build(strategy), data["x"][:], data["y"][:]) == plain


@pytest.mark.parametrize("is_iterable", [False, True])
def test_batches_of_a_hugging_face_dataset(strategy, plain, is_iterable):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": X, "y": Y})
    for whole in (build(), build(strategy)):  # neither takes it as it is
        with pytest.raises(ValueError, match="Unrecognized data type"):
            losses(whole, data, batch_size=None)
    data = (data.to_iterable_dataset() if is_iterable else data).with_format("numpy")

    def batches():
        while True:
            for batch in data.iter(8):
                yield batch["x"], batch["y"]

    arguments = {"batch_size": None, "steps_per_epoch": 4}
    assert losses(build(strategy), batches(), **arguments) == plain


def test_orbax_checkpoints_hold_the_weights_of_their_epoch(strategy, plain, tmp_path):
    orbax = pytest.importorskip("orbax.checkpoint").v1
    model, weights = build(strategy), []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(model.get_weights()[0])
    )
    save = keras.callbacks.OrbaxCheckpoint(str(tmp_path), save_freq="epoch", max_to_keep=2)
    assert losses(model, callbacks=[save, look]) == plain
    for epoch, kernel in enumerate(weights):
        saved = orbax.load_checkpointables(tmp_path / str(epoch))["pytree"]
        found = saved["trainable_variables"]["net"]["out"]["kernel"]
        np.testing.assert_array_equal(found, kernel)


def test_wandb_logs_each_batch(strategy, plain, tmp_path, monkeypatch):
    pytest.importorskip("tensorflow")
    wandb = pytest.importorskip("wandb")
    logger = pytest.importorskip("wandb.integration.keras").WandbMetricsLogger
    monkeypatch.setenv("WANDB_SILENT", "true")

    def logged(model):
        with wandb.init(project="test", dir=tmp_path, mode="offline") as run:
            assert losses(model, callbacks=[logger(log_freq=2)]) == plain
            summary = dict(run.summary)
        return {name: value for name, value in summary.items() if not name.startswith("_")}

    model = build(strategy)
    model.set_asynchronous_callbacks(True)
    assert logged(model) == pytest.approx(logged(build()))


def test_mlflow_logs_each_epoch(strategy, plain, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("test")
    with mlflow.start_run() as run:
        callback = mlflow.keras.MlflowCallback()
        assert losses(build(strategy), callbacks=[callback]) == plain
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [metric.value for metric in history] == plain


def test_tensor_board_writes_each_epoch(strategy, plain, tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    assert losses(build(strategy), callbacks=[keras.callbacks.TensorBoard(tmp_path)]) == plain
    (path,) = (tmp_path / "train").glob("*.v2")
    events = tensorflow.compat.v1.train.summary_iterator(str(path))
    values = [v for event in events for v in event.summary.value if v.tag == "epoch_loss"]
    assert [float(tensorflow.make_ndarray(v.tensor)) for v in values] == pytest.approx(plain)


def jax_layer():
    def init(rng, inputs):
        return {"weights": jax.random.normal(rng, (4, 8))}

    def call(params, inputs, training):
        return jnp.tanh(inputs @ params["weights"])

    return keras.layers.JaxLayer(call, init, name="inner")


def flax_layer():
    linen = pytest.importorskip("flax.linen")

    class Dense(linen.Module):
        @linen.compact
        def __call__(self, x):
            return jnp.tanh(linen.Dense(8)(x))

    return keras.layers.FlaxLayer(Dense(), name="inner")


@pytest.mark.parametrize("make", [jax_layer, flax_layer])
@pytest.mark.parametrize("how", ["one", "accumulated", "stages", "replicas"])
def test_layers_of_jax_and_flax(make, how):
    pytest.importorskip("tensorflow")  # Keras imports it for these layers
    several = how in ("stages", "replicas")
    model = build(millrace.Strategy(devices="cpu:2" if several else 1), [make()])
    expected = build(None, [make()])
    model.set_weights(expected.get_weights())
    steps = {"one": 1, "accumulated": 4, "stages": 4, "replicas": 2}[how]
    if how == "stages":
        model.set_pipeline_stage_assignment([0, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=steps)
    else:
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)
    arguments = {"batch_size": 32 if how == "one" else 8, "epochs": 3}
    found = losses(model, **arguments)
    assert found == pytest.approx(losses(expected, batch_size=32, epochs=3), rel=1e-6)
    for weights, others in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weights, others, rtol=2e-5, atol=1e-7)


def test_a_saved_model_predicts_the_same(strategy, tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    model = build(strategy)
    losses(model)
    model.export(tmp_path / "exported", format="tf_saved_model", verbose=False)
    exported = tensorflow.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(exported.serve(X), model.predict(X, verbose=0), rtol=1e-6)


def test_a_model_exported_to_onnx_is_written(strategy, tmp_path):
    pytest.importorskip("jax2onnx")
    onnx = pytest.importorskip("onnx.reference")
    model = build(strategy)
    losses(model)
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = onnx.ReferenceEvaluator(str(tmp_path / "model.onnx"))
    (found,) = session.run(None, {session.input_names[0]: X})
    np.testing.assert_allclose(found, model.predict(X, verbose=0), rtol=1e-5)


NNX = """
import millrace, keras, numpy as np
assert keras.config.is_nnx_enabled()
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
found = []
for attach in (lambda model: model, millrace.Strategy(devices=1).attach):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dropout(0.3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = attach(keras.Sequential([keras.Input((4,)), *layers]))
    model.compile("adam", "mse", steps_per_execution=4 if found else 1)
    history = model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, shuffle=False)
    found.append(history.history["loss"])
assert found[0] == found[1], found
"""


def test_variables_of_nnx(tmp_path):
    pytest.importorskip("flax")
    environment = {**os.environ, "KERAS_NNX_ENABLED": "true"}
    subprocess.run([sys.executable, "-c", NNX], env=environment, cwd=tmp_path, check=True)
