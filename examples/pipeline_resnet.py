"""ResNet50 from `keras.applications`, in two stages: cut by hand, then balanced.

A stock model is built as usual, and its calls are then listed in execution order. The first cut
walks that list up to a chosen block; the second lets millrace balance the FLOPs.
"""

import millrace  # before Keras: it makes JAX the backend
import keras


def print_costs():
    """Prints the second table of the summary; the first has one line for each of 176 calls."""
    lines = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    print("\n".join(lines[-6:]))


with millrace.Strategy(devices="cpu:2").scope():
    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)

stage, assignment = 0, model.get_pipeline_stage_assignment()
for call in assignment:
    call.pipeline_stage = stage
    if call.layer.name == "conv4_block2_add":
        stage = 1  # from the next call on
model.set_pipeline_stage_assignment(assignment)
print(f"{len(assignment)} calls, cut by hand after conv4_block2_add:")
print_costs()

model.set_pipeline_stage_assignment("auto", num_stages=2)
first = next(call for call in model.get_pipeline_stage_assignment() if call.pipeline_stage)
print(f"balanced: the second stage starts with {first.layer.name}")
print_costs()
