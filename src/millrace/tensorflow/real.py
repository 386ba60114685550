"""The real TensorFlow, where it is installed: for names that this package does not have.

It is imported when it is first needed, which takes seconds. While `tensorflow` in `sys.modules` is
this package (porting/serve.py), it steps aside for the import, and comes back after it.
"""

import functools
import importlib
import importlib.machinery
import sys
from types import ModuleType
from typing import Any


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
_SHARED = ("tensorflow", "tensorflow.python")


def is_in_real_graph() -> bool:
    """Whether a function of the real TensorFlow is being traced, such as one given to map()."""
    return bool(_loaded) and not _loaded[0].executing_eagerly()


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
