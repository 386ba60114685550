"""The names of IPU programs, and their replacements.

canonical("tensorflow.python.ipu.config")   -> "ipu.config"
canonical("tensorflow.keras.layers.Dense")  -> "keras.layers.Dense"
exists("ipu.config.IPUConfig")              -> True

A name gets the longest entry that it begins with. A name without an entry is looked up in
`millrace_ipu.ipu`, in the stand-in for TensorFlow, and in Keras.
"""

import difflib
import functools
import importlib
from types import ModuleType
from typing import Any

from millrace.extend import is_own_module
from millrace_ipu.ipu.config import IPUConfig
from millrace_ipu.ipu.config.option import Option, Subcategory, members
from millrace_ipu.ipu.replacements import IPU as IPU
from millrace_ipu.tensorflow.replacements import MODULES as MODULES
from millrace_ipu.tensorflow.replacements import OPERATIONS as OPERATIONS
from millrace_ipu.tensorflow.replacements import SERVING
from millrace_ipu.tensorflow.replacements import TENSORFLOW as TENSORFLOW
from millrace_ipu.tensorflow.replacements import operation as operation
from millrace_ipu.tensorflow.unsupported import is_supported
from millrace_ipu.tensorflow.unsupported import longest as longest

_ROOTS = {"ipu": "millrace_ipu.ipu", "tensorflow": "millrace_ipu.tensorflow", "keras": "keras"}
_PREFIXES = (
    ("tensorflow.compat.v1.keras", "keras"),
    ("tensorflow.python.keras", "keras"),
    ("tensorflow.python.ipu", "ipu"),
    ("tensorflow.compiler.plugin.poplar", "ipu"),
    ("tensorflow.keras", "keras"),
    ("tf_keras", "keras"),
    ("keras.ipu", "ipu.keras"),
    ("ipu_tensorflow_addons", "ipu.addons"),
    ("popdist", "ipu.popdist"),
    ("millrace_ipu.ipu", "ipu"),
    ("millrace_ipu.tensorflow", "tensorflow"),
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
    if isinstance(owner, ModuleType) and is_own_module(owner.__name__):
        # A lazy attribute may come from the real TensorFlow, which may not be installed.
        if name in vars(owner):
            return _if_exists(vars(owner)[name])
        try:
            return _if_exists(importlib.import_module(f"{owner.__name__}.{name}"))
        except ImportError:
            if name not in dir(owner):
                return False, None
    try:
        return _if_exists(getattr(owner, name))
    except (AttributeError, ImportError):
        return False, None


def _if_exists(value: object) -> tuple[bool, Any]:
    """Returns whether a value does more than to raise, and the value."""
    return is_supported(value), value


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
    "experimental_run_v2": "run",
    "export_for_ipu_inference": SERVING,
    "export_for_ipu_serving": SERVING,
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
