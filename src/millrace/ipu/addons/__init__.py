"""`ipu_tensorflow_addons`: its `keras.layers` are those of `millrace.ipu`.

ipu_tensorflow_addons.keras   -> millrace.ipu.keras, by an alias of `millrace.ipu`
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.ipu import keras as keras


def __getattr__(name: str) -> Any:
    if name == "keras":
        return importlib.import_module("millrace.ipu.keras")
    raise AttributeError(f"module 'millrace.ipu.addons' has no attribute {name!r}")
