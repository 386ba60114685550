"""Idioms of Keras 2 in calls: shapes, optimizers, layers, models and files."""

import keras
import pytest
from idioms import idiom

from millrace._compat import patch_table as native_patch_table
from millrace._compat.patches import While, patches_in, unpatched
from millrace.errors import ModelError
from millrace_ipu._compat import patch_table
from millrace_ipu._compat.patch_table import KERAS2_CALLS

SETUP = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.python import ipu

tf.random.set_seed(3)
x = np.random.default_rng(1).normal(size=(8, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def made(optimizer="sgd", **options):
    model = keras.Sequential([keras.Input(shape=(4)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
    return model
"""


def mended(program, text):
    return program(SETUP + text)


@idiom("Models", "`keras.Input(shape=(80))`, `keras.Input(4)`: a number for a shape")
@idiom("Models", "`Dense(3, input_shape=(4))` as the first layer")
@idiom("Models", "`Dense(3, batch_input_shape=(2, 4))`, `Dense(3, input_dim=4)`")
@idiom("Models", "`Embedding(10, 3, input_length=5)`")
def test_shapes(program):
    printed = mended(
        program,
        """
print(keras.Input(shape=(80)).shape, keras.Input(4).shape, keras.layers.Input((3)).shape)
layers = keras.layers
first = (
    layers.Dense(3, input_shape=(4)),
    layers.Dense(3, batch_input_shape=(2, 4)),
    layers.Dense(3, input_dim=4),
    layers.LSTM(3, batch_input_shape=(2, 5, 4), stateful=True),
    layers.Embedding(10, 3, input_shape=(5,), input_length=5),
)
for layer in first:
    model = keras.Sequential([layer])
    print(model.input_shape, model.output_shape, layer.output_shape)
model = keras.Sequential()
model.add(layers.Reshape(6, input_shape=(2, 3)))
print(model.output_shape)
""",
    )
    assert printed.splitlines() == [
        "(None, 80) (None, 4) (None, 3)",
        "(None, 4) (None, 3) (None, 3)",
        "(2, 4) (2, 3) (2, 3)",
        "(None, 4) (None, 3) (None, 3)",
        "(2, 5, 4) (2, 3) (2, 3)",
        "(None, 5) (None, 5, 3) (None, 5, 3)",
        "(None, 6)",
    ]


@idiom("Training", "`SGD(lr=0.1)`, `Adam(lr=1e-3, epsilon=None)`")
@idiom("Training", "`SGD(0.1, decay=0.5)`: the rate falls as it did")
@idiom("Training", "`optimizer.lr`, read and set; `K.set_value(model.optimizer.lr, rate)`")
@idiom("Training", "`optimizer.get_weights()`")
def test_optimizers(program):
    printed = mended(
        program,
        """
from tensorflow.keras import backend as K

sgd = keras.optimizers.SGD(lr=0.25, momentum=0.5, decay=0.5)
print(float(sgd.lr), sgd.momentum)
sgd.build([keras.Variable(1.0)])
sgd.iterations.assign(2)
print(float(sgd.learning_rate), len(sgd.get_weights()))
adam = tf.keras.optimizers.Adam(lr=0.5, epsilon=None, decay=0.0)
print(float(adam.lr), adam.epsilon)
model = made(adam)
K.set_value(model.optimizer.lr, 0.125)
print(K.get_value(model.optimizer.learning_rate))
model.optimizer.lr = 0.0
before = model.get_weights()[0]
model.fit(x, y, batch_size=4, verbose=0)
print((model.get_weights()[0] == before).all())


class Mine(keras.optimizers.SGD):
    def __init__(self, lr=0.01, **kwargs):
        super().__init__(lr=lr, **kwargs)


print(float(Mine(0.375).lr))
""",
    )
    assert printed.splitlines() == ["0.25 0.5", "0.125 2", "0.5 1e-07", "0.125", "True", "0.375"]


@pytest.mark.slow
@idiom("Training", "`SGD(decay=d)` trains with the numbers of Keras 2's formula")
@idiom("Training", "`SGD(gradient_transformers=[f])`")
def test_decay_and_transformers_in_a_strategy(program):
    printed = mended(
        program,
        """
with ipu.ipu_strategy.IPUStrategy().scope():
    model = made(tf.keras.optimizers.SGD(lr=0.1, decay=0.5), steps_per_execution=2)
    other = made(
        tf.keras.optimizers.SGD(
            lr=0.05, gradient_transformers=[lambda pairs: [(2 * g, v) for g, v in pairs]]
        ),
        steps_per_execution=2,
    )
    third = made(tf.keras.optimizers.SGD(lr=0.1), steps_per_execution=2)
other.set_weights(third.get_weights())
w = model.get_weights()
model.fit(x, y, batch_size=4, shuffle=False, epochs=1, verbose=0)
kernel, bias = w
for i in range(2):
    a, b = x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4]
    error = 2 * (a @ kernel + bias - b) / 4
    rate = 0.1 / (1 + 0.5 * i)
    kernel, bias = kernel - rate * a.T @ error, bias - rate * error.sum(0)
print(np.allclose(model.get_weights()[0], kernel, atol=1e-6))
for each in (other, third):
    each.fit(x, y, batch_size=4, shuffle=False, verbose=0)
print(np.allclose(other.get_weights()[0], third.get_weights()[0], atol=1e-6))
""",
    )
    assert printed == "True\nTrue\n"


@idiom("Layers", "`self.add_weight('w', (n, m), ...)`: the name first, in the order of Keras 2")
@idiom("Layers", "names with slashes: `Dense(3, name='block/dense')`, `get_layer('block/dense')`")
@idiom("Layers", "`BatchNormalization(axis=[3], fused=True)`")
@idiom("Layers", "`ThresholdedReLU`, `CuDNNLSTM`, `Dropout(p=0.5)`")
def test_layers(program):
    printed = mended(
        program,
        """
class Scale(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight("scale", shape[-1:], tf.float32, "ones", trainable=True)
        self.shift = self.add_weight(name="a/shift", shape=(), initializer="zeros")
        self.last = self.add_variable("last", shape=2, use_resource=True)
        super(Scale, self).build(shape)

    def call(self, inputs):
        return inputs * self.scale + self.shift


layer = Scale(dynamic=False)
print(layer(np.ones((2, 3), "float32")).shape, [w.shape for w in layer.weights])
model = keras.Sequential(
    [
        keras.Input((2, 2, 3)),
        keras.layers.BatchNormalization(axis=[3], fused=True),
        keras.layers.Dense(3, name="block/dense"),
        keras.layers.ThresholdedReLU(theta=0.5),
        keras.layers.Dropout(p=0.5),
    ]
)
print(model.get_layer("block/dense").units, model.layers[0].axis, model.layers[0].input_shape)
print(float(model(np.zeros((1, 2, 2, 3))).sum()))
print(keras.layers.Conv2D(nb_filter=2, kernel_size=3, border_mode="same").padding)
""",
    )
    assert printed.splitlines() == [
        "(2, 3) [(3,), (), (2,)]",
        "3 3 (None, 2, 2, 3)",
        "0.0",
        "same",
    ]


@pytest.mark.slow
@idiom("Training", "`model.fit(x, y, workers=4, use_multiprocessing=True, max_queue_size=10)`")
@idiom("Training", "`model.fit_generator(generator, steps_per_epoch=2, epochs=3)`")
@idiom("Training", "`model.predict_classes(x)`, `model.predict_proba(x)`")
@idiom("Training", "`model.compile(..., experimental_steps_per_execution=2)`, `metrics=['acc']`")
@idiom("Training", "`model.train_on_batch(x, y)`: the metrics of that batch alone")
@idiom("Training", "`loss=MeanSquaredError(reduction=tf.keras.losses.Reduction.AUTO)`")
def test_models(program):
    printed = mended(
        program,
        """
class Batches(keras.utils.Sequence):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return x[4 * index : 4 * index + 4], y[4 * index : 4 * index + 4]


with ipu.ipu_strategy.IPUStrategy().scope():
    loss = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.AUTO)
    model = keras.Sequential([keras.Input(4), keras.layers.Dense(1)])
    model.compile("sgd", loss, metrics=["acc"], experimental_steps_per_execution=2)
    history = model.fit(
        x, y, 4, 2, 0, workers=4, use_multiprocessing=True, max_queue_size=10
    )
    print(sorted(history.history), len(history.epoch))
    print(model.predict_classes(x, batch_size=4).dtype, model.predict_proba(x, 4).shape)
model = made(metrics=["mae"])
history = model.fit_generator(Batches(), steps_per_epoch=2, epochs=3, verbose=0)
print(len(history.epoch))
print(len(model.evaluate_generator(Batches(), 2)), model.predict_generator(Batches()).shape)
for _ in range(2):
    values = model.train_on_batch(x, y)
    again = model.test_on_batch(x, y)
print(np.allclose(again[0], model.evaluate(x, y, verbose=0)[0]), len(values))
model.train_on_batch(x, 2 * y, reset_metrics=False)
model.reset_states()
""",
    )
    assert printed.splitlines() == [
        "['acc', 'loss'] 2",
        "int32 (8, 1)",
        "3",
        "2 (8, 1)",
        "True 2",
    ]


@idiom("Training", "labels `(n,)`, which are columns `(n, 1)` for losses and metrics of one's own")
@idiom("Training", "predictions `(n, t, 1)` of labels `(n, t)` or `(n,)`")
@idiom("Training", "one label, one loss and one list of metrics for all outputs")
def test_labels(program):
    printed = mended(
        program,
        """
import contextlib

shapes = {}


def seen(name):
    def compare(y_true, y_pred):
        shapes[name] = y_true.shape[1:], y_pred.shape[1:]
        return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)
    compare.__name__ = name
    return compare


class Scalars(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        y = self.dense(x)
        return tf.reduce_mean(y), tf.reduce_mean(y) + 1.0


labels = np.arange(8, dtype="float32")
series = np.repeat(x[:, None], 3, axis=1)
for name, inputs, y, layer in (
    ("column", x, labels, keras.layers.Dense(1)),
    ("wide", x, labels, keras.layers.Dense(5)),
    ("series", series, series[..., 0], keras.layers.Dense(1)),
    ("flat", x, labels, keras.layers.Lambda(lambda x: x[:, 0])),
):
    model = keras.Sequential([layer])
    model.compile("sgd", seen(f"{name}_loss"), metrics=[seen(name)])
    logs = model.evaluate(inputs, y, batch_size=8, verbose=0)
    print(name, *shapes[f"{name}_loss"], *shapes[name])
    if name != "flat":
        column = y[..., None] if y.ndim == 1 else y
        predicted = np.reshape(model.predict(inputs, verbose=0), (*column.shape[:-1], -1))
        assert np.allclose(logs, np.abs(column - predicted).mean(), atol=1e-5)
for strategy in (None, ipu.ipu_strategy.IPUStrategy()):
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = Scalars()
    model.compile("sgd", lambda t, p: p + 0.0 * tf.reduce_mean(t))
    print(np.diff(model.fit(x, labels, batch_size=8, epochs=3, verbose=0).history["loss"]) < 0)
inputs = keras.Input(4)
outputs = [keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")]
model = keras.Model(inputs, outputs)
model.compile("sgd", "mse", metrics=["mae", keras.metrics.MeanSquaredError("mse")])
logs = model.evaluate(x, labels, batch_size=8, verbose=0, return_dict=True)
for name, predicted in zip("ab", model.predict(x, verbose=0)):
    errors = predicted - labels[:, None]
    assert abs(logs[f"{name}_mae"] - np.abs(errors).mean()) < 1e-4
    assert abs(logs[f"{name}_mse"] - (errors**2).mean()) < 1e-3
sparse = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1)])
sparse.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
loss = sparse.evaluate(series, np.arange(8) % 3, batch_size=8, verbose=0)
logits = sparse.predict(series, verbose=0)[..., 0]
rows = np.log(np.exp(logits).sum(1)) - logits[np.arange(8), np.arange(8) % 3]
assert abs(loss - rows.mean()) < 1e-5
""",
    )
    assert printed.splitlines() == [
        "column (1,) (1,) (1,) (1,)",
        "wide (1,) (5,) (1,) (5,)",
        "series (3,) (3,) (3,) (3,)",
        "flat () () () ()",
        "[ True  True]",
        "[ True  True]",
    ]


@idiom("Layers", "`K.random_normal(K.shape(x))`, `tf.random.normal(tf.shape(x))` in `call`")
def test_random_numbers_in_layers(program):
    printed = mended(
        program,
        """
K = keras.backend


class Noise(keras.layers.Layer):
    def call(self, x):
        return 0.0 * x + K.random_normal(K.shape(x)) - tf.random.uniform(tf.shape(x))


class Model(keras.Model):
    def call(self, x):
        return 0.0 * x + tf.random.normal(tf.shape(x), seed=5)


def functional():
    inputs = keras.Input(4)
    noise = keras.layers.Lambda(lambda v: v * 0 + K.random_normal(K.shape(v)))
    return keras.Model(inputs, noise(inputs))


def losses(make):
    tf.random.set_seed(3)
    model = make()
    model.compile("sgd", "mse")
    return model.fit(x, x, epochs=3, batch_size=8, shuffle=False, verbose=0).history["loss"]


for make in (lambda: keras.Sequential([Noise()]), Model, functional):
    first, again = losses(make), losses(make)
    with ipu.ipu_strategy.IPUStrategy().scope():
        on_device = losses(make)
    print(len(set(first)), first == again, np.allclose(first, on_device))
""",
    )
    assert printed.splitlines() == ["3 True True"] * 3


def test_a_layer_that_draws_late_says_what_to_do(program):
    with pytest.raises(ModelError, match=r"'late' draws .* the same in all steps. Call the model"):
        mended(
            program,
            """
class Late(keras.layers.Layer):
    def call(self, x, training=None):
        return x + tf.random.normal(tf.shape(x)) if training else x


model = keras.Sequential([keras.Input(4), Late(name="late")])
model.compile("sgd", "mse")
model.fit(x, x, verbose=0)
""",
        )


@idiom("Saving", "`save_weights('out/w')`, `load_weights('out/w').expect_partial()`")
@idiom("Saving", "`save_weights('w.h5', save_format='h5')`, `load_weights('w.h5')`")
@idiom("Saving", "`model.save('directory')`, `load_model('directory')`")
@idiom("Saving", "`model.save('model.h5')` of a model with `loss='mse'`, and `load_model`")
@idiom("Saving", "`ModelCheckpoint('w-{epoch}', save_weights_only=True, period=2)`")
def test_files(program, tmp_path, caplog):
    printed = mended(
        program,
        """
model, other = made(), made()
model.save_weights("out/w")
other.load_weights("out/w").expect_partial()
print((model.get_weights()[0] == other.get_weights()[0]).all())
model.fit(x, y, verbose=0)
model.save_weights("w.h5", save_format="h5")
other.load_weights("w.h5")
print((model.get_weights()[0] == other.get_weights()[0]).all())
model.save("saved/", save_format="tf", include_optimizer=True)
third = keras.models.load_model("saved/")
print((model.get_weights()[0] == third.get_weights()[0]).all())
model.save("saved.h5")
fourth = keras.models.load_model("saved.h5")
print((model.get_weights()[0] == fourth.get_weights()[0]).all())
callbacks = [
    keras.callbacks.ModelCheckpoint("all/w-{epoch}", save_weights_only=True, period=2),
    keras.callbacks.ModelCheckpoint("best.hdf5", monitor="loss", save_best_only=True),
]
model.fit(x, y, epochs=5, verbose=0, callbacks=callbacks)
""",
    )
    assert printed == "True\n" * 4
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.h5"))
    assert files == [
        "all/w-2.weights.h5",
        "all/w-4.weights.h5",
        "best.h5",
        "out/w.weights.h5",
        "saved.h5",
        "w.weights.h5",
    ]
    assert "Keras 3 takes no file 'out/w': it is 'out/w.weights.h5' here." in caplog.messages


def attributes_of(kind):
    """Those of `kind`, without patches for models: models of other tests may hold these or not."""
    models = {
        patch.attribute
        for patch in (*native_patch_table.PATCHES, *patch_table.PATCHES)
        if patch.during is While.MODELS and patch.owner is not None and patch.owner() is kind
    }
    return {
        name: unpatched(value) if name in models else value
        for name, value in vars(kind).items()
        if not name.startswith("_abc")
    }


def test_keras_is_as_before_when_the_script_ends(program):
    kinds = (keras.Layer, keras.Model, keras.optimizers.Optimizer, keras.Sequential)
    kinds += (keras.layers.Conv2D, keras.layers.InputLayer, keras.callbacks.ModelCheckpoint)
    before = [[attributes_of(kind) for kind in each.__mro__] for each in kinds]
    mended(program, "made().fit(x, y, workers=2, verbose=0)")
    for each, attributes in zip(kinds, before, strict=True):
        for kind, old in zip(each.__mro__, attributes, strict=True):
            now = attributes_of(kind)
            assert not {k for k in {*old, *now} if old.get(k) is not now.get(k)}, kind
    assert KERAS2_CALLS not in patches_in()


@idiom("Models", "`x.get_shape().as_list()` of symbolic tensors, `variable.read_value()`")
@idiom("Data", "`to_categorical(y, 3, dtype='int32')`")
def test_values(program):
    printed = mended(
        program,
        """
inputs = keras.Input((3, 4))
print(inputs.get_shape().as_list(), inputs.get_shape().ndims, inputs.get_shape().num_elements())
variable = tf.Variable([[1.0, 2.0]])
print(variable.get_shape().num_elements(), variable.read_value())
print(keras.utils.to_categorical([2], 3, dtype="int32"))
""",
    )
    assert printed == "[None, 3, 4] 3 None\n2 [[1. 2.]]\n[[0 0 1]]\n"


UNSUPPORTED = {
    "made().get_layer(index=0).weights[0].shape.as_list()": "list(x.shape)",
    "made().weights[0].dtype.size": "numpy.dtype(x.dtype).itemsize",
    "keras.layers.LSTM(3, time_major=True)": "inputs of shape (batch, time, features)",
    "keras.layers.BatchNormalization(virtual_batch_size=2)": "gradient accumulation",
    "made().to_yaml()": "to_json",
    "keras.optimizers.SGD(gradient_aggregator=print)": "replicas add their gradients themselves",
    "from keras.layers import LocallyConnected1D": "keras.ops.einsum in a layer of your own",
    "from tensorflow.keras.wrappers.scikit_learn import KerasClassifier": (
        "keras.wrappers.SKLearnClassifier"
    ),
    "keras.backend.learning_phase()": "the argument `training` of call()",
    "keras.utils.multi_gpu_model(made(), 2)": "millrace.Strategy(devices=n)",
}


@idiom(
    "Unsupported, with an error that says what to write",
    "habits that cannot be mended: `time_major=`, `virtual_batch_size=`, `shape.as_list()`, ...",
)
@pytest.mark.parametrize("line", UNSUPPORTED)
def test_what_cannot_be_mended_says_what_to_write(program, line):
    with pytest.raises((AttributeError, ImportError, TypeError, ValueError)) as caught:
        mended(program, line)
    notes = getattr(caught.value, "__notes__", ())
    assert UNSUPPORTED[line] in " ".join([str(caught.value), *notes])


def test_errors_of_other_causes_get_no_note(program):
    with pytest.raises(TypeError) as caught:
        mended(program, "made().fit(x, y, nothing=1)")
    assert not hasattr(caught.value, "__notes__")
