"""Dispatch of an operation of `tf` to Keras, to a later session, or to the real TensorFlow.

arrays, symbolic tensors of Keras     a function of this package, on `keras.ops`
deferred values                       a session that runs later                  graph_mode.py
tensors of the real TensorFlow        TensorFlow: in functions given to map(), for example
names that this package lacks         TensorFlow, if it is installed

TensorFlow is imported on first use, since the import takes seconds. Where this package stands in
`sys.modules` under the name `tensorflow` (porting/running/serve.py), it is taken out for the import
and put back afterwards.
"""

import functools
import importlib
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax

from millrace_ipu.tensorflow.graph_mode import Deferred, is_deferred
from millrace_ipu.tensorflow.replacements import INSTALL, OPERATIONS, operation, unsupported

_FIRST = ("input_tensor", "input", "tensor", "value", "values", "x", "features", "logits")
_SHARED = ("tensorflow", "tensorflow.python")


def op(path: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an operation of `tf`, which takes its first argument under any name of `tf`.

    Args:
        path: its name under `tf`.
        function: computes it on arrays, symbolic tensors of Keras and numbers.
    """

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        if is_in_real_graph() or any(map(is_real_tensor, jax.tree.leaves((args, kwargs)))):
            return real_name(path)(*args, **kwargs)
        kwargs.pop("name", None)
        if not args and next(iter(inspect.signature(function).parameters)) not in kwargs:
            first = next((k for k in _FIRST if k in kwargs), None)
            args = () if first is None else (kwargs.pop(first),)
        if is_deferred((args, kwargs)):
            return Deferred(function, args, kwargs)
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = path.rpartition(".")[2]
    return call


def operations(
    package: str, functions: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Returns operations by their names under `tf.package`; an empty one is `tf` itself."""
    start = f"{package}." if package else ""
    return {name: op(f"{start}{name}", function) for name, function in functions.items()}


def real_name(path: str, advice: str = "") -> Any:
    """Returns an attribute of the real TensorFlow; without it, one that raises when it is used.

    Args:
        path: its dotted name, such as `data.TFRecordDataset`.
        advice: an alternative to write, for the message.

    Raises:
        AttributeError: if TensorFlow is not installed and nothing replaces the name, or if it has
            no such name.
    """
    last = path.rpartition(".")[2]
    # `__internal__` is a module; Python itself asks for all other names of this form.
    is_python = last.startswith("__") and last != "__internal__"
    value: Any = None if is_python else real_tensorflow()
    if value is None:
        refusing = None if is_python else unsupported(path)
        if refusing is not None:
            return refusing
        instead = operation(path, OPERATIONS) or "keras.ops or jax.numpy"
        raise AttributeError(
            f"millrace_ipu.tensorflow has no {path!r}: it has only the names that IPU programs use "
            f"most. {advice or f'Write it with {instead}'}, or run {INSTALL}: "
            "millrace_ipu.tensorflow then has all names of it."
        )
    for name in path.split("."):
        value = getattr(value, name)
    return value


def is_real_tensor(value: object) -> bool:
    """Whether a value is a tensor of the real TensorFlow."""
    return type(value).__module__.startswith("tensorflow.python.")


def is_in_real_graph() -> bool:
    """Whether the real TensorFlow is tracing a function, such as one given to map()."""
    return bool(_loaded) and not _loaded[0].executing_eagerly()


def is_installed() -> bool:
    """Whether TensorFlow is installed; does not import it."""
    return importlib.machinery.PathFinder.find_spec("tensorflow") is not None


@functools.cache
def real_tensorflow() -> ModuleType | None:
    """Returns the real TensorFlow; None if it is not installed."""
    if not is_installed():
        return None
    served = {k: m for k, m in sys.modules.items() if k.partition(".")[0] == "tensorflow"}
    finders = [f for f in sys.meta_path if getattr(f, "serves", "") == "tensorflow"]
    for key in served:
        del sys.modules[key]
    for finder in finders:
        sys.meta_path.remove(finder)
    try:
        real = importlib.import_module("tensorflow")
        _real_modules.update({name: sys.modules[name] for name in _SHARED if name in sys.modules})
    finally:
        sys.meta_path[:0] = finders
        sys.modules.update(served)
    _loaded.append(real)
    return real


def restore_real_modules() -> None:
    """Puts the real TensorFlow back into `sys.modules`, if it was imported.

    A process can import it only once.
    """
    sys.modules.update(_real_modules)


_loaded: list[Any] = []
_real_modules: dict[str, ModuleType] = {}  # those whose names this package takes
