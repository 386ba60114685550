"""Keras on the devices: layers, optimizers, pipeline stages, and the extensions of models.

PipelineStage            -> millrace.PipelineStage
extensions               -> the methods of attached models
IPUModel, Model, ...     -> keras.Model, keras.Sequential: `millrace_ipu.ipu.porting_guide()`
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from millrace import PipelineStage as PipelineStage
from millrace_ipu.ipu.replacements import submodule as _submodule

if TYPE_CHECKING:
    from millrace_ipu.ipu.keras.extensions.arguments import ReplicatedMetricReductionMethod

_MODULES = ("extensions", "layers", "optimizers")


def __getattr__(name: str) -> "ModuleType | type[ReplicatedMetricReductionMethod]":
    if name == "ReplicatedMetricReductionMethod":
        return importlib.import_module("millrace_ipu.ipu.keras.extensions").__dict__[name]
    return _submodule(__name__, name, _MODULES)
