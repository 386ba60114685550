"""The names of IPU programs, and their replacements.

canonical("tensorflow.python.ipu.config")   -> "ipu.config"
canonical("tensorflow.keras.layers.Dense")  -> "keras.layers.Dense"
exists("ipu.config.IPUConfig")              -> True

A name gets the longest entry that it begins with. A name without an entry is looked up in
`millrace.ipu`, in the stand-in for TensorFlow, and in Keras.
"""

import difflib
import functools
import importlib
from types import ModuleType
from typing import Any

import keras

from millrace.ipu.config import IPUConfig
from millrace.ipu.config.option import Option, Subcategory, members
from millrace.tensorflow.math import KERAS_NAMES

_ROOTS = {"ipu": "millrace.ipu", "tensorflow": "millrace.tensorflow", "keras": "keras"}
_PREFIXES = (
    ("tensorflow.compat.v1.keras", "keras"),
    ("tensorflow.python.keras", "keras"),
    ("tensorflow.python.ipu", "ipu"),
    ("tensorflow.compiler.plugin.poplar", "ipu"),
    ("tensorflow.keras", "keras"),
    ("tf_keras", "keras"),
    ("keras.ipu", "ipu.keras"),
    ("millrace.ipu", "ipu"),
    ("millrace.tensorflow", "tensorflow"),
)

_COMPAT = "tensorflow.compat.v1."


def canonical(name: str) -> str:
    """Returns a dotted name in its form under `ipu`, `tensorflow` or `keras`, if it has one."""
    for old, new in _PREFIXES:
        if name == old or name.startswith(f"{old}."):
            return canonical(new + name[len(old) :])
    return name


@functools.cache
def exists(name: str) -> bool:
    """Whether a canonical name exists; the real TensorFlow does not count."""
    root, *attributes = name.split(".")
    try:
        owner: Any = importlib.import_module(_ROOTS[root])
    except ImportError:
        return False
    for attribute in attributes:
        is_there, owner = _member(owner, attribute)
        if not is_there:
            # `tf.compat.v1` passes names that it lacks on to `tf`.
            return name.startswith(_COMPAT) and exists(name.replace(_COMPAT, "tensorflow."))
    return True


def operation(name: str, renamed: dict[str, str]) -> str | None:
    """Returns the operation of `keras.ops` that replaces TensorFlow's; None if there is none."""
    last = name.rpartition(".")[2]
    other = renamed.get(last, last)
    return f"keras.ops.{other}" if hasattr(keras.ops, other) else None


def option(path: str) -> tuple[bool, str]:
    """Returns whether `IPUConfig` has an attribute, with advice if it has none or no effect."""
    kind: Any = IPUConfig
    for name in path.split("."):
        member = getattr(kind, name, None)
        if isinstance(member, Option):
            return True, member.advice
        if not isinstance(member, Subcategory):
            near = difflib.get_close_matches(name, members(kind), n=1)
            return False, near[0] if near else f"one of {', '.join(members(kind))}"
        kind = member.kind
    return True, ""


def _member(owner: object, name: str) -> tuple[bool, Any]:
    if isinstance(owner, ModuleType) and owner.__name__.startswith("millrace."):
        # A lazy attribute may come from the real TensorFlow, which may not be installed.
        if name in vars(owner):
            return True, vars(owner)[name]
        try:
            return True, importlib.import_module(f"{owner.__name__}.{name}")
        except ImportError:
            if name not in dir(owner):
                return False, None
    try:
        return True, getattr(owner, name)
    except (AttributeError, ImportError):
        return False, None


_FIT = "model.fit of a Keras model in a strategy's scope"
_LOOKUP = "keras.layers.Embedding; for a table larger than a device: look rows up in the data set"
_SERVING = "model.save('model.keras'), and model.predict in the process that serves"
_PROCESSES = "millrace.distributed.initialize() in the script, and `millrace launch`"
_CUSTOM = "a function of jax.numpy, or JAX's FFI for custom code"
_FEEDS = "model.fit with a tf.data.Dataset, a keras.utils.PyDataset or arrays"

IPU = {
    "ipu.keras.IPUModel": "keras.Model, in the scope of an IPUStrategy",
    "ipu.keras.Model": "keras.Model, in the scope of an IPUStrategy",
    "ipu.keras.IPUSequential": "keras.Sequential, in the scope of an IPUStrategy",
    "ipu.keras.Sequential": "keras.Sequential, in the scope of an IPUStrategy",
    "ipu.keras.PipelineSequential": "keras.Sequential and model.set_pipeline_stage_assignment()",
    "ipu.keras.PipelinedModel": "keras.Model with ipu.keras.PipelineStage scopes",
    "ipu.keras.PipelineModel": "keras.Model with ipu.keras.PipelineStage scopes",
    "ipu.ipu_estimator": _FIT,
    "ipu.ipu_pipeline_estimator": f"{_FIT}, with model.set_pipeline_stage_assignment()",
    "ipu.ipu_run_config": "ipu.config.IPUConfig, and arguments of model.compile",
    "ipu.ipu_session_run_hooks": "a keras.callbacks.Callback",
    "ipu.embedding_ops": _LOOKUP,
    "ipu.custom_ops": _CUSTOM,
    "ipu.custom_op_utils": _CUSTOM,
    "ipu.serving": _SERVING,
    "ipu.application_compile_op": _SERVING,
    "ipu.embedded_runtime": _SERVING,
    "ipu.horovod": _PROCESSES,
    "ipu.distributed": _PROCESSES,
    "ipu.ipu_multi_worker_strategy": _PROCESSES,
    "ipu.autoshard": "ipu.keras.PipelineStage, or model.set_pipeline_stage_assignment()",
    "ipu.autoshard_cnn": "ipu.keras.PipelineStage, or model.set_pipeline_stage_assignment()",
    "ipu.sharding": "ipu.keras.PipelineStage, or model.set_pipeline_stage_assignment()",
    "ipu.verification": "remove it: transfers to devices are not encrypted",
    "ipu.internal_ops": "jax.debug.print",
    "ipu.functional_ops": "the function itself: XLA shares equal code",
    "ipu.nn_ops": "keras.ops, or the layer of ipu.keras.layers",
    "ipu.normalization_ops": "ipu.keras.layers.GroupNorm, InstanceNorm or LayerNorm",
    "ipu.rnn_ops": "ipu.keras.layers.LSTM or GRU",
    "ipu.rand_ops": "keras.random.dropout",
    "ipu.f8_ops": "a dtype policy of Keras, such as 'mixed_bfloat16'",
    "ipu.data": _FEEDS,
    "ipu.dataset_extractor": _FEEDS,
    "ipu.vertex_edsl": _CUSTOM,
    "ipu.keras.layers.Embedding": "keras.layers.Embedding",
    "ipu.utils.extract_": "jax.profiler.trace(directory)",
}  # fmt: skip

TENSORFLOW = {
    "tensorflow.estimator": _FIT,
    "tensorflow.compat.v1.estimator": _FIT,
    "tensorflow.distribute": "ipu.ipu_strategy.IPUStrategy, or millrace.Strategy",
    "tensorflow.saved_model": _SERVING,
    "tensorflow.lite": _SERVING,
    "tensorflow.summary": "keras.callbacks.TensorBoard",
    "tensorflow.compat.v1.summary": "keras.callbacks.TensorBoard",
    "tensorflow.train.Checkpoint": "model.save_weights('name.weights.h5'), or model.save",
    "tensorflow.train": "model.save_weights, keras.callbacks.ModelCheckpoint",
    "tensorflow.compat.v1.train": "an optimizer of keras.optimizers; model.save_weights",
    "tensorflow.config": "ipu.config.IPUConfig, or jax.config",
    "tensorflow.lookup": "keras.layers.StringLookup or IntegerLookup, while loading data",
    "tensorflow.feature_column": "keras.utils.FeatureSpace",
    "tensorflow.io": "Python's own files, in the code that loads the data",
    "tensorflow.data.experimental": _FEEDS,
    "tensorflow.data": _FEEDS,
    "tensorflow.py_function": "a callback, or an outfeed queue: programs call no Python",
    "tensorflow.numpy_function": "a callback, or an outfeed queue: programs call no Python",
    "tensorflow.profiler": "jax.profiler",
    "tensorflow.raw_ops": "keras.ops, or jax.lax",
    "tensorflow.linalg": "keras.ops.linalg",
    "tensorflow.random": "keras.random",
    "tensorflow.image": "keras.ops.image",
    "tensorflow.signal": "keras.ops",
    "tensorflow.sparse": "dense arrays, or jax.experimental.sparse",
    "tensorflow.RaggedTensor": "rows padded to one length, and a mask",
    "tensorflow.ragged": "rows padded to one length, and a mask",
    "tensorflow.TensorArray": "a Python list, or values that a loop of ipu.loops carries",
    "tensorflow.Graph": "a function, compiled with tf.function(jit_compile=True)",
    "tensorflow.compat.v1.layers": "keras.layers",
    "tensorflow.layers": "keras.layers",
    "tensorflow.losses": "keras.losses",
    "tensorflow.compat.v1.losses": "keras.losses",
    "tensorflow.metrics": "keras.metrics",
    "tensorflow.contrib": "keras, and millrace.ipu for tensorflow.contrib.ipu",
    "tensorflow.python": "the public name",
    "tensorflow.custom_gradient": "jax.custom_vjp",
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

# Operations that have another name in keras.ops.
OPERATIONS = {
    **{name: other for name, other in KERAS_NAMES.items() if name != other},
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
    "l2_normalize": "normalize",
    "max_pool2d": "max_pool",
    "range": "arange",
    "sigmoid_cross_entropy_with_logits": "binary_crossentropy",
    "softmax_cross_entropy_with_logits": "categorical_crossentropy",
    "sparse_softmax_cross_entropy_with_logits": "sparse_categorical_crossentropy",
    "strided_slice": "slice",
    "tensor_scatter_nd_update": "scatter_update",
    "unsorted_segment_sum": "segment_sum",
}

MODULES = {
    "tensorflow_addons": "keras: its layers and optimizers; ipu.addons for the IPU's",
    "tensorflow_datasets": "",  # works with TensorFlow installed: fit takes its data sets
    "tensorflow_probability": "tensorflow_probability.substrates.jax",
    "tensorflow_hub": "keras_hub",
    "tensorflow_estimator": _FIT,
    "horovod": _PROCESSES,
    "popdist": _PROCESSES,
    "poprun": _PROCESSES,
    "popart": "a Keras model",
    "poptorch": "a Keras model",
    "poplar": _CUSTOM,
    "gcipuinfo": "strategy.statistics() and strategy.memory_report()",
    "pva": "strategy.memory_report() and jax.profiler",
    "pvti": "jax.profiler.TraceAnnotation",
    "keras.src": "the public name in keras",
}  # fmt: skip

_SCHEDULE = "learning_rate=keras.optimizers.schedules.InverseTimeDecay(...)"
_WORKERS = "an argument of keras.utils.PyDataset"

# Arguments that Keras 3 does not have, by the beginning of the function's name.
KEYWORDS = {
    ("keras.optimizers.", "lr"): "learning_rate=",
    ("keras.optimizers.", "decay"): _SCHEDULE,
    ("keras.layers.", "batch_input_shape"): "keras.Input(batch_shape=...)",
    ("keras.layers.", "input_dim"): "keras.Input((n,)) as the first layer",
    ("keras.layers.Embedding", "input_length"): "nothing: it is not needed",
    ("keras.layers.LSTM", "time_major"): "inputs of shape (batch, time, features)",
    ("keras.layers.GRU", "time_major"): "inputs of shape (batch, time, features)",
    ("keras.layers.BatchNormalization", "fused"): "nothing: XLA fuses operations itself",
    ("keras.layers.BatchNormalization", "renorm"): "keras.layers.BatchNormalization without it",
}

# Methods by name alone: only a run of the script would show the class of the object.
METHODS = {
    "fit_generator": "fit",
    "evaluate_generator": "evaluate",
    "predict_generator": "predict",
    "predict_classes": "predict(x).argmax(-1)",
    "predict_proba": "predict",
    "add_update": "assign to a variable in call()",
    "add_metric": "a metric of the layer: self.metric.update_state(...) in call()",
    "jacobian": "jax.jacrev(fn)",
    "batch_jacobian": "jax.vmap(jax.jacrev(fn))",
    "as_list": "list(x.shape)",
    "get_shape": "x.shape",
    "set_shape": "keras.ops.reshape",
    "make_one_shot_iterator": "the dataset itself",
    "make_initializable_iterator": "the dataset itself",
    "export_for_ipu_inference": _SERVING,
    "reset_states": "reset_state",
}

METHOD_KEYWORDS = {
    ("fit", "workers"): _WORKERS,
    ("fit", "use_multiprocessing"): _WORKERS,
    ("fit", "max_queue_size"): _WORKERS,
    ("evaluate", "workers"): _WORKERS,
    ("predict", "workers"): _WORKERS,
    ("save", "save_format"): "a file name that ends with .keras",
    ("compile", "experimental_steps_per_execution"): "steps_per_execution=",
    ("compile", "experimental_run_tf_function"): "nothing: it is not needed",
    ("compile", "sample_weight_mode"): "sample weights of the shape of the targets",
}


def longest(table: dict[str, str], name: str) -> str | None:
    """Returns the longest entry that a dotted name begins with; None if there is none.

    An entry that ends with an underscore stands for all names that begin with it.
    """
    best = None
    for key in table:
        fits = name == key or name.startswith(f"{key}.")
        fits |= key.endswith("_") and name.startswith(key)
        if fits and (best is None or len(key) > len(best)):
            best = key
    return None if best is None else table[best]
