"""What to write for a name that millrace does not have.

keras.layers.core.Dense               keras.layers.Dense          it moved           keras2_names.py
tensorflow.python....dataset_ops...   tf.data.Dataset             it has a public name
tf.nn.ctc_loss                        keras.ops.ctc_loss          the tables of advice     advice.py
tf.math.erfinv                        keras.ops.erfinv            an operation of Keras, or of JAX
keras.layers.Dens                     keras.layers.Dense         a name of nearly the same letters
"""

import difflib
import functools
import importlib
import inspect
from collections.abc import Sequence

from millrace.extend import is_own_module
from millrace_ipu.ipu.advice import ADVICE as IPU_ADVICE
from millrace_ipu.porting import advice, keras2_names
from millrace_ipu.porting.findings.signatures import value_of
from millrace_ipu.porting.private_paths import public_name
from millrace_ipu.porting.replacements import (
    IPU,
    MODULES,
    OPERATIONS,
    TENSORFLOW,
    canonical,
    exists,
    longest,
    operation,
)
from millrace_ipu.tensorflow.advice import ADVICE as TENSORFLOW_ADVICE

_OF_JAX = ("jax.numpy", "jax.lax", "jax.nn", "jax.scipy.special", "jax.numpy.linalg", "jax.random")
_MODULES = ("layers", "optimizers", "losses", "metrics", "utils", "callbacks", "initializers")
_MODULES += ("regularizers", "constraints", "activations", "optimizers.schedules", "random", "ops")
_INSTALL = "a function of jax.numpy; or pip install tensorflow, which has the name"
_LEAST = 0.8  # how alike two names must be, as a share of their letters


def what_to_write(name: str) -> str:
    """Returns the text to write for a canonical name that does not exist.

    Args:
        name: a name of TensorFlow, Keras, or of the IPU's package.
    """
    name = canonical(name)
    root = name.partition(".")[0]
    public = public_name(name, exists)
    if public is not None:
        name, root = public, public.partition(".")[0]
        if exists(public):
            return shown(public)
    if name.startswith("tensorflow.python."):
        name = f"tensorflow.{name.rpartition('.')[2]}"
        if exists(name):
            return shown(name)
    if root == "ipu":
        return _of_ipu(name)
    return _of_keras(name) if root == "keras" else _of_tensorflow(name)


def shown(name: str) -> str:
    """Returns a canonical name as programs spell it: `tf.data`."""
    return f"tf.{name[11:]}" if name.startswith("tensorflow.") else name


def nearest(name: str, others: Sequence[str], least: float = _LEAST) -> str | None:
    """Returns the name that is written most like another one; None if none is like it."""
    lower = {each.lower(): each for each in others}
    near = difflib.get_close_matches(name.lower(), [*lower], n=1, cutoff=least)
    return lower[near[0]] if near else None


def _of_keras(name: str) -> str:
    new = advice.KERAS.get(name) or keras2_names.VALUES.get(name) or keras2_names.new_name(name)
    if new is None:
        new = keras2_names.advice(name) or longest(advice.KERAS, name)
    if new is not None:
        return new
    last = name.rpartition(".")[2]
    for module in _MODULES:
        if exists(f"keras.{module}.{last}"):
            return f"keras.{module}.{last}"
    if exists(f"keras.{last}"):
        return f"keras.{last}"
    near = _sibling(name) or nearest(last, [*_index()])
    if near is not None:
        return _index().get(near, near)
    if last.islower():
        return _operation(name) or "the code of the function itself: Keras 3 has none like it"
    return "a keras.layers.Layer of your own: Keras 3 has no class like it"


def _of_tensorflow(name: str) -> str:
    short = name.replace("tensorflow.compat.v1.", "tensorflow.").replace("compat.v2.", "")
    for each in (name, short):
        text = longest(TENSORFLOW_ADVICE, each)
        if text is not None:
            return text
    text = longest(TENSORFLOW, name) or longest(TENSORFLOW, short)
    result = _operation(short)
    if result is not None and (text is None or result.startswith("keras.")):
        return result
    near = None if text is not None else _sibling(short)
    if near is None and text is None:
        near = nearest(short.rpartition(".")[2], _members("keras.ops"))
        near = near and f"keras.ops.{near}"
    return text or (near and shown(near)) or _INSTALL


def _of_ipu(name: str) -> str:
    text = longest(IPU_ADVICE, name) or longest(IPU, name)
    text = text or longest(IPU, f"ipu.keras.{name.rpartition('.')[2]}") or _sibling(name)
    if text is not None:
        return text
    owner = name.rpartition(".")[0]
    while not exists(owner):
        owner = owner.rpartition(".")[0]
    members = _members(owner)
    if not members or owner == "ipu":
        return f"remove it: there is no {name.rpartition('.')[0] or name} outside of the IPU"
    return f"remove it: {owner} has {', '.join(members[:12])}"


def _operation(name: str) -> str | None:
    """Returns the operation of Keras or JAX with the last part of a name."""
    last = name.rpartition(".")[2]
    if name.rpartition(".")[0] in ("tensorflow.random", "tensorflow.image"):
        module = name.split(".")[1]
        inner = "ops.image" if module == "image" else "random"
        if exists(f"keras.{inner}.{last}"):
            return f"keras.{inner}.{last}"
    result = operation(name, OPERATIONS)
    if result is not None:
        return result
    for module in _OF_JAX:
        if hasattr(importlib.import_module(module), last):
            return f"{module}.{last}"
    return None


def _sibling(name: str) -> str | None:
    """Returns the name of nearly the same letters in the same module."""
    owner, _, last = name.rpartition(".")
    if not owner or not exists(owner):
        return None
    near = nearest(last, _members(owner))
    return None if near is None else f"{owner}.{near}"


@functools.cache
def _members(owner: str) -> list[str]:
    """Returns the public names of a module or class that programs may use."""
    names = [name for name in dir(value_of(owner)) if not name.startswith("_")]
    if owner.startswith("keras"):
        return names
    return [name for name in names if _is_own(value_of(f"{owner}.{name}"))]


def _is_own(value: object) -> bool:
    """Whether a value is a class or a function of millrace or Keras, and no import of a module."""
    module = getattr(value, "__module__", None) or ""
    is_own = is_own_module(module) or module.partition(".")[0] == "keras"
    return is_own and not inspect.ismodule(value)


@functools.cache
def _index() -> dict[str, str]:
    """Returns the full name of each public name of Keras, by its last part."""
    index: dict[str, str] = {}
    for module in _MODULES:
        for name in _members(f"keras.{module}"):
            index.setdefault(name, f"keras.{module}.{name}")
    return index


def of_module(name: str) -> str | None:
    """Returns what to write for a package that does not work here; None if it may work."""
    return longest(MODULES, name)
