"""Model classes of releases before 2.4. Each says what has taken its place.

IPUModel, Model              -> keras.Model
IPUSequential, Sequential    -> keras.Sequential
PipelineModel                -> keras.Model and PipelineStage or set_pipeline_stage_assignment
PipelineSequential           -> keras.Sequential and set_pipeline_stage_assignment
"""

from typing import Any

from millrace.errors import ModelError


class _Replaced:
    replacement, stages = "keras.Model", ""

    def __init__(self, *args: Any, **kwargs: Any):
        raise ModelError(
            f"ipu.keras.{type(self).__name__} was removed. Build a {self.replacement} in `with "
            f"strategy.scope()`{self.stages}. ipu.porting_guide() lists what became of its "
            "arguments."
        )


class IPUModel(_Replaced):
    """Became `keras.Model`."""


class Model(_Replaced):
    """Became `keras.Model`."""


class IPUSequential(_Replaced):
    """Became `keras.Sequential`."""

    replacement = "keras.Sequential"


class Sequential(IPUSequential):
    """Became `keras.Sequential`."""


class PipelineModel(_Replaced):
    """Became `keras.Model` with pipeline stages."""

    stages = (
        ", and put its layers into stages by `with ipu.keras.PipelineStage(...)` or by "
        "model.set_pipeline_stage_assignment()"
    )


class PipelineSequential(_Replaced):
    """Became `keras.Sequential` with pipeline stages."""

    replacement = "keras.Sequential"
    stages = ", and put its layers into stages by model.set_pipeline_stage_assignment()"
