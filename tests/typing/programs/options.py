"""Options with right and wrong values: wrong types, names and choices are errors."""

import keras

import millrace

model = millrace.Strategy().attach(keras.Sequential([keras.layers.Dense(1)]))

model.set_gradient_accumulation_options(
    gradient_accumulation_steps_per_replica=4,
    gradient_accumulation_reduction_method="running_mean",
    dtype=lambda variable: "float32" if variable.dtype == "bfloat16" else None,
    micro_batch="auto",
    offload_weight_update_variables=False,
)
model.set_gradient_accumulation_options(
    gradient_accumulation_steps_per_replica="4",  # pyright: ignore[reportArgumentType]
    gradient_accumulation_reduction_method="average",  # pyright: ignore[reportArgumentType]
    dtype=16,  # pyright: ignore[reportArgumentType]
    micro_batch="most",  # pyright: ignore[reportArgumentType]
    offload_weight_update_variables="yes",  # pyright: ignore[reportArgumentType]
)
model.set_gradient_accumulation_options(4)  # pyright: ignore[reportCallIssue]
model.set_replication_options(
    replicated_metric_reduction_method="list", replicated_weight_sharding=True
)
model.set_replication_options(
    replicated_metric_reduction_method="lists"  # pyright: ignore[reportArgumentType]
)
model.set_recomputation_options(mode="recompute_and_backpropagate_interleaved")
model.set_recomputation_options(mode="interleaved")  # pyright: ignore[reportArgumentType]
model.set_infeed_queue_options(max_wait_seconds=1.5, max_block_bytes=1 << 20)
model.set_infeed_queue_options(max_wait_seconds="long")  # pyright: ignore[reportArgumentType]
millrace.Strategy(on_recompile="error", memory="12GB")
millrace.Strategy(on_recompile="raise")  # pyright: ignore[reportArgumentType]
