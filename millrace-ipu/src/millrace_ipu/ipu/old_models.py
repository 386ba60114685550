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


def porting_guide() -> str:
    """Returns a table of old model classes and arguments with their replacements."""
    return _GUIDE
