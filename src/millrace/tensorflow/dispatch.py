"""Who computes an operation of `tf`: Keras, a session later on, or the real TensorFlow.

arrays, symbolic tensors of Keras     the function of this package, on `keras.ops`
deferred values                       a session, later on                        graph_mode.py
tensors of the real TensorFlow        TensorFlow, such as in functions given to map()
names that this package lacks         TensorFlow, if it is installed

TensorFlow is imported when it is first needed, which takes seconds. While `tensorflow` in
`sys.modules` is this package (porting/serve.py), it steps aside for the import, and comes back
after it.
"""

import functools
import importlib
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax

from millrace.tensorflow.graph_mode import Deferred, is_deferred

_FIRST = ("input_tensor", "input", "tensor", "value", "values", "x", "features", "logits")
_SHARED = ("tensorflow", "tensorflow.python")


def op(path: str, function: Callable[..., Any], keeps_names: bool = False) -> Callable[..., Any]:
    """Returns an operation of `tf`.

    Args:
        path: its name under `tf`.
        function: computes it on arrays, symbolic tensors of Keras and numbers.
        keeps_names: whether its arguments are called as those of `tf`. If not, the first may come
            by any of the names that it has there.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_in_real_graph() or any(map(is_real_tensor, jax.tree.leaves((args, kwargs)))):
            return real_name(path)(*args, **kwargs)
        kwargs.pop("name", None)
        if not args and not keeps_names:
            first = next((k for k in _FIRST if k in kwargs), None)
            args = () if first is None else (kwargs.pop(first),)
        if is_deferred((args, kwargs)):
            return Deferred(function, args, kwargs)
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = path.rpartition(".")[2]
    return call


def real_name(path: str, advice: str = "") -> Any:
    """Returns what the real TensorFlow has under a dotted name.

    Args:
        path: such as `data.TFRecordDataset`.
        advice: what else could be written.

    Raises:
        AttributeError: if it is not installed, or has not got it either.
    """
    last = path.rpartition(".")[2]
    # `__internal__` is a module; all else of such names is asked for by Python itself.
    is_python = last.startswith("__") and last != "__internal__"
    found: Any = None if is_python else real_tensorflow()
    if found is None:
        raise AttributeError(
            f"millrace.tensorflow has no {path!r}: it has what IPU programs use most. "
            f"{advice or 'Write it with keras.ops or jax.numpy'}, or install tensorflow, whose "
            "names are found here, too."
        )
    for part in path.split("."):
        found = getattr(found, part)
    return found


def is_real_tensor(value: Any) -> bool:
    """Whether a value is a tensor of the real TensorFlow."""
    return type(value).__module__.startswith("tensorflow.python.")


def is_in_real_graph() -> bool:
    """Whether a function of the real TensorFlow is being traced, such as one given to map()."""
    return bool(_loaded) and not _loaded[0].executing_eagerly()


def is_installed() -> bool:
    """Whether TensorFlow is installed. It is not imported for this."""
    return importlib.machinery.PathFinder.find_spec("tensorflow") is not None


@functools.cache
def real_tensorflow() -> ModuleType | None:
    """Returns the real TensorFlow, None if it is not installed."""
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
        _names.update({name: sys.modules[name] for name in _SHARED if name in sys.modules})
    finally:
        sys.meta_path[:0] = finders
        sys.modules.update(served)
    _loaded.append(real)
    return real


def put_back() -> None:
    """Gives the real TensorFlow its names back, if it was imported: it cannot be twice."""
    sys.modules.update(_names)


_loaded: list[Any] = []
_names: dict[str, Any] = {}  # its modules that have names of ours
