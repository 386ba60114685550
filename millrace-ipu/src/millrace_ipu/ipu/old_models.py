"""The table of replacements for the model classes that `ipu.keras` had before release 2.4."""

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
batch_serialization_iterations,             the same of model.set_pipelining_options(...)
pipeline_schedule, recomputation_mode,
*_poplar_options, offload_weights,
offload_weight_update_variables,
offload_activations,
offload_gradient_accumulation_buffers,
replicated_optimizer_state_sharding,
replicated_weight_sharding
"""


def porting_guide() -> str:
    """Returns a table of old model classes and arguments with their replacements."""
    return _GUIDE
