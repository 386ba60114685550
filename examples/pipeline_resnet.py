"""ResNet50 from `keras.applications`, in two stages: cut by hand, then balanced.

A stock model is built as usual, and its calls are then listed in execution order. The first cut
walks that list up to a chosen block; the second lets millrace balance the FLOPs.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys

import keras
import numpy as np

strategy = millrace.Strategy(devices="cpu:2")  # before anything else uses JAX

SMALL = "--small" in sys.argv
SIZE = 32 if SMALL else 64  # pixels; 32 is the smallest that ResNet50 takes
MICRO_BATCH, ACCUMULATION, UPDATES = 2, 2, 1 if SMALL else 4
ROWS = MICRO_BATCH * ACCUMULATION * UPDATES

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
images = random.standard_normal((ROWS, SIZE, SIZE, 3), dtype="float32")
labels = random.integers(0, 10, ROWS).astype("int32")


def print_costs(model):
    """Prints the second table of the summary; the first has one line for each of 176 calls."""
    lines = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    print("\n".join(lines[-6:]))


with strategy.scope():
    model = keras.applications.ResNet50(weights=None, input_shape=(SIZE, SIZE, 3), classes=10)

stage, assignment = 0, model.get_pipeline_stage_assignment()
for call in assignment:
    call.pipeline_stage = stage
    if call.layer.name.startswith("conv4_block2_add"):
        stage = 1  # from the next call on
model.set_pipeline_stage_assignment(assignment)
print(f"{len(assignment)} calls, cut by hand after conv4_block2_add:")
print_costs(model)

model.set_pipelining_options(gradient_accumulation_steps_per_replica=ACCUMULATION)
weights = model.get_weights()


def train():
    """Starts from the same weights, and returns the loss."""
    model.set_weights(weights)
    model.compile(
        optimizer=keras.optimizers.SGD(0.001, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        steps_per_execution=ACCUMULATION * UPDATES,
    )
    history = model.fit(images, labels, batch_size=MICRO_BATCH, shuffle=False, verbose=0)
    return history.history["loss"][0]


by_hand = train()
statistics = strategy.statistics()
print(f"{statistics.compilations} programs compiled in {statistics.compile_seconds:.0f} s")
print(f"activation sets held: {statistics.pipeline.last_in_flight}; loss {by_hand:.6f}\n")

model.set_pipeline_stage_assignment("auto", num_stages=2)
first = next(call for call in model.get_pipeline_stage_assignment() if call.pipeline_stage)
print(f"balanced: the second stage starts with {first.layer.name}")
print_costs(model)
if not SMALL:  # different stages have different programs
    balanced = train()
    print(f"loss {balanced:.6f}")
    if not np.isclose(balanced, by_hand, rtol=1e-5):
        sys.exit("the position of the cut should not change the loss")
