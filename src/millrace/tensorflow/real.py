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


@functools.cache
def real_tensorflow() -> ModuleType | None:
    """Returns the real TensorFlow, None if it is not installed."""
    if importlib.machinery.PathFinder.find_spec("tensorflow") is None:
        return None
    served = {k: m for k, m in sys.modules.items() if k.partition(".")[0] == "tensorflow"}
    finders = [f for f in sys.meta_path if getattr(f, "serves", "") == "tensorflow"]
    for key in served:
        del sys.modules[key]
    for finder in finders:
        sys.meta_path.remove(finder)
    try:
        real = importlib.import_module("tensorflow")
    finally:
        sys.meta_path[:0] = finders
        sys.modules.update(served)
    return real


def real_name(path: str, advice: str = "") -> Any:
    """Returns what the real TensorFlow has under a dotted name.

    Args:
        path: such as `data.TFRecordDataset`.
        advice: what else could be written.

    Raises:
        AttributeError: if it is not installed, or has not got it either.
    """
    found: Any = None if path.rpartition(".")[2].startswith("__") else real_tensorflow()
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
