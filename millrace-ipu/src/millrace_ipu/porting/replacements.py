"""The names of IPU programs, and what to write for them.

canonical("tensorflow.python.ipu.config")   -> "ipu.config"
canonical("tensorflow.keras.layers.Dense")  -> "keras.layers.Dense"
exists("ipu.config.IPUConfig")              -> True
name_now("keras.layers.core.Dense")         -> "keras.layers.Dense"            it moved
what_to_write("tensorflow.math.erfinv")     -> "keras.ops.erfinv"              another has it
what_to_write("tensorflow.lite")            -> "model.save('model.keras')..."  the tables of advice
"""

import functools
import importlib
from typing import Any

from millrace_ipu.ipu.replacements import IPU
from millrace_ipu.porting import keras2_names
from millrace_ipu.porting.private_paths import public_name
from millrace_ipu.tensorflow.replacements import ADVICE, INSTALL, OPERATIONS, TENSORFLOW, operation
from millrace_ipu.tensorflow.unsupported import Unsupported, is_supported, longest

HOMES = {"ipu": "millrace_ipu.ipu", "tensorflow": "millrace_ipu.tensorflow", "keras": "keras"}
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
_RAISING = "keras.optimizers.legacy."  # names of Keras 3 that only raise
_OF_JAX = ("jax.numpy", "jax.lax", "jax.nn", "jax.scipy.special", "jax.numpy.linalg", "jax.random")
_OF_KERAS = ("layers", "optimizers", "losses", "metrics", "utils", "callbacks", "initializers")
_ABSENT = Unsupported("", str)


def canonical(name: str) -> str:
    """Returns a dotted name in its form under `ipu`, `tensorflow` or `keras`, if it has one."""
    for old, new in _PREFIXES:
        if name == old or name.startswith(f"{old}."):
            return canonical(new + name[len(old) :])
    return name


def shown(name: str) -> str:
    """Returns a canonical name as programs spell it: `tf.data`."""
    return f"tf.{name[11:]}" if name.startswith("tensorflow.") else name


def exists(name: str) -> bool:
    """Whether a canonical name exists, and does more than to raise."""
    return is_supported(_value(name))


def is_importable(name: str) -> bool:
    """Whether a canonical name exists, if only as one that raises when it is used."""
    return _value(name) is not _ABSENT


def name_now(name: str) -> str:
    """Returns the name that a canonical name has now: a name that only moved gets its new one.

    Args:
        name: such as `keras.layers.core.Dense`, or a private one of TensorFlow.
    """
    if name.partition(".")[0] not in HOMES or exists(name):
        return name
    parts = name.split(".")
    for n in range(len(parts), 1, -1):
        prefix = ".".join(parts[:n])
        new = public_name(prefix, exists) or keras2_names.new_name(prefix)
        if new is not None and exists(".".join([new, *parts[n:]])):
            return ".".join([new, *parts[n:]])
    return name


def what_to_write(name: str) -> str:
    """Returns the text to write for a canonical name that does not exist.

    Args:
        name: a name of TensorFlow, Keras, or of the IPU's package.
    """
    name = public_name(name, exists) or name
    now = name_now(name)
    if now != name or exists(name):
        return shown(now)
    root, _, last = name.rpartition(".")
    if name.startswith("tensorflow.python.") and exists(f"tensorflow.{last}"):
        return f"tf.{last}"
    if name.startswith("ipu."):
        text = longest(IPU, name) or longest(IPU, f"ipu.keras.{last}")
        return text or f"remove it: there is no {root} outside of the IPU"
    return _of_keras(name) if name.startswith("keras.") else _of_tensorflow(name)


@functools.cache
def _value(name: str) -> Any:
    """Returns the object with a canonical name, or an unsupported one."""
    root, *attributes = name.split(".")
    if root not in HOMES or name.startswith(_RAISING):
        return _ABSENT
    path = HOMES[root]
    value: Any = importlib.import_module(path)
    for attribute in attributes:
        path = f"{path}.{attribute}"
        try:
            value = getattr(value, attribute)
        except (AttributeError, ImportError):
            value = _imported(path)
        if not is_supported(value):
            # `tf.compat.v1` passes names that it lacks on to `tf`.
            is_old = name.startswith(_COMPAT)
            return _value(name.replace(_COMPAT, "tensorflow.")) if is_old else value
    return value


def _imported(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ImportError:
        return _ABSENT


def _of_keras(name: str) -> str:
    text = keras2_names.VALUES.get(name) or keras2_names.advice(name)
    if text is not None:
        return text
    last = name.rpartition(".")[2]
    for module in _OF_KERAS:
        if exists(f"keras.{module}.{last}"):
            return f"keras.{module}.{last}"
    own = "a keras.layers.Layer of your own: Keras 3 has no class like it"
    return (_operation(name) or "the code of the function itself") if last.islower() else own


def _of_tensorflow(name: str) -> str:
    short = name.replace("tensorflow.compat.v1.", "tensorflow.").replace("compat.v2.", "")
    text = longest(ADVICE, name) or longest(ADVICE, short)
    if text is not None:
        return text
    text = longest(TENSORFLOW, name) or longest(TENSORFLOW, short)
    result = _operation(short)
    if result is not None and (text is None or result.startswith("keras.")):
        return result
    return text or f"a function of jax.numpy; or {INSTALL}, which has the name"


def _operation(name: str) -> str | None:
    """Returns the operation of Keras or JAX with the last part of a name."""
    owner, _, last = name.rpartition(".")
    inner = {"tensorflow.random": "random", "tensorflow.image": "ops.image"}.get(owner)
    if inner is not None and exists(f"keras.{inner}.{last}"):
        return f"keras.{inner}.{last}"
    result = operation(name, OPERATIONS)
    if result is not None:
        return result
    modules = (each for each in _OF_JAX if hasattr(importlib.import_module(each), last))
    return next((f"{module}.{last}" for module in modules), None)
