"""Is `millrace.ipu.ops.pipelining_ops`, by its shorter name."""

from millrace.ipu.ops.pipelining_ops import OptimizerFunctionOutput as OptimizerFunctionOutput
from millrace.ipu.ops.pipelining_ops import PipelineSchedule as PipelineSchedule
from millrace.ipu.ops.pipelining_ops import PipelineStageOptions as PipelineStageOptions
from millrace.ipu.ops.pipelining_ops import RecomputationMode as RecomputationMode
from millrace.ipu.ops.pipelining_ops import pipeline as pipeline
from millrace.ipu.ops.pipelining_ops import recomputation_checkpoint as recomputation_checkpoint
