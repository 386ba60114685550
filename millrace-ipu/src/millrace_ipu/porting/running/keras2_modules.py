"""Old names of Keras, served to programs while they run: by imports, and as attributes.

from keras.layers.core import Dense                       `module_aliases`
keras.layers.CuDNNLSTM, keras.backend.mean, keras.ipu     `old_attribute`
keras.layers.LocallyConnected1D                           an error that says what to write
"""

import importlib
from typing import Any

from millrace_ipu._compat.keras_attributes import build_resnet, legacy_preprocessing
from millrace_ipu.porting.keras2_names import (
    BETTER,
    GONE,
    MODULES,
    NAMES,
    VALUES,
    advice,
    module_now,
)
from millrace_ipu.tensorflow.keras_backend import OPS

_LEGACY = "keras.preprocessing.text"  # the only one of them that Keras 3 does not have at all


class ReductionNames:
    """The names of reductions of losses in Keras 2."""

    AUTO = SUM_OVER_BATCH_SIZE = "sum_over_batch_size"
    SUM = "sum"
    NONE = "none"


def _thresholded(theta: float = 1.0, **options: Any) -> Any:
    return importlib.import_module("keras").layers.ReLU(threshold=theta, **options)


_OBJECTS = {
    "keras.losses.Reduction": ReductionNames,
    "keras.losses.ReductionV2": ReductionNames,
    "keras.layers.ThresholdedReLU": _thresholded,
    "keras.applications.resnet.ResNet": build_resnet,
}


def module_aliases() -> dict[str, str]:
    """Returns the names of modules that serve the imports of old ones."""
    return {**MODULES, _LEGACY: legacy_preprocessing()[_LEGACY].__name__}


def patched_modules() -> set[str]:
    """Returns the names of the modules of Keras 3 that old attributes are read from."""
    parents = {n.rpartition(".")[0] for n in (*NAMES, *GONE, *BETTER, *VALUES, *MODULES)}
    return {name for name in parents if name.startswith("keras") and _is_module(name)}


def old_attribute(module: str, name: str) -> Any:
    """Returns the value of an attribute that Keras 3 does not have.

    Args:
        module: its name in Keras 3.
        name: of the attribute.

    Raises:
        AttributeError: for a name that Keras 2 did not have either, or that has no equivalent; the
            message then says what to write.
    """
    full = f"{module}.{name}"
    if module == "keras.backend" and name in OPS:
        return OPS[name]
    if full in _OBJECTS:
        return _OBJECTS[full]
    for old in _old_names(module, name):
        if old in NAMES:
            return _value(NAMES[old])
        if old in MODULES or old in (_LEGACY, "keras.ipu"):
            return importlib.import_module(old)
    legacy = legacy_preprocessing().get(module)
    if legacy is not None and hasattr(legacy, name):
        return getattr(legacy, name)
    instead = next(filter(None, map(advice, _old_names(module, name))), None)
    if instead is not None:
        raise AttributeError(
            f"Keras 3 has no {full}. Write {instead}.",
            name=name,
            obj=importlib.import_module(module),
        )
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def _old_names(module: str, name: str) -> tuple[str, ...]:
    """Returns a name in a module, and in the old modules that the module stands for."""
    olds = (old for old, new in MODULES.items() if new == module)
    return tuple(f"{old}.{name}" for old in (module, *olds))


def _value(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def _is_module(name: str) -> bool:
    if module_now(name) is not None:
        return False  # an import of it would succeed, and add it to its package
    try:
        return importlib.import_module(name).__name__ == name
    except ImportError:
        return False
