"""What to write in place of names of TensorFlow that are not here.

A name gets the longest entry that it begins with (`unsupported.longest`). `millrace port` prints
these, and at run time the error of the name says them.
"""

from typing import Any

import keras

from millrace_ipu.tensorflow.advice import ADVICE
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
