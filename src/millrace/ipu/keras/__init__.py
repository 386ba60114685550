"""Keras on the devices: layers, pipeline stages, and what models of a strategy can do more.

PipelineStage                     -> millrace.PipelineStage
extensions                        -> the methods of attached models
IPUModel, Model, ...              -> keras.Model, keras.Sequential: `millrace.ipu.porting_guide()`
"""

import importlib
from typing import Any

from millrace.ipu.old_models import IPUModel as IPUModel
from millrace.ipu.old_models import IPUSequential as IPUSequential
from millrace.ipu.old_models import Model as Model
from millrace.ipu.old_models import PipelineModel as PipelineModel
from millrace.ipu.old_models import PipelineSequential as PipelineSequential
from millrace.ipu.old_models import Sequential as Sequential
from millrace.pipelines.assignment.marks import PipelineStage as PipelineStage

_MODULES = ("extensions", "layers", "optimizers")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"millrace.ipu.keras.{name}")
    if name == "ReplicatedMetricReductionMethod":
        return importlib.import_module("millrace.ipu.keras.extensions").__dict__[name]
    raise AttributeError(f"module 'millrace.ipu.keras' has no attribute {name!r}")
