"""What models of an `IPUStrategy` can do more than Keras's.

SequentialExtension, FunctionalExtension, ModelExtension    -> for isinstance()
..PipelineStageAssignment                                   -> millrace's, by other names
ReplicatedMetricReductionMethod                             -> names of set_replication_options
"""

from millrace.ipu.keras.extensions.assignments import (
    FunctionalLayerPipelineStageAssignment as FunctionalLayerPipelineStageAssignment,
)
from millrace.ipu.keras.extensions.assignments import (
    FunctionalNestedModelPipelineStageAssignment as FunctionalNestedModelPipelineStageAssignment,
)
from millrace.ipu.keras.extensions.assignments import (
    ModelLayerPipelineStageAssignment as ModelLayerPipelineStageAssignment,
)
from millrace.ipu.keras.extensions.assignments import (
    NestedModelPipelineStageAssignment as NestedModelPipelineStageAssignment,
)
from millrace.ipu.keras.extensions.assignments import (
    SequentialLayerPipelineStageAssignment as SequentialLayerPipelineStageAssignment,
)
from millrace.ipu.keras.extensions.assignments import (
    SequentialNestedModelPipelineStageAssignment as SequentialNestedModelPipelineStageAssignment,
)
from millrace.ipu.keras.extensions.kinds import FunctionalExtension as FunctionalExtension
from millrace.ipu.keras.extensions.kinds import ModelExtension as ModelExtension
from millrace.ipu.keras.extensions.kinds import SequentialExtension as SequentialExtension
from millrace.ipu.keras.extensions.metric_reduction import (
    ReplicatedMetricReductionMethod as ReplicatedMetricReductionMethod,
)
