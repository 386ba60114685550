"""Keras on the devices: layers, optimizers, pipeline stages, and the extensions of models.

PipelineStage                     -> millrace.PipelineStage
extensions                        -> the methods of attached models
IPUModel, Model, ...              -> keras.Model, keras.Sequential: `millrace.ipu.porting_guide()`
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from millrace.ipu.lazy_modules import submodule as _submodule
from millrace.pipelines.assignment.marks import PipelineStage as PipelineStage

if TYPE_CHECKING:
    from millrace.ipu.keras.extensions.arguments import ReplicatedMetricReductionMethod

_MODULES = ("extensions", "layers", "optimizers")


def __getattr__(name: str) -> "ModuleType | type[ReplicatedMetricReductionMethod]":
    if name == "ReplicatedMetricReductionMethod":
        return importlib.import_module("millrace.ipu.keras.extensions").__dict__[name]
    return _submodule(__name__, name, _MODULES)
