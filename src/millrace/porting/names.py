"""The names in `millrace.ipu`, in the stand-in for TensorFlow, and in Keras.

canonical("tensorflow.python.ipu.config")   -> "ipu.config"
canonical("tensorflow.keras.layers.Dense")  -> "keras.layers.Dense"
exists("ipu.config.IPUConfig")              -> True
"""

import difflib
import functools
import importlib
from types import ModuleType
from typing import Any

import keras

from millrace.ipu.config import IPUConfig
from millrace.ipu.config.option import Option, Subcategory, members

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
