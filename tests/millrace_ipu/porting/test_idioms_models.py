"""Idioms of models, their layers, pipelines, accumulation and replicas."""

import pytest
from idioms import idiom

HEAD = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.python import ipu

config = ipu.config.IPUConfig()
config.auto_select_ipus = {devices}
config.configure_ipu_system()
strategy = ipu.ipu_strategy.IPUStrategy()
keras.utils.set_random_seed(1)
x = np.random.rand(64, 6).astype("float32")
y = x.sum(1, keepdims=True)
"""


@idiom("Models", "a subclass of `tf.keras.Model` with layers made in `__init__`")
@idiom("Layers", "a subclass of `tf.keras.layers.Layer` with `build(self, input_shape)`")
@idiom("Layers", "`self.add_weight(shape=..., initializer='glorot_uniform', trainable=True)`")
@idiom("Training", "`model.fit(dataset, steps_per_epoch=..., epochs=...)`")
@idiom("Training", "`model.evaluate(dataset, steps=...)`, `model.predict(dataset, steps=...)`")
def test_a_subclassed_model(program):
    text = (
        HEAD.format(devices=1)
        + """
class Scale(tf.keras.layers.Layer):
    def __init__(self, units, **kwargs):
        super(Scale, self).__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.w = self.add_weight(
            shape=(input_shape[-1], self.units), initializer="glorot_uniform", trainable=True
        )
        super(Scale, self).build(input_shape)

    def call(self, inputs):
        return tf.matmul(inputs, self.w)

class Net(tf.keras.Model):
    def __init__(self):
        super(Net, self).__init__()
        self.first = Scale(8)
        self.second = layers.Dense(1)

    def call(self, inputs, training=None):
        return self.second(tf.nn.relu(self.first(inputs)))

data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True).repeat()
with strategy.scope():
    model = Net()
    model.compile(tf.keras.optimizers.SGD(0.05), loss="mse", steps_per_execution=8)
    history = model.fit(data, steps_per_epoch=16, epochs=2, verbose=0)
    print(history.history["loss"][1] < history.history["loss"][0])
    print(isinstance(model.evaluate(data, steps=8, verbose=0), float))
    print(model.predict(data, steps=8, verbose=0).shape)
"""
    )
    assert program(text) == "True\nTrue\n(64, 1)\n"


@idiom("Pipelines", "`with ipu.keras.PipelineStage(0):` in a functional model")
@idiom("Pipelines", "`model.set_pipelining_options(gradient_accumulation_steps_per_replica=...)`")
@idiom("Pipelines", "`ipu.ops.pipelining_ops.PipelineSchedule.Grouped`, `.Sequential`")
@idiom("Pipelines", "`device_mapping=[0, 1, 0]`")
@idiom("Pipelines", "`model.print_pipeline_stage_assignment_summary()`")
def test_a_functional_pipeline(program):
    text = (
        HEAD.format(devices=2)
        + """
Schedule = ipu.ops.pipelining_ops.PipelineSchedule
losses = []
for schedule in (Schedule.Grouped, Schedule.Sequential):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input(shape=(6,), batch_size=4)
        with ipu.keras.PipelineStage(0):
            h = layers.Dense(8, activation="relu")(inputs)
        with ipu.keras.PipelineStage(1):
            h = layers.Dense(8, activation="relu")(h)
        with ipu.keras.PipelineStage(2):
            outputs = layers.Dense(1)(h)
        model = keras.Model(inputs, outputs)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=12,
            pipeline_schedule=schedule,
            device_mapping=[0, 1, 0],
        )
        model.compile("sgd", "mse", steps_per_execution=12)
        lines = []
        model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
        history = model.fit(x[:48], y[:48], batch_size=4, shuffle=False, verbose=0)
        losses += history.history["loss"]
print(len(set(losses)), any("Pipeline Stage" in line for line in lines))
"""
    )
    assert program(text) == "1 True\n"


@pytest.mark.slow
@idiom("Pipelines", "`model.set_pipeline_stage_assignment([0, 0, 1, 1])` of a `Sequential`")
@idiom("Pipelines", "`for a in model.get_pipeline_stage_assignment(): a.pipeline_stage = ...`")
@idiom("Pipelines", "`model.reset_pipeline_stage_assignment()`")
def test_stages_of_layers_by_name(program):
    text = (
        HEAD.format(devices=2)
        + """
with strategy.scope():
    inputs = keras.Input((6,))
    h = layers.Dense(8, "relu", name="block_1")(inputs)
    h = layers.Dense(8, "relu", name="block_2")(h)
    model = keras.Model(inputs, layers.Dense(1, name="head")(h))
    assignment = model.get_pipeline_stage_assignment()
    for each in assignment:
        each.pipeline_stage = 0 if each.layer.name.startswith("block") else 1
    model.set_pipeline_stage_assignment(assignment)
    print([a.pipeline_stage for a in model.get_pipeline_stage_assignment()])
    model.reset_pipeline_stage_assignment()
    print([a.pipeline_stage for a in model.get_pipeline_stage_assignment()])

    model = keras.Sequential([layers.Dense(8), layers.ReLU(), layers.Dense(4), layers.Dense(1)])
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile("sgd", "mse", steps_per_execution=4)
    print(np.isfinite(model.fit(x, y, batch_size=16, verbose=0).history["loss"][0]))
"""
    )
    assert program(text) == "[0, 0, 1]\n[None, None, None]\nTrue\n"


@idiom(
    "Accumulation", "`set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)`"
)
@idiom("Models", "`tf.keras.Sequential` with `layers.Dropout`, `layers.BatchNormalization`")
@idiom("Training", "`metrics=['accuracy']` and `validation_data=` with `validation_freq=`")
@idiom("Training", "`tf.keras.callbacks.LearningRateScheduler`, `EarlyStopping`, `LambdaCallback`")
def test_accumulation_with_callbacks(program):
    text = (
        HEAD.format(devices=1)
        + """
rates = []
labels = (y[:, 0] > 3).astype("int32")
with strategy.scope():
    model = tf.keras.Sequential([
        layers.Dense(8, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.1),
        layers.Dense(2, activation="softmax"),
    ])
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"],
                  steps_per_execution=8)
    history = model.fit(
        x, labels, batch_size=8, epochs=4, verbose=0,
        validation_data=(x, labels), validation_freq=2, callbacks=[
            tf.keras.callbacks.LearningRateScheduler(lambda epoch, lr: 0.1 / (epoch + 1)),
            tf.keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: rates.append(float(logs["learning_rate"]))
            ),
            tf.keras.callbacks.EarlyStopping("loss", patience=10),
        ],
    )
print(len(history.history["accuracy"]), len(history.history["val_loss"]), np.round(rates, 4))
"""
    )
    assert program(text) == "4 2 [0.1    0.05   0.0333 0.025 ]\n"


@idiom("Replicas", "two devices, a model on one: two replicas, each with its own batches")
@idiom("Replicas", "the same losses as one device with twice the accumulation")
@idiom("Training", "`optimizer=tf.keras.optimizers.SGD(learning_rate=..., momentum=...)`")
def test_replicas_of_a_model(program):
    text = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.python import ipu

def train(devices, accumulation):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = devices
    config.configure_ipu_system()
    x = np.linspace(-1, 1, 128, dtype="float32").reshape(64, 2)
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
    data = data.batch(4, drop_remainder=True)
    with ipu.ipu_strategy.IPUStrategy().scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=accumulation,
            gradient_accumulation_reduction_method="sum",
        )
        optimizer = tf.keras.optimizers.SGD(learning_rate=0.01, momentum=0.9)
        model.compile(optimizer, "mse", steps_per_execution=8)
        model.fit(data, epochs=3, verbose=0)
        return model.get_weights()

for one, two in zip(train(1, 4), train(2, 2)):
    print(np.abs(one - two).max() < 1e-6)
"""
    assert program(text) == "True\nTrue\n"


@idiom("Models", "`model.summary()` in a scope")
@idiom("Models", "a model in a model: `keras.Sequential([encoder, decoder])`")
@idiom("Models", "several inputs and outputs, `loss={...}` and `loss_weights=[...]`")
@idiom("Saving", "`model.save_weights('x.weights.h5')` and `model.load_weights`")
def test_nested_models_and_several_outputs(program):
    text = (
        HEAD.format(devices=1)
        + """
with strategy.scope():
    encoder = keras.Sequential([keras.Input((6,)), layers.Dense(3, name="code")], name="encoder")
    model = keras.Sequential([encoder, layers.Dense(6)])
    model.summary()
    model.compile("adam", "mse")
    model.fit(x, x, batch_size=16, verbose=0)
    model.save_weights("x.weights.h5")
    other = keras.Sequential([
        keras.Sequential([keras.Input((6,)), layers.Dense(3, name="code")], name="encoder"),
        layers.Dense(6),
    ])
    other.load_weights("x.weights.h5")
    print(all((a == b).all() for a, b in zip(model.get_weights(), other.get_weights())))

    first, second = keras.Input((6,), name="first"), keras.Input((6,), name="second")
    h = layers.concatenate([first, second])
    a, b = layers.Dense(1, name="a")(h), layers.Dense(2, name="b")(h)
    model = keras.Model([first, second], [a, b])
    model.compile("sgd", loss={"a": "mse", "b": "mae"}, loss_weights=[1.0, 0.5])
    history = model.fit([x, x], [y, np.concatenate([y, y], 1)], batch_size=16, verbose=0)
    print(sorted(history.history))
"""
    )
    lines = program(text).splitlines()
    assert any("encoder" in line for line in lines)
    assert lines[-2:] == ["True", "['a_loss', 'b_loss', 'loss']"]


@idiom("Inspection", "`model.set_asynchronous_callbacks(True)` with `on_train_batch_end`")
@idiom("Data", "`tf.data.Dataset.from_generator(fn, output_signature=...)`")
@idiom("Data", "`dataset.take(n)`, `dataset.skip(n)`, `dataset.repeat(n)`")
@idiom("Data", "`model.set_infeed_queue_options(prefetch_depth=...)`")
def test_asynchronous_callbacks_and_generators(program):
    text = (
        HEAD.format(devices=1)
        + """
def rows():
    for k in range(64):
        yield x[k], y[k]

signature = (tf.TensorSpec((6,), tf.float32), tf.TensorSpec((1,), tf.float32))
data = tf.data.Dataset.from_generator(rows, output_signature=signature)
data = data.skip(32).take(16).repeat(2).batch(4, drop_remainder=True)
steps = []

class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        steps.append(batch)

with strategy.scope():
    model = keras.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=8)
    model.set_asynchronous_callbacks(True)
    model.set_infeed_queue_options(prefetch_depth=2)
    model.fit(data, steps_per_epoch=8, callbacks=[Steps()], verbose=0)
print(steps)
"""
    )
    assert program(text) == f"{list(range(8))}\n"
