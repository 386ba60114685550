"""What larger published applications write: images, masks, graphs, schedules and saved weights."""

import numpy as np
import pytest
from idioms import idiom

from millrace.errors import OptionError, UnsupportedError
from millrace_ipu import tensorflow as tf
from millrace_ipu.errors import UnsupportedNameError
from millrace_ipu.tensorflow.values import host_array


@idiom(
    "Unsupported, with an error that says what to write",
    "`tf.image.random_flip_left_right`, `resize_with_crop_or_pad`, `random_crop` in `map`",
)
@idiom(
    "Unsupported, with an error that says what to write",
    "`tf.image.central_crop(x, share)` of a symbolic tensor, in a U-net",
)
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("central_crop", "keras.layers.CenterCrop"),
        ("convert_image_dtype", "image / 255"),
        ("crop_to_bounding_box", "keras.ops.image"),
        ("flip_left_right", "keras.ops.flip"),
        ("per_image_standardization", "keras.ops"),
        ("random_crop", "RandomCrop"),
        ("random_flip_left_right", "RandomFlip"),
        ("resize_with_crop_or_pad", "keras.ops.image.crop_images"),
    ],
)
def test_operations_on_images_say_what_keras_has(name, instead):
    with pytest.raises(UnsupportedNameError, match=instead):
        getattr(tf.image, name)(np.zeros((4, 4, 3)), 2)


def test_images_are_resized_as_by_tensorflow():
    image = np.arange(4, dtype="uint8").reshape(2, 2, 1)
    sizes = tf.image.resize(image, (4, 4)), tf.image.resize(tf.keras.Input((2, 2, 1)), (4, 4))
    assert [tuple(each.shape) for each in sizes] == [(4, 4, 1), (None, 4, 4, 1)]
    assert np.asarray(sizes[0])[0, :, 0].tolist() == [0, 0.25, 0.75, 1]
    nearest = np.asarray(tf.image.resize(image, (4, 4), tf.image.ResizeMethod.NEAREST_NEIGHBOR))
    assert nearest.dtype == "uint8"
    assert nearest[0, :, 0].tolist() == [0, 0, 1, 1]


@idiom("Models", "`tf.reshape(x, [tf.shape(x)[0], -1, n])` in a layer, a loss or a metric")
@idiom(
    "TensorFlow", "`tf.math.divide_no_nan`, `tf.scatter_nd`, `tf.linalg.diag` in layers and losses"
)
def test_shapes_are_numbers_in_programs(program):
    out = program("""
        import numpy as np, tensorflow as tf
        from tensorflow.python import ipu
        class Rows(tf.keras.layers.Layer):
            def call(self, x):
                split = tf.reshape(x, [tf.shape(input=x)[0], -1, tf.shape(x)[1] // 2])
                degree = tf.linalg.diag(tf.math.divide_no_nan(1.0, tf.constant([2.0, 0.0])))
                return tf.reshape(tf.matmul(degree, split), tf.shape(x))
        def loss(y, p):
            flat = tf.reshape(p, [tf.shape(input=p)[0], -1])
            return tf.reduce_mean(tf.square(flat - y)) / tf.cast(tf.shape(p)[1], tf.float32)
        cfg = ipu.config.IPUConfig(); cfg.auto_select_ipus = 1; cfg.configure_ipu_system()
        with ipu.ipu_strategy.IPUStrategy().scope():
            model = tf.keras.Sequential([tf.keras.Input((4,)), Rows()])
            model.compile("sgd", loss, steps_per_execution=2)
            x = np.ones((4, 4), "float32")
            print(model.evaluate(x, x, batch_size=2, verbose=0), model.predict(x, 2, 0)[0])
    """)
    assert out.startswith("0.15625 [0.5 0.5 0.  0. ]")  # (0.25 * 2 + 1 * 2) / 4 / 4


def test_the_size_of_a_symbolic_axis_is_not_known():
    with pytest.raises(OptionError, match="axis 0 is known only when data comes"):
        tf.shape(tf.keras.Input((4,)))


def test_operations_have_the_values_of_tensorflow():
    x = np.arange(12, dtype="float32").reshape(3, 4)
    assert np.asarray(tf.gather_nd(x, [[0, 1], [2, 3]])).tolist() == [1, 11]
    assert np.asarray(tf.scatter_nd([[1], [1]], [2.0, 3.0], [3])).tolist() == [0, 5, 0]
    updated = tf.tensor_scatter_nd_update(x, [[0, 0]], [9.0])
    assert float(updated[0, 0]) == 9
    assert np.asarray(tf.sequence_mask([1, 3], 3)).tolist() == [[True, False, False], [True] * 3]
    assert np.asarray(tf.boolean_mask(x, [True, False, True])).tolist() == x[[0, 2]].tolist()
    assert float(tf.norm(x)) == pytest.approx(np.linalg.norm(x))
    np.testing.assert_allclose(tf.norm(x, axis=1), np.linalg.norm(x, axis=1), rtol=1e-6)
    assert np.asarray(tf.linalg.band_part(np.ones((3, 3)), -1, 0)).tolist() == np.tri(3).tolist()
    assert np.asarray(tf.linalg.set_diag(np.zeros((2, 2)), [1.0, 2.0])).tolist() == [[1, 0], [0, 2]]
    means = tf.math.unsorted_segment_mean(x, [0, 0, 2], 3)
    np.testing.assert_allclose(means, [x[:2].mean(0), np.zeros(4), x[2]])
    assert np.asarray(tf.math.divide_no_nan([1.0, 1.0], [2.0, 0.0])).tolist() == [0.5, 0]


@idiom(
    "TensorFlow", "`@tf.custom_gradient`: `f` returns its value and the function of its gradient"
)
def test_a_gradient_of_ones_own(program):
    out = program("""
        import tensorflow as tf
        @tf.custom_gradient
        def spike(x):
            return tf.cast(x > 0, tf.float32), lambda upstream: upstream / (10.0 * tf.abs(x) + 1.0)
        @tf.function(experimental_compile=True)
        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(spike(x))
            return tape.gradient(y, x)
        print(gradient(tf.constant([0.1, -0.4])))
    """)
    assert out.strip() == "[0.5 0.2]"


@idiom("Strategies", "`tf.distribute.get_strategy()`, and `OneDeviceStrategy('/cpu:0')` for a CPU")
@idiom("Imports", "`from tensorflow.python.distribute import distribution_strategy_context`")
def test_the_strategy_of_the_scope(program):
    out = program("""
        import tensorflow as tf
        from tensorflow.python import ipu
        from tensorflow.python.distribute import distribution_strategy_context
        cfg = ipu.config.IPUConfig(); cfg.auto_select_ipus = 1; cfg.configure_ipu_system()
        strategy = ipu.ipu_strategy.IPUStrategy()
        with strategy.scope():
            print(distribution_strategy_context.get_strategy() is strategy)
        print(tf.distribute.get_strategy().num_replicas_in_sync, tf.distribute.has_strategy())
        with tf.distribute.OneDeviceStrategy(device="/cpu:0").scope() as one:
            print(tf.distribute.get_strategy() is one, one.run(lambda x: x + 1, args=(1,)))
    """)
    assert out.split() == ["True", "1", "False", "True", "2"]


@idiom(
    "Queues",
    "`isinstance(v, tf.Tensor)` of what a queue gives, `v.numpy()`, `v[-1].numpy()`",
)
def test_dequeued_values_are_tensors(program):
    out = program("""
        import numpy as np, tensorflow as tf
        from tensorflow.python import ipu
        cfg = ipu.config.IPUConfig(); cfg.auto_select_ipus = 1; cfg.configure_ipu_system()
        queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        class Log(tf.keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                for name, value in queue.dequeue().items():
                    print(name, isinstance(value, tf.Tensor), value.numpy().shape)
                    print(value[-1].numpy() == value.numpy()[1], *(v.numpy().shape for v in value))
        class Loss(tf.keras.losses.MeanSquaredError):
            def call(self, y_true, y_pred):
                value = super().call(y_true, y_pred)
                queue.enqueue({"mse": tf.reduce_mean(value)})
                return value
        with ipu.ipu_strategy.IPUStrategy().scope():
            model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
            model.compile("sgd", Loss(), steps_per_execution=2)
            model.fit(np.ones((4, 4)), np.ones((4, 1)), batch_size=2, callbacks=[Log()], verbose=0)
    """)
    assert out.split("\n")[0] == "mse True (2,)"
    assert out.split("\n")[1] == "True () ()"
    assert not isinstance(np.ones(3), tf.Tensor)
    assert isinstance(tf.ones(3), tf.Tensor)


@idiom(
    "Saving", "`ModelCheckpoint(monitor='val_dice_accuracy', save_best_only=True)` of a function"
)
@idiom("Training", "`EarlyStopping(monitor=...)` of a metric that is a function, without a mode")
@idiom("Training", "`LearningRateScheduler(f)`, where `f` computes the rate with `tf.cos`")
def test_callbacks_of_keras_2(program):
    out = program("""
        import numpy as np, tensorflow as tf
        def dice_accuracy(y, p):
            return 1 - tf.reduce_mean(tf.abs(y - p))
        def error(y, p):
            return tf.reduce_mean(tf.abs(y - p))
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[dice_accuracy, error])
        best = tf.keras.callbacks.ModelCheckpoint("w", monitor="dice_accuracy",
            save_best_only=True, save_weights_only=True, options=None)
        stop = tf.keras.callbacks.EarlyStopping(monitor="error", patience=9)
        rate = tf.keras.callbacks.LearningRateScheduler(lambda epoch, lr: tf.cos(0.0) * 0.1)
        model.fit(np.ones((4, 4)), np.ones((4, 1)), epochs=2, verbose=0,
            callbacks=[best, stop, rate])
        print(best.mode, stop.mode, round(float(model.optimizer.learning_rate), 3))
    """)
    assert out.split()[-3:] == ["max", "min", "0.1"]


@idiom(
    "Devices", "`StochasticRoundingBehaviour.from_bool(flag)`, `maximum_reduce_many_buffer_size`"
)
@idiom("Data", "`options.threading.private_threadpool_size = 8` of `tf.data.Options()`")
def test_further_options(program):
    out = program("""
        import tensorflow as tf
        from tensorflow.python import ipu
        cfg = ipu.config.IPUConfig()
        kind = ipu.config.StochasticRoundingBehaviour
        cfg.floating_point_behaviour.esr = kind.from_bool(True)
        cfg.optimizations.maximum_reduce_many_buffer_size = 1024
        ipu.utils.reset_ipu_seed(1, experimental_identical_replicas=True)
        options = tf.data.Options()
        options.threading.private_threadpool_size = 8
        data = tf.data.Dataset.range(3).with_options(options)
        def size(data: tf.data.Dataset, dtype: tf.dtypes.DType) -> int:
            return len(data)
        print(cfg.floating_point_behaviour.esr is kind.ON, kind.from_bool(False) is kind.OFF)
        print(size(data, None))
    """)
    assert out.split() == ["True", "True", "3"]


OPTIMIZERS = {
    "an override": """
        import tensorflow as tf
        def with_decay(base, share):
            class Decayed(base):
                def _resource_apply_dense(self, grad, var, apply_state):
                    return super()._resource_apply_dense(grad + share * var, var, apply_state)
            return Decayed
        with_decay(tf.keras.optimizers.SGD, 0.1)(0.1)
    """,
    "a counter": """
        import tensorflow as tf
        class Counted(tf.keras.optimizers.schedules.LearningRateSchedule):
            def __init__(self):
                self.step = tf.Variable(0.0, trainable=False)
            def __call__(self, _):
                self.step.assign_add(1)
                return 0.1 * self.step
        tf.keras.optimizers.SGD(learning_rate=Counted())
    """,
    "a fixed scale": """
        import tensorflow as tf
        inner = tf.keras.optimizers.SGD(0.1)
        tf.keras.mixed_precision.LossScaleOptimizer(inner, dynamic=False, initial_scale=64)
    """,
}


@idiom(
    "Unsupported, with an error that says what to write",
    "`_resource_apply_dense` of a class of ones own, `LossScaleOptimizer(dynamic=False)`",
)
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_optimizers_that_would_silently_do_something_else(program, case):
    with pytest.raises(UnsupportedError, match=r"update_step|counts the updates|loss_scale_factor"):
        program(OPTIMIZERS[case])


def test_operations_of_a_session_in_a_group(program):
    printed = program(
        """
import tensorflow.compat.v1 as tf
import numpy as np
tf.disable_v2_behavior()
x = tf.placeholder(np.float32, [])
with tf.Session() as session:
    print([float(n) for n in session.run(tf.group(x * 2, x + 1), {x: 3.0})])
"""
    )
    assert printed == "[6.0, 4.0]\n"
    assert tf.group(1, 2) is None
    assert tf.is_tensor(host_array(np.ones(2)))
    assert not tf.is_tensor(np.ones(2))
