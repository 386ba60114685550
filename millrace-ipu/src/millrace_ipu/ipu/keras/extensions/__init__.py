"""The extensions of Keras models under an `IPUStrategy`: options, pipeline stages, saving.

SequentialExtension, FunctionalExtension, ModelExtension    -> for isinstance()
..PipelineStageAssignment                                   -> millrace's, by other names
ReplicatedMetricReductionMethod                             -> names of set_replication_options
"""

from millrace_ipu.ipu.keras.extensions.arguments import (
    ReplicatedMetricReductionMethod as ReplicatedMetricReductionMethod,
)
from millrace_ipu.ipu.keras.extensions.building import FunctionalExtension as FunctionalExtension
from millrace_ipu.ipu.keras.extensions.building import ModelExtension as ModelExtension
from millrace_ipu.ipu.keras.extensions.building import SequentialExtension as SequentialExtension
from millrace_ipu.ipu.keras.extensions.stages import (  # noqa: F401 - names of this module
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)
