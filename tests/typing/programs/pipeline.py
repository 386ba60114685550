"""The options, stages and shapes of a pipeline."""

from typing import assert_type

import keras
import numpy as np

import millrace

strategy = millrace.Strategy(devices="cpu:2")
with strategy.scope():
    with millrace.PipelineStage(0):
        first = keras.layers.Dense(4)
    model = strategy.attach(keras.Sequential([first, keras.layers.Dense(1)]))

model.set_pipeline_stage_assignment([0, 1])
model.set_pipeline_stage_assignment("auto", num_stages=2, batch_spec=((32, 8), "float32"))
model.set_pipeline_stage_assignment(2)  # pyright: ignore[reportArgumentType]
stages = model.get_pipeline_stage_assignment()
for each in stages:
    assert_type(each.node_index, int)
model.set_pipeline_stage_assignment(stages)
model.set_pipelining_options(
    gradient_accumulation_steps_per_replica=8,
    pipeline_schedule="zero_bubble",
    device_mapping=[0, 1],
    recomputation_mode="auto",
)
model.set_pipelining_options(device_mapping="first")  # pyright: ignore[reportArgumentType]
model.set_pipelining_options(schedule="1f1b")  # pyright: ignore[reportCallIssue]
model.print_pipeline_stage_assignment_summary(print_fn=print, line_length=80)
model.reset_pipeline_stage_assignment()
x = np.zeros((32, 8), "float32")
model.precompile((x, x[:, :1]), steps_per_epoch=10)
model.precompile((x, x[:, :1]), steps=10)  # pyright: ignore[reportCallIssue]
