"""The table of replacements for the model classes that `ipu.keras` had before release 2.4."""


def porting_guide() -> str:
    """Returns a table of old model classes and arguments with their replacements."""
    width = max(len(old) for old, _ in (*CLASSES, *ARGUMENTS))
    rows = [("old class", "new"), *CLASSES, ("", ""), ("old argument", "new"), *ARGUMENTS]
    return "\n".join(f"{old:<{width}}  {new}".rstrip() for old, new in rows)


CLASSES = (
    ("ipu.keras.IPUModel, ipu.keras.Model", "keras.Model in `with strategy.scope()`"),
    ("ipu.keras.IPUSequential, ipu.keras.Sequential", "keras.Sequential in the scope"),
    (
        "ipu.keras.PipelineSequential",
        "keras.Sequential, model.set_pipeline_stage_assignment([...])",
    ),
    (
        "ipu.keras.PipelineModel",
        "keras.Model, `with ipu.keras.PipelineStage(i)` or set_pipeline_stage_assignment([...])",
    ),
)
_PIPELINING = "model.set_pipelining_options(...)"
ARGUMENTS = (
    (
        "gradient_accumulation_count",
        "gradient_accumulation_steps_per_replica of model.set_gradient_accumulation_options(...), "
        "pipelined: of set_pipelining_options(...)",
    ),
    (
        "gradient_accumulation_dtype",
        "gradient_accumulation_dtype of set_pipelining_options(...), else dtype of "
        "set_gradient_accumulation_options(...)",
    ),
    ("device_mapping (of PipelineModel)", "the stage assignment"),
    *(
        (name, _PIPELINING)
        for name in (
            "batch_serialization_iterations",
            "pipeline_schedule",
            "recomputation_mode",
            "forward_propagation_stages_poplar_options",
            "backward_propagation_stages_poplar_options",
            "weight_update_poplar_options",
            "offload_weight_update_variables",
            "replicated_optimizer_state_sharding",
            "offload_activations",
            "offload_gradient_accumulation_buffers",
            "replicated_weight_sharding",
            "offload_weights",
        )
    ),
)
