"""What a strategy returns: attributes with types, which editors complete."""

import pathlib
from typing import assert_type

import keras

import millrace

strategy = millrace.Strategy(report_dir="run", memory="8GB")
model = strategy.attach(keras.Sequential([keras.layers.Dense(1)]))
batch = (((32, 8), "float32"), ((32, 1), "float32"))

report = strategy.memory_report(model, batch, "1.5GB")
print(report)
print(report.chang)  # pyright: ignore[reportAttributeAccessIssue]
plan = strategy.plan(model, batch, memory="12GB", measure=True)
assert_type(plan, millrace.TrainingPlan)
plan.apply()
model.fit(batch_size=plan.batch_size)
assert_type(plan.batch_size, int)
run = strategy.records()
for loop in run.loops:
    assert_type(loop.compile_seconds, float)
print(run.loop)  # pyright: ignore[reportAttributeAccessIssue]
assert_type(millrace.records.load("run").path, pathlib.Path)
assert_type(strategy.statistics().compilations, int)
print(strategy.statistics().compilation)  # pyright: ignore[reportAttributeAccessIssue]
for record in strategy.compile_log:
    print(record.origin.value)
