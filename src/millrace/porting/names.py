"""Which names there are: of `millrace.ipu`, of the stand-in for TensorFlow, of Keras.

canonical("tensorflow.python.ipu.config")   -> "ipu.config"
canonical("tensorflow.keras.layers.Dense")  -> "keras.layers.Dense"
exists("ipu.config.IPUConfig")              whether a program finds it there
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
    """Returns a dotted name as it begins with `ipu`, `tensorflow` or `keras`, if it is of these."""
    for old, new in _PREFIXES:
        if name == old or name.startswith(f"{old}."):
            return canonical(new + name[len(old) :])
    return name


@functools.cache
def exists(name: str) -> bool:
    """Whether a canonical name is there; the stand-in counts without the TensorFlow behind it."""
    root, *rest = name.split(".")
    try:
        found: Any = importlib.import_module(_ROOTS[root])
    except ImportError:
        return False
    for part in rest:
        known, found = _member(found, part)
        if not known:
            # All that `tf.compat.v1` does not have itself is what `tf` has.
            return name.startswith(_COMPAT) and exists(name.replace(_COMPAT, "tensorflow."))
    return True


def operation(name: str, renamed: dict[str, str]) -> str | None:
    """Returns the name in `keras.ops` of what TensorFlow calls `name`; None if there is none."""
    last = name.rpartition(".")[2]
    found = renamed.get(last, last)
    return f"keras.ops.{found}" if hasattr(keras.ops, found) else None


def option(path: str) -> tuple[bool, str]:
    """Returns whether `IPUConfig` has an attribute, and what to do where it does nothing."""
    kind: Any = IPUConfig
    for part in path.split("."):
        member = getattr(kind, part, None)
        if isinstance(member, Option):
            return True, member.advice
        if not isinstance(member, Subcategory):
            near = difflib.get_close_matches(part, members(kind), n=1)
            return False, near[0] if near else f"one of {', '.join(members(kind))}"
        kind = member.kind
    return True, ""


def _member(owner: Any, name: str) -> tuple[bool, Any]:
    if isinstance(owner, ModuleType) and owner.__name__.startswith("millrace."):
        # A lazy attribute may be that of the real TensorFlow, which is not everywhere.
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
