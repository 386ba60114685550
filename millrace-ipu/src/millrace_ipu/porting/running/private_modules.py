"""Private modules of TensorFlow, served with the public names of what was in them.

from tensorflow.python.data.ops.dataset_ops import Dataset     -> tf.data.Dataset
from tensorflow.python.framework import ops, dtypes            -> modules with `tf`'s names
"""

import functools
import importlib
from types import ModuleType
from typing import Any

from millrace_ipu import tensorflow
from millrace_ipu.porting.private_paths import PACKAGES, RENAMED, packages_of, public_name
from millrace_ipu.tensorflow.dispatch import real_name
from millrace_ipu.tensorflow.unsupported import is_supported

_ROOT = "tensorflow.python"
_PARENTS = {path[:i] for path in PACKAGES for i, letter in enumerate(path) if letter == "."}


def private_module(name: str) -> ModuleType | None:
    """Returns a module that stands for a private one of TensorFlow; None for any other name.

    Args:
        name: such as `tensorflow.python.framework.ops`.
    """
    path = name.removeprefix(f"{_ROOT}.")
    listed = path in _PARENTS or packages_of(name) is not None
    return make_private_module(name) if name.startswith(f"{_ROOT}.") and listed else None


def make_private_module(name: str) -> ModuleType:
    """Returns a new module whose attributes are looked up by `private_attribute`."""
    module: Any = ModuleType(f"millrace_ipu.{name}", f"Public names for those of `{name}`.")
    module.__path__ = []
    module.__getattr__ = functools.partial(private_attribute, name)
    return module


def private_attribute(module: str, name: str) -> Any:
    """Returns the value of a name in a private module.

    The names are those of `millrace_ipu.tensorflow`, then of TensorFlow, if it is installed.

    Raises:
        AttributeError: if neither has it; the message has the public name, where there is one.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    full = f"{module}.{name}"
    path = full.removeprefix(f"{_ROOT}.")
    public = public_name(full, _has)
    if public is not None and (path in RENAMED or _has(public)) and path not in PACKAGES:
        return _value(public)
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name is None or not full.startswith(error.name):
            raise
    is_public = public is not None and _has(public)
    advice = f"Write {str(public).replace('tensorflow', 'tf', 1)}" if is_public else ""
    return real_name(full.partition(".")[2], advice)


def _has(name: str) -> bool:
    """Whether a public name exists, and does more than to raise."""
    try:
        return is_supported(_value(name))
    except AttributeError:
        return False


def _value(name: str) -> Any:
    value: Any = tensorflow
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value
