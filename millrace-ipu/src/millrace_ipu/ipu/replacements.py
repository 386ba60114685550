"""Replacements for names of `tensorflow.python.ipu` that are not here.

A name gets the longest entry that it begins with. `millrace port` prints these, and at run time the
error of the name says them.

    ipu.custom_ops.precompiled_user_op(...)      UnsupportedNameError: ... In its place: ...
    import tensorflow.python.ipu.custom_ops      works
"""

import importlib
from collections.abc import Collection
from typing import Any

from millrace_ipu.tensorflow.replacements import CUSTOM, FEEDS, FIT, PROCESSES, SERVING
from millrace_ipu.tensorflow.unsupported import Unsupported, UnsupportedModule, longest

LOOKUP = "keras.layers.Embedding; for a table larger than a device: look rows up in the data set"
_SUM_PER_GROUP = "keras.ops.segment_sum(x, ids, num_segments)"
_ON_HOST = "jax.experimental.multihost_utils.process_allgather, and NumPy"
_ROWS = "jax.lax.dynamic_slice, or keras.ops.take"

IPU = {
    "ipu.keras.IPUModel": "keras.Model, in the scope of an IPUStrategy",
    "ipu.keras.Model": "keras.Model, in the scope of an IPUStrategy",
    "ipu.keras.IPUSequential": "keras.Sequential, in the scope of an IPUStrategy",
    "ipu.keras.Sequential": "keras.Sequential, in the scope of an IPUStrategy",
    "ipu.keras.PipelineSequential": "keras.Sequential and model.set_pipeline_stage_assignment()",
    "ipu.keras.PipelinedModel": "keras.Model with ipu.keras.PipelineStage scopes",
    "ipu.keras.PipelineModel": "keras.Model with ipu.keras.PipelineStage scopes",
    "ipu.ipu_estimator": FIT,
    "ipu.ipu_pipeline_estimator": f"{FIT}, with model.set_pipeline_stage_assignment()",
    "ipu.ipu_run_config": "ipu.config.IPUConfig, and arguments of model.compile",
    "ipu.ipu_session_run_hooks": "a keras.callbacks.Callback",
    "ipu.embedding_ops": LOOKUP,
    "ipu.custom_ops": CUSTOM,
    "ipu.custom_op_utils": CUSTOM,
    "ipu.serving": SERVING,
    "ipu.application_compile_op": SERVING,
    "ipu.embedded_runtime": SERVING,
    "ipu.horovod": PROCESSES,
    "ipu.distributed": PROCESSES,
    "ipu.ipu_multi_worker_strategy": PROCESSES,
    "ipu.autoshard": "ipu.keras.PipelineStage, or model.set_pipeline_stage_assignment()",
    "ipu.autoshard_cnn": "ipu.keras.PipelineStage, or model.set_pipeline_stage_assignment()",
    "ipu.sharding": "ipu.keras.PipelineStage, or model.set_pipeline_stage_assignment()",
    "ipu.verification": "remove it: transfers to devices are not encrypted",
    "ipu.internal_ops": "jax.debug.print",
    "ipu.control_flow_ops": "jax.lax.optimization_barrier",
    "ipu.functional_ops": "the function itself: XLA shares equal code",
    "ipu.nn_ops": "keras.ops, or the layer of ipu.keras.layers",
    "ipu.normalization_ops": "ipu.keras.layers.GroupNorm, InstanceNorm or LayerNorm",
    "ipu.rnn_ops": "ipu.keras.layers.LSTM or GRU",
    "ipu.rand_ops": "keras.random.dropout",
    "ipu.f8_ops": "a dtype policy of Keras, such as 'mixed_bfloat16'",
    "ipu.data": FEEDS,
    "ipu.data.ops.dataset_ops.BufferDataset": "dataset.take(len(dataset) // n * n)",
    "ipu.dataset_extractor": FEEDS,
    "ipu.vertex_edsl": CUSTOM,
    "ipu.image_ops": "keras.ops.image, or keras.ops.cast and arithmetic",
    "ipu.optimizers.automatic_loss_scaling_optimizer": "keras.optimizers.LossScaleOptimizer",
    "ipu.optimizers.AutomaticLossScalingOptimizer": "keras.optimizers.LossScaleOptimizer",
    "ipu.keras.optimizers.ALSOptimizer": "keras.optimizers.LossScaleOptimizer",
    "ipu.optimizers.sharded_optimizer": "the optimizer alone: pipelines update their own stages",
    "ipu.utils.extract_": "POPLAR_ENGINE_OPTIONS, and `millrace report`",
    "ipu.addons.keras.layers": "the layer of keras.layers",
    "ipu.addons.keras.optimizers": "keras.optimizers.Adam, SGD or Lamb",
    "ipu.all_to_all_op": "ipu.cross_replica_ops.cross_replica_sum",
    "ipu.distributed.allgather": _ON_HOST,
    "ipu.distributed.allreduce": _ON_HOST,
    "ipu.distributed.all_reduce": _ON_HOST,
    "ipu.distributed.broadcast": _ON_HOST,
    "ipu.distributed.host_collective_ops": _ON_HOST,
    "ipu.driver": "strategy.statistics(), or `millrace report`",
    "ipu.gen_ipu_ops": "the function of tensorflow.python.ipu that calls it",
    "ipu.gen_ipu_ops.ipu_event_trace": "POPLAR_ENGINE_OPTIONS, and `millrace report`",
    "ipu.image_ops.normalise_image": "(image * scale - offsets) / deviations, in the data set",
    "ipu.keras.layers.CTCInferenceLayer": "keras.ops.ctc_decode",
    "ipu.keras.layers.CTCPredictionsLayer": "keras.ops.ctc_decode",
    "ipu.keras.layers.CaptureActivationGradients": "the layer that it wraps",
    "ipu.keras.layers.EffectiveTransformer": "keras.layers.MultiHeadAttention",
    "ipu.keras.losses": "keras.losses.CTC()",
    "ipu.keras.optimizers.LAMBIpuOptimizer": "keras.optimizers.Lamb",
    "ipu.keras.optimizers.LARSIpuOptimizer": "keras.optimizers.Lamb, or SGD",
    "ipu.math_ops": _SUM_PER_GROUP,
    "ipu.nn_ops.ctc_": "keras.ops.ctc_loss",
    "ipu.reduce_scatter_op": "ipu.cross_replica_ops.cross_replica_sum",
    "ipu.slicing_ops": _ROWS,
    "ipu.statistics_ops": "jax.numpy.histogram",
    "ipu.utils.set_experimental_": "config.experimental.multi_replica_distribution",
    "ipu.within_replica_ops": "remove it: one replica of a stage has one device group",
}  # fmt: skip

_GUIDE = """\
old class                                   new
ipu.keras.IPUModel, ipu.keras.Model         keras.Model in `with strategy.scope()`
ipu.keras.IPUSequential, .Sequential        keras.Sequential in the scope
ipu.keras.PipelineSequential                keras.Sequential, set_pipeline_stage_assignment([...])
ipu.keras.PipelineModel                     keras.Model, `with ipu.keras.PipelineStage(i)`

old argument                                new
gradient_accumulation_count                 gradient_accumulation_steps_per_replica of
                                            model.set_gradient_accumulation_options(...),
                                            pipelined: of set_pipelining_options(...)
gradient_accumulation_dtype                 the same of set_pipelining_options(...), else dtype of
                                            set_gradient_accumulation_options(...)
device_mapping (of PipelineModel)           the stage assignment
batch_serialization_iterations              of model.set_pipelining_options(...)
pipeline_schedule                           of model.set_pipelining_options(...)
recomputation_mode                          of model.set_pipelining_options(...)
*_poplar_options                            of model.set_pipelining_options(...)
offload_weight_update_variables             of model.set_pipelining_options(...)
offload_activations                         of model.set_pipelining_options(...)
offload_gradient_accumulation_buffers       of model.set_pipelining_options(...)
offload_weights                             of model.set_pipelining_options(...)
replicated_optimizer_state_sharding         of model.set_pipelining_options(...)
replicated_weight_sharding                  of model.set_pipelining_options(...)
"""


def replacement(path: str) -> str | None:
    """Returns what to write in place of a name; None if nothing is known of it.

    Args:
        path: the dotted name under `ipu`; `ops.nn_ops` is `nn_ops`.
    """
    return longest(IPU, f"ipu.{path}")


def unsupported_modules() -> set[str]:
    """Returns the names of modules that the tables name as a whole."""
    return {name.split(".")[1] for name in IPU if name.count(".") == 1}


def unsupported_module(name: str) -> UnsupportedModule | None:
    """Returns a module in place of one of `tensorflow.python.ipu`; None if nothing is known of it.

    Args:
        name: its full name under `millrace_ipu.ipu`, or another of its names.
    """
    path = name.partition(".ipu.")[2].removeprefix("ops.")
    if replacement(path) is None:
        return None
    return UnsupportedModule(name, f"ipu.{path}", _instead)


def other_name(module: str, name: str) -> Any:
    """Returns the object of a name that a module does not have; it raises when it is used.

    Args:
        module: the name of a module of `millrace_ipu.ipu`.
        name: the attribute that a program reads.

    Raises:
        AttributeError: if nothing is known of the name.
    """
    path = f"{module.removeprefix('millrace_ipu.ipu').removeprefix('.')}.{name}".removeprefix(".")
    path = path.removeprefix("ops.")
    if name.startswith("__") or replacement(path) is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return Unsupported(f"ipu.{path}", _instead)


def submodule(package: str, name: str, modules: Collection[str]) -> Any:
    """Imports a module of a package; returns a name that raises for one that is not here.

    Args:
        package: its full name.
        name: the attribute that a program reads.
        modules: the names of the package's modules.

    Raises:
        AttributeError: for a name that is not among them, and that nothing replaces.
    """
    if name not in modules:
        return other_name(package, name)
    return importlib.import_module(f"{package}.{name}")


def _instead(shown: str) -> str:
    return replacement(shown.removeprefix("ipu.")) or ""


def porting_guide() -> str:
    """Returns a table of old model classes and arguments with their replacements."""
    return _GUIDE
