"""Quantized models, with and without LoRA, and mixed precision train as in plain Keras."""

import cases
import jax
import keras
import numpy as np
import pytest
from against_keras import MORE_WAYS, WAYS, Subject, compare, under_strategy
from keras import layers

from case_marks import exhaustive, slow_but_for, with_marks

# Keras says it of layers that have nothing to quantize.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Layer .* does not have a .quantize. method",
    "ignore:.*layer.s. were skipped because they do not support quantization",  # Keras 3.16
)

ROWS = 16
NEAR = cases.FLOAT32.rtol
ALL_WAYS = (*WAYS, *MORE_WAYS)


def net(**arguments):
    """Biases of float8 layers are rounded to bfloat16, and so are their gradients, in each part."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "tanh", name="first", **arguments),
            layers.LayerNormalization(name="norm"),
            layers.Dense(8, "tanh", name="second", **arguments),
            layers.Dense(2, name="last", **arguments),
        ],
        name="net",
    )


def data():
    x = cases.table(ROWS)["x"]
    return {"x": x, "y": np.sin(x @ np.ones((6, 2), "float32"))}


def attending():
    inputs = keras.Input((5,), dtype="int32")
    hidden = layers.Embedding(11, 4, name="words")(inputs)
    hidden = hidden + layers.MultiHeadAttention(2, 2, name="attention")(hidden, hidden)
    hidden = layers.Flatten()(layers.Dense(4, "gelu", name="feed")(hidden))
    return keras.Model(inputs, layers.Dense(2, name="head")(hidden))


def words():
    x = cases.words(ROWS)["x"][:, :5]
    return {"x": x, "y": np.sin(x[:, :2]).astype("float32")}


def compiled(**accumulation):
    return {"optimizer": keras.optimizers.Adam(1e-2, epsilon=1e-4, **accumulation), "loss": "mse"}


def with_lora(model):
    for layer in model._flatten_layers():
        if hasattr(layer, "enable_lora") and layer.quantization_mode not in ("gptq", "awq"):
            layer.enable_lora(2)
    return model


def quantized(mode=None, build=net, lora=True, **arguments):
    def make():
        model = build()
        model.quantize(mode, **arguments)
        return with_lora(model) if lora else model

    return make


def lora_before():
    model = with_lora(net())
    model.quantize("int8")
    return model


def blocks(size):
    """A scale for so many numbers of each column; -1: for the column."""

    def make():
        if not hasattr(keras.quantizers, "Int4QuantizationConfig"):
            pytest.skip("Keras before 3.14 has no blocks of int4")
        try:
            config = keras.quantizers.Int4QuantizationConfig(block_size=size)
        except TypeError:
            pytest.skip("this Keras has no blocks of int4")
        return quantized(build=net, config=config)()

    return make


def calibrated(mode, lora=False):
    """One layer is calibrated on a few sentences; the others train on, and its bias."""

    def make():
        name = f"{mode.upper()}Config"
        if not hasattr(keras.quantizers, name):
            pytest.skip(f"this Keras has no {name}")
        model = attending()
        draw = np.random.default_rng(0).integers
        config = getattr(keras.quantizers, name)(
            dataset=[draw(1, 11, size=(1, 5)).astype("int32") for _ in range(4)],
            tokenizer=lambda text: text,
            num_samples=4,
            sequence_length=5,
            group_size=2,
            quantization_layer_structure={
                "pre_block_layers": [model.get_layer("words")],
                "sequential_blocks": [model.get_layer("feed")],
            },
        )
        model.quantize(mode, config=config, filters="feed")
        return with_lora(model) if lora else model

    return make


def float8():
    return quantized("float8", lambda: net(use_bias=False), lora=False)()


SUBJECTS = {
    "int8": (quantized("int8", lora=False), data),
    "int8-lora": (quantized("int8"), data),
    "lora-int8": (lora_before, data),
    "int4-lora": (quantized("int4"), data),
    "int4-blocks": (blocks(4), data),
    "int4-columns": (blocks(-1), data),
    "float8": (float8, data),
    "attention-int8": (quantized("int8", attending), words),
    "attention-int4": (quantized("int4", attending), words),
    "gptq": (calibrated("gptq"), words),
    "gptq-lora": (calibrated("gptq", lora=True), words),
    "awq": (calibrated("awq"), words),
    "awq-lora": (calibrated("awq", lora=True), words),
}


# Most of their time is Keras quantizing operation by operation.
LONG = ("int8", "lora-int8", "int4-lora", "int4-columns", "attention-int4", "gptq-lora", "awq-lora")


@pytest.mark.slow
@pytest.mark.parametrize("name", with_marks(SUBJECTS, exhaustive=LONG))
def test_trains_as_in_plain_keras(name):
    build, examples = SUBJECTS[name]
    ways = ("cut", "parts", "sharded") if "attention" in name or "q" in name[:4] else ALL_WAYS
    for way, found in compare(Subject(name, build, examples, compiled), ways).items():
        assert max(found.losses, found.weights) < NEAR, way


def test_lora_on_int8_accumulates():
    found = compare(Subject("small", quantized("int8"), data, compiled, epochs=1), ["accumulated"])
    assert max(found["accumulated"].losses, found["accumulated"].weights) < NEAR


def overflowing():
    """One row is too large for float16, and the update with it is skipped."""
    values = data()
    values["x"] = values["x"].copy()
    values["x"][5] *= 6e4
    return values


def rectified():
    """Does not saturate, so that gradients of large inputs are large."""
    hidden = [layers.Dense(8, "relu") for _ in range(2)]
    return keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(2)])


MIXED = {
    "float16": ("mixed_float16", net, data, cases.FLOAT16),
    "float16-overflows": ("mixed_float16", rectified, overflowing, cases.FLOAT16),
    "bfloat16": ("mixed_bfloat16", net, data, cases.BFLOAT16),
}


@pytest.mark.parametrize("name", slow_but_for(MIXED, "float16"))
def test_mixed_precision(name):
    policy, build, examples, tolerance = MIXED[name]
    subject = Subject(
        name, build, examples, compiled, policy=policy, by_hand=True, fit={"shuffle": False}
    )
    ways = ("parts",) if name == "float16" else ALL_WAYS
    for way, found in compare(subject, ways).items():
        assert max(found.losses, found.weights) < tolerance.rtol, way


@pytest.mark.slow
@pytest.mark.parametrize("way", ALL_WAYS[:-1])
def test_an_overflow_skips_one_update_and_halves_the_scale(way):
    subject = Subject("skips", rectified, overflowing, compiled, policy="mixed_float16")
    model = under_strategy(subject, way)
    model.fit(**overflowing(), batch_size=4, shuffle=False, verbose=0)
    optimizer = model.optimizer
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)  # of Keras's own accord
    updates = ROWS // 4 if way in ("one piece", "parts") else ROWS // 8
    assert int(optimizer.iterations) == updates - 1
    assert float(optimizer.dynamic_scale.value) == optimizer.initial_scale / 2


class OwnStep(keras.Sequential):
    """Shows the loss that it differentiates."""

    def train_step(self, state, data):
        trainable, others, optimizer, metrics = state
        x, y = data

        def loss_of(weights):
            found, _ = self.stateless_call(weights, others, x, training=True)
            return self.compute_loss(x, y, found), None

        (loss, _), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        metrics = self.metrics[0].stateless_update_state(metrics, loss)
        logs = {"loss": self.metrics[0].stateless_result(metrics)}
        return logs, (trainable, others, optimizer, metrics)


def test_an_own_step_of_float8_layers_shows_the_loss_of_a_batch_in_parts():
    def build():
        dense = layers.Dense(2, use_bias=False)
        model = OwnStep([keras.Input((6,)), dense])
        dense.quantize("float8")
        return model

    found = compare(Subject("own", build, data, compiled), ["parts"])["parts"]
    assert max(found.losses, found.weights) < NEAR


# What a model does in turn; plain Keras does the same with the weights of one update.
FIT, PREDICT, COMPILE, LORA = "fit", "predict", "compile", "lora"
SCENES = {
    "quantize-after-compile": ("int8", FIT, PREDICT),
    "quantize-after-fit": (FIT, PREDICT, "int8", PREDICT, COMPILE, FIT, PREDICT),
    "lora-after-fit": (FIT, LORA, PREDICT, COMPILE, FIT, "int8", PREDICT, COMPILE, FIT),
    "int4-and-lora": (FIT, "int4", PREDICT, LORA, PREDICT, COMPILE, FIT, PREDICT),
    "without-compile": (FIT, LORA, FIT),
    "quantize-without-compile": (FIT, "float8", FIT),
    "freeze-without-compile": (FIT, PREDICT, "freeze", PREDICT, FIT),
}


def play(scene, model, batch_size):
    """Returns the results of all acts, and the weights; or those before Keras's error."""
    results = []
    keras.utils.set_random_seed(3)  # of LoRA
    for act in scene:
        try:
            if act == FIT:
                results.append(fit(model, batch_size))
            elif act == PREDICT:
                results.append(model.predict(data()["x"], batch_size=4, verbose=0))
                results.append(model.evaluate(**data(), batch_size=4, verbose=0))
            elif act == COMPILE:
                steps = model.steps_per_execution
                model.compile(**compiled(), steps_per_execution=steps)
            elif act == LORA:
                model.get_layer("second").enable_lora(2)
            elif act == "freeze":
                model.get_layer("second").trainable = False
            else:
                model.quantize(act)
        except ValueError as error:
            if "must be a list of tensors corresponding 1:1" not in str(error):
                raise
            return results
    return [results, model.get_weights()]


def fit(model, batch_size):
    history = model.fit(**data(), batch_size=batch_size, shuffle=False, verbose=0)
    return history.history["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("way", [exhaustive("one piece"), "cut", exhaustive("cut, sharded")])
@pytest.mark.parametrize("name", SCENES)
def test_no_program_of_a_model_that_has_changed_runs(name, way):
    subject = Subject(name, net, data, compiled)
    keras.utils.set_random_seed(1)
    plain = net()
    plain.compile(**compiled())
    model = under_strategy(subject, way, plain.get_weights())
    found = play(SCENES[name], model, 4)
    cases.assert_close(found, play(SCENES[name], plain, 4 if way == "one piece" else 8))


def test_layers_of_one_shape_that_train_again_without_compile():
    """Weights that are listed elsewhere have the shapes of those that were listed there."""

    def build():
        return keras.Sequential([keras.Input((6,)), *(layers.Dense(6) for _ in range(3))])

    model = under_strategy(Subject("square", build, data, compiled), "cut")
    x = data()["x"]
    expected = model.predict(x, verbose=0)
    model.layers[0].trainable = False
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
