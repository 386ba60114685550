"""`ipu_tensorflow_addons`: its `keras.layers` are those of `millrace_ipu.ipu`.

ipu_tensorflow_addons.keras   -> millrace_ipu.ipu.keras, by an alias of `millrace_ipu.ipu`
"""

from types import ModuleType
from typing import TYPE_CHECKING

from millrace_ipu.ipu.replacements import submodule as _submodule

if TYPE_CHECKING:
    from millrace_ipu.ipu import keras as keras


def __getattr__(name: str) -> ModuleType:
    return _submodule(__name__, name, ("keras",))
