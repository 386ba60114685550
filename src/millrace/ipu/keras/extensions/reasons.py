"""What the setters do not take, and why.

num_mini_batches, gradient_accumulation_count    -> gradient_accumulation_steps_per_replica
opt, optimizer_function                          -> Keras's compile()
inputs, infeed_queue, dataset, ...               -> fit
outfeed_loss, outfeed_mask, outfeed_mode         -> callbacks and predict
"""

from collections.abc import Mapping

STEPS = "gradient_accumulation_steps_per_replica"
_AUTOMATIC = "it is set automatically, from the model and from the data given to fit."
_IN_KERAS = "it is not compatible with Keras"
ACCUMULATION_REASONS = {
    "opt": "the optimizer is the one given to compile().",
    "num_mini_batches": f"set {STEPS} instead.",
}
PIPELINING_REASONS = {
    "gradient_accumulation_count": f"set {STEPS} instead.",
    **dict.fromkeys(
        ("computational_stages", "repeat_count", "inputs", "infeed_queue", "outfeed_queue"),
        _AUTOMATIC,
    ),
    "optimizer_function": f"{_AUTOMATIC} The optimizer is the one given to compile().",
    "outfeed_loss": f"{_IN_KERAS}. Read the loss from the logs of a callback.",
    "outfeed_mask": f"{_IN_KERAS}. Read logs in a callback, and outputs from predict.",
}
_INFEED = ("dataset", "infeed_spec", "element_spec")
_OUTFEED = ("outfeed_mode", "device_ordinal")
_READS_ALL = f"{_IN_KERAS}. Remove it: fit reads every result."
INFEED_REASONS: Mapping[str, str] = dict.fromkeys(_INFEED, _AUTOMATIC)
OUTFEED_REASONS: Mapping[str, str] = dict.fromkeys(_OUTFEED, _READS_ALL)
