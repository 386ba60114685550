"""Name scopes of operations outside of layers, by which reports tell them apart.

They are names in compiled programs, and change nothing that a program computes.
"""

ACCUMULATION = "gradient_accumulation"
UPDATE = "weight_update"  # within it the scope of Keras's optimizer: "weight_update/adam"
KERAS_STEP = "mr.step"  # what is in no other scope within it works for the metrics
