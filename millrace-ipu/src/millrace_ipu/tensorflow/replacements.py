"""Replacements for names of TensorFlow that are not here.

A name gets the longest entry that it begins with (`unsupported.longest`). `millrace port` prints
these, and at run time the error of the name says them.
"""

from typing import Any

import keras

from millrace_ipu.tensorflow.unsupported import (
    NOT_IN_THIS_RELEASE,
    Unsupported,
    UnsupportedModule,
    longest,
)

FIT = "model.fit of a Keras model in a strategy's scope"
SERVING = "model.save('model.keras'), and model.predict in the process that serves"
FEEDS = "model.fit with a tf.data.Dataset, a keras.utils.PyDataset or arrays"
PROCESSES = "millrace.distributed.initialize() in the script, and `millrace launch`"
CUSTOM = "a function of jax.numpy, or JAX's FFI for custom code"

TENSORFLOW = {
    "tensorflow.estimator": FIT,
    "tensorflow.distribute": "ipu.ipu_strategy.IPUStrategy, or millrace.Strategy",
    "tensorflow.saved_model": SERVING,
    "tensorflow.lite": SERVING,
    "tensorflow.train": "model.save_weights, keras.callbacks.ModelCheckpoint",
    "tensorflow.compat.v1.train": "an optimizer of keras.optimizers; model.save_weights",
    "tensorflow.config": "ipu.config.IPUConfig, or jax.config",
    "tensorflow.io": "Python's own files, in the code that loads the data",
    "tensorflow.data": FEEDS,
    "tensorflow.profiler": "jax.profiler",
    "tensorflow.raw_ops": "keras.ops, or jax.lax",
    "tensorflow.linalg": "keras.ops.linalg",
    "tensorflow.random": "keras.random",
    "tensorflow.image": "keras.ops.image",
    "tensorflow.signal": "keras.ops",
    "tensorflow.sparse": "dense arrays, or jax.experimental.sparse",
    "tensorflow.TensorArray": "a Python list, or values that a loop of ipu.loops carries",
    "tensorflow.Graph": "a function, compiled with tf.function(jit_compile=True)",
    "tensorflow.losses": "keras.losses",
    "tensorflow.metrics": "keras.metrics",
    "tensorflow.contrib": "keras, and millrace_ipu.ipu for tensorflow.contrib.ipu",
    "tensorflow.python": "the same name in tf, tf.data or keras",
    "tensorflow.gradients": "millrace.value_and_grad",
    "tensorflow.while_loop": "ipu.loops.while_loop",
    "tensorflow.cond": "keras.ops.cond",
    "tensorflow.map_fn": "keras.ops.map",
    "tensorflow.scan": "keras.ops.scan",
    "tensorflow.case": "keras.ops.switch",
    "tensorflow.stop_gradient": "keras.ops.stop_gradient",
    "tensorflow.print": "jax.debug.print",
    "tensorflow.debugging": "jax.debug, or millrace.callbacks.NaNWatch",
    "tensorflow.Variable": "keras.Variable",
}  # fmt: skip

# Names that have no replacement of the same form: code to write, or what to remove.
_FILES = "pathlib.Path and open()"
_IMAGES = "keras.utils.load_img(path) and img_to_array(image), or PIL"
INSTALL = 'python -m pip install "millrace[tensorflow]"'
_NEEDS_TENSORFLOW = f"{INSTALL}: the name then works in the code that loads the data"
_RECORDS = f"{INSTALL}: tf.data then reads them; or tf.data.Dataset.from_generator"
_STRINGS = "methods of str, in the generator of tf.data.Dataset.from_generator"
_CELL = "keras.layers.RNN(keras.layers.LSTMCell(units))"
_SAVE = "model.save('name.keras') and keras.saving.load_model('name.keras')"
_PADDED = "dense rows of one length and a mask: keras.utils.pad_sequences(rows)"
_CHECKPOINT = "model.save_weights('name.weights.h5') and model.load_weights('name.weights.h5')"

ADVICE = {
    "tensorflow.Assert": "a check in Python, before the function is compiled",
    "tensorflow.batch_gather": "keras.ops.take_along_axis",
    "tensorflow.broadcast_dynamic_shape": "numpy.broadcast_shapes",
    "tensorflow.broadcast_static_shape": "numpy.broadcast_shapes",
    "tensorflow.debugging.assert_": "a check in Python, before the function is compiled",
    "tensorflow.debugging.check_numerics": "millrace.callbacks.NaNWatch()",
    "tensorflow.debugging.enable_check_numerics": "millrace.callbacks.NaNWatch()",
    "tensorflow.dynamic_partition": "keras.ops.where, with a mask: shapes are fixed in programs",
    "tensorflow.initialize_all_variables": "tf.compat.v1.global_variables_initializer",
    "tensorflow.nn.sampled_softmax_loss": "keras.losses.SparseCategoricalCrossentropy",
    "tensorflow.nn.nce_loss": "keras.losses.SparseCategoricalCrossentropy",
    "tensorflow.nn.batch_normalization": "keras.ops.batch_normalization",
    "tensorflow.nn.conv2d_transpose": "keras.ops.conv_transpose",
    "tensorflow.nn.pool": "keras.ops.max_pool, or keras.ops.average_pool",
    "tensorflow.image.random_": "a layer of keras.layers, such as RandomFlip or RandomCrop",
    "tensorflow.image.resize_with_crop_or_pad": "keras.ops.image.crop_images, pad_images",
    "tensorflow.space_to_batch": "keras.ops.reshape and keras.ops.transpose",
    "tensorflow.batch_to_space": "keras.ops.reshape and keras.ops.transpose",
    "tensorflow.random.Generator": "keras.random.SeedGenerator",
    "tensorflow.random.get_global_generator": "keras.random.SeedGenerator",
    "tensorflow.random.experimental": "keras.random.SeedGenerator",
    "tensorflow.train.Feature": _NEEDS_TENSORFLOW,
    "tensorflow.Module": "keras.layers.Layer",
    "tensorflow.RaggedTensor": _PADDED,
    "tensorflow.ragged": _PADDED,
    "tensorflow.SparseTensor": "a dense array, or jax.experimental.sparse.BCOO",
    "tensorflow.IndexedSlices": "the dense gradient: Keras on JAX has no sparse ones",
    "tensorflow.app": "argparse, or absl.flags; and main()",
    "tensorflow.app.flags": "argparse, or absl.flags",
    "tensorflow.app.run": "main()",
    "tensorflow.autograph": "remove it: tf.function converts functions without it",
    "tensorflow.compat.v1.assign": "variable.assign(value)",
    "tensorflow.compat.v1.assign_add": "variable.assign_add(value)",
    "tensorflow.compat.v1.data": "tf.data.Dataset",
    "tensorflow.compat.v1.disable_resource_variables": "remove it",
    "tensorflow.compat.v1.enable_resource_variables": "remove it: variables are those of Keras",
    "tensorflow.compat.v1.get_collection": "model.trainable_variables",
    "tensorflow.compat.v1.get_default_graph": "remove it: there is one graph",
    "tensorflow.compat.v1.global_variables": "model.variables",
    "tensorflow.compat.v1.layers": "layers of keras.layers, made once, before the function",
    "tensorflow.compat.v1.reset_default_graph": "keras.backend.clear_session()",
    "tensorflow.compat.v1.saved_model": _SAVE,
    "tensorflow.compat.v1.test": "unittest.TestCase, or pytest",
    "tensorflow.compat.v1.train.Saver": _CHECKPOINT,
    "tensorflow.config.experimental": "remove it: JAX manages the memory of its devices",
    "tensorflow.config.experimental_run_functions_eagerly": "jax.disable_jit()",
    "tensorflow.config.list_logical_devices": "jax.devices()",
    "tensorflow.config.list_physical_devices": "jax.devices()",
    "tensorflow.config.optimizer": "remove it: XLA optimizes the programs",
    "tensorflow.config.run_functions_eagerly": "jax.disable_jit()",
    "tensorflow.config.set_visible_devices": "the environment variable JAX_PLATFORMS",
    "tensorflow.config.threading": "remove it: XLA chooses its threads",
    "tensorflow.data.FixedLengthRecordDataset": _RECORDS,
    "tensorflow.data.TFRecordDataset": _RECORDS,
    "tensorflow.data.TextLineDataset": "tf.data.Dataset.from_generator, with open(path)",
    "tensorflow.data.experimental": "the method of tf.data.Dataset, or from_generator",
    "tensorflow.dtypes": "tf.float32 and the like; tf.cast",
    "tensorflow.feature_column": "keras.utils.FeatureSpace",
    "tensorflow.get_variable": "keras.layers.Dense, made before the function; or tf.Variable",
    "tensorflow.gfile": _FILES,
    "tensorflow.global_variables_initializer": "tf.compat.v1.global_variables_initializer",
    "tensorflow.image.central_crop": "keras.layers.CenterCrop, or a slice of the image",
    "tensorflow.image.convert_image_dtype": "image / 255, and keras.ops.cast",
    "tensorflow.image.decode_": _IMAGES,
    "tensorflow.image.flip_": "keras.ops.flip(image, axis)",
    "tensorflow.image.per_image_standardization": "(image - mean) / deviation, by keras.ops",
    "tensorflow.io.FixedLenFeature": _NEEDS_TENSORFLOW,
    "tensorflow.io.TFRecordOptions": _NEEDS_TENSORFLOW,
    "tensorflow.io.TFRecordWriter": _NEEDS_TENSORFLOW,
    "tensorflow.io.VarLenFeature": _NEEDS_TENSORFLOW,
    "tensorflow.io.decode_image": _IMAGES,
    "tensorflow.io.decode_jpeg": _IMAGES,
    "tensorflow.io.decode_png": _IMAGES,
    "tensorflow.io.decode_raw": "numpy.frombuffer(data, dtype)",
    "tensorflow.io.gfile": _FILES,
    "tensorflow.io.parse_": _NEEDS_TENSORFLOW,
    "tensorflow.io.read_file": "pathlib.Path(path).read_bytes()",
    "tensorflow.io.serialize_tensor": "numpy.save(path, array)",
    "tensorflow.io.write_file": "pathlib.Path(path).write_bytes(data)",
    "tensorflow.layers": "layers of keras.layers",
    "tensorflow.logging": "Python's logging",
    "tensorflow.lookup": "a dict, or keras.layers.StringLookup with tensorflow installed",
    "tensorflow.math.confusion_matrix": "numpy.histogram2d, or sklearn.metrics.confusion_matrix",
    "tensorflow.nn.ctc_loss": "keras.ops.ctc_loss",
    "tensorflow.nn.rnn_cell": _CELL,
    "tensorflow.nn.static_rnn": _CELL,
    "tensorflow.nn.dynamic_rnn": _CELL,
    "tensorflow.numpy_function": "an outfeed queue or a callback; compiled programs call no Python",
    "tensorflow.py_function": "an outfeed queue or a callback; compiled programs call no Python",
    "tensorflow.strings": _STRINGS,
    "tensorflow.summary": "keras.callbacks.TensorBoard(log_dir)",
    "tensorflow.sysconfig": "remove it",
    "tensorflow.test.TestCase": "unittest.TestCase",
    "tensorflow.test": "unittest, or pytest",
    "tensorflow.timestamp": "time.time()",
    "tensorflow.train.AdamOptimizer": "keras.optimizers.Adam(learning_rate)",
    "tensorflow.train.BytesList": _NEEDS_TENSORFLOW,
    "tensorflow.train.Checkpoint": _CHECKPOINT,
    "tensorflow.train.CheckpointManager": "keras.callbacks.ModelCheckpoint('{epoch}.weights.h5')",
    "tensorflow.train.Example": _NEEDS_TENSORFLOW,
    "tensorflow.train.ExponentialMovingAverage": "use_ema=True of the optimizer",
    "tensorflow.train.GradientDescentOptimizer": "keras.optimizers.SGD(learning_rate)",
    "tensorflow.train.MomentumOptimizer": "keras.optimizers.SGD(learning_rate, momentum)",
    "tensorflow.train.Features": _NEEDS_TENSORFLOW,
    "tensorflow.train.piecewise_constant": "keras.optimizers.schedules.PiecewiseConstantDecay",
    "tensorflow.trainable_variables": "model.trainable_variables",
    "tensorflow.types": "jax.Array",
    "tensorflow.variable_scope": "tf.name_scope, and layers with names",
    "tensorflow.variables_initializer": "remove it: variables have values at once",
    "tensorflow.xla": "tf.function(jit_compile=True)",
}

# Operations of `tf.math` that have another name in keras.ops.
KERAS_NAMES = {
    "floordiv": "floor_divide",
    "is_finite": "isfinite",
    "is_inf": "isinf",
    "is_nan": "isnan",
    "pow": "power",
    "reciprocal": "reciprocal",
    "reduce_all": "all",
    "reduce_any": "any",
    "reduce_logsumexp": "logsumexp",
    "reduce_max": "max",
    "reduce_mean": "mean",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "reduce_std": "std",
    "reduce_sum": "sum",
    "reduce_variance": "var",
    "truediv": "true_divide",
}
# All that have another name there, also those that are not here.
OPERATIONS = {
    **KERAS_NAMES,
    "acos": "arccos",
    "asin": "arcsin",
    "atan": "arctan",
    "atan2": "arctan2",
    "avg_pool2d": "average_pool",
    "clip_by_value": "clip",
    "concat": "concatenate",
    "constant": "convert_to_tensor",
    "conv1d": "conv",
    "conv2d": "conv",
    "conv3d": "conv",
    "fill": "full",
    "gather": "take",
    "max_pool2d": "max_pool",
    "range": "arange",
    "sigmoid_cross_entropy_with_logits": "binary_crossentropy",
    "softmax_cross_entropy_with_logits": "categorical_crossentropy",
    "sparse_softmax_cross_entropy_with_logits": "sparse_categorical_crossentropy",
    "strided_slice": "slice",
    "unsorted_segment_sum": "segment_sum",
}

# Packages.
MODULES = {
    "tensorflow_addons": "keras: its layers and optimizers; ipu.addons for the IPU's",
    "tensorflow_datasets": "",  # works with TensorFlow installed: fit takes its data sets
    "tensorflow_probability": "tensorflow_probability.substrates.jax",
    "tensorflow_hub": "keras_hub",
    "tensorflow_estimator": FIT,
    "horovod": PROCESSES,
    "poprun": PROCESSES,
    "popart": "a Keras model",
    "poptorch": "a Keras model",
    "poplar": CUSTOM,
    "gcipuinfo": "strategy.statistics() and strategy.memory_report()",
    "pva": "millrace.records.load(directory)",
    "pvti": "jax.profiler.TraceAnnotation",
    "keras.src": "the same name in keras, without src",
}  # fmt: skip


def operation(name: str, renamed: dict[str, str]) -> str | None:
    """Returns the operation of `keras.ops` that replaces TensorFlow's; None if there is none."""
    last = name.rpartition(".")[2]
    other = renamed.get(last, last)
    return f"keras.ops.{other}" if hasattr(keras.ops, other) else None


def replacement(path: str) -> str | None:
    """Returns what to write in place of a name; None if nothing is known of it.

    Args:
        path: the dotted name under `tf`.
    """
    name = f"tensorflow.{path}"
    names = (name, name.replace("tensorflow.compat.v1.", "tensorflow."))
    texts = (longest(table, each) for table in (ADVICE, TENSORFLOW) for each in names)
    return next(filter(None, texts), None)


def unsupported(path: str) -> Any:
    """Returns the object of a name that raises when it is used; None if nothing is known of it.

    Args:
        path: the dotted name under `tf`.
    """
    is_older = longest(dict.fromkeys(NOT_IN_THIS_RELEASE, ""), f"tensorflow.{path}") is not None
    return None if is_older or replacement(path) is None else Unsupported(f"tf.{path}", _instead)


def unsupported_module(name: str) -> UnsupportedModule | None:
    """Returns a module in place of one of TensorFlow's; None if nothing is known of it.

    Args:
        name: its full name, such as `tensorflow.lite`.
    """
    path = name.partition(".")[2]
    if replacement(path) is None:
        return None
    return UnsupportedModule(name, f"tf.{path}", _instead)


def _instead(shown: str) -> str:
    return replacement(shown.removeprefix("tf.")) or ""
