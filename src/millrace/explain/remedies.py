"""What to do about a program that is compiled again, if that was not intended."""

import ast
from typing import Protocol

from millrace.records.compilation import Aspect, KeyField


class _Change(Protocol):
    @property
    def old(self) -> KeyField | None: ...

    @property
    def new(self) -> KeyField | None: ...

    @property
    def field(self) -> KeyField: ...


_OF_ARGUMENT = {
    "dtype": (
        "Give all batches one dtype: cast in the data set, dataset.map(...), or once before, "
        "x.astype({old!r})."
    ),
    "weak type": "Pass np.float32(...) or an array instead of a Python number, always.",
    "placement": (
        "Put it where it is used once, by jax.device_put, before the first call, and pass that."
    ),
    "structure": "Pass it in one structure, in every call.",
}
_OF_OBJECT = {
    "strategy": "Use one Strategy for the whole of a program's run.",
    "model object": (
        "Keep the model instead of building it anew, and give it back its first weights: "
        "weights = model.get_weights() once, then model.set_weights(weights)."
    ),
    "function object": "Define the function once, outside of the loop that calls it.",
    "compile() calls": (
        "Call compile() once. To change the learning rate, set optimizer.learning_rate; to train "
        "on from other weights, use set_weights()."
    ),
}
_OF_MODEL = {
    "optimizer": (
        "Only the learning rate can be changed without compiling: optimizer.learning_rate = ... . "
        "What else an optimizer was made with is a constant of the program."
    ),
    "loss": "Call compile() once, with the loss of the whole training.",
    "loss_weights": "Call compile() once; a weight that changes can be a keras.Variable.",
    "metrics": "Call compile() once, with all metrics.",
    "weighted_metrics": "Call compile() once, with all metrics.",
}
_OF_CODE = (
    "It is a constant of the program: pass it as an argument, or keep it in a keras.Variable that "
    "belongs to the model."
)
_OF_OPTION = "Set it once, before the first fit."
_NONE_NEEDED = "None is needed: what was compiled with {what} stays in the cache."
_ATTRIBUTE = (
    "What a layer was made with is a constant of the program: set it once, before the first fit, "
    "or keep what changes in a variable of the layer."
)


def remedy_of(change: _Change) -> str:
    """Returns what to do about a field that differs."""
    field = change.field
    name = field.name
    if field.aspect is Aspect.ARGUMENT:
        return _of_argument(change)
    if field.aspect is Aspect.IDENTITY:
        return _OF_OBJECT.get(name, "Keep the object instead of making a new one.")
    if field.aspect is Aspect.MODEL:
        return _of_model(change)
    if field.aspect is Aspect.CODE:
        is_code = name.startswith(("instructions of ", "constants of ", "base classes of "))
        return "None is needed if the code was changed on purpose." if is_code else _OF_CODE
    if field.aspect is Aspect.OPTION:
        return _of_option(name)
    return {
        Aspect.JAX: "Set it once, before the first fit, and not in the middle of it.",
        Aspect.DEVICE: "Use the same devices, if they are of one kind; the results are the same.",
        Aspect.FLAG: _NONE_NEEDED.format(what="other flags"),
        Aspect.VERSION: _NONE_NEEDED.format(what="other versions"),
        Aspect.STATE: "Build the model for the same shapes and with the same dtype.",
    }[field.aspect]


def _of_option(name: str) -> str:
    if name in ("steps in a block", "steps whose results a call returns", "steps in unrolled code"):
        return (
            "Keep steps_per_execution and the number of batches in an epoch, or let the one be a "
            "divisor of the other."
        )
    if name.startswith(("tensor statistics", "values are tapped")):
        return "Use the callbacks that look at tensors in every fit, or in none."
    return _OF_OPTION


def _of_argument(change: _Change) -> str:
    name, _, what = change.field.name.partition(": ")
    if name.startswith("static argument "):
        return (
            "Each value of a static argument is a program of its own: pass it as an array instead, "
            "if the shapes do not depend on it."
        )
    if name == "arguments passed by keyword":
        return "Pass the arguments in one way, in every call."
    if name == "argument sample_weight":
        return "Pass sample_weight in every call or in none: weights of one change nothing."
    if change.old is None or change.new is None:
        return _OF_ARGUMENT["structure"]
    if what == "shape":
        return _of_shape(change.old.value, change.new.value)
    return _OF_ARGUMENT.get(what, "Pass it the same way in every call.").format(
        old=change.old.value
    )


def _of_shape(old: str, new: str) -> str:
    before, after = ast.literal_eval(old), ast.literal_eval(new)
    if len(before) == len(after) and before[1:] == after[1:]:
        if after[0] < before[0]:
            return (
                "Leave out the smaller last batch: of arrays by "
                f"x[: len(x) // {before[0]} * {before[0]}], of a data set by "
                f"batch({before[0]}, drop_remainder=True)."
            )
        return "Use one batch_size in every call, and leave out what does not fill a batch."
    return "Bring what the data set yields to one shape: pad it, crop it, or sort it by length."


def _of_model(change: _Change) -> str:
    name = change.field.name
    first = name.partition(" of ")[0]
    if first in _OF_MODEL:
        return _OF_MODEL[first]
    if _differs(change, "trainable"):
        return (
            "Which variables are trained is fixed when a program is compiled: set trainable before "
            "the first fit, where that is possible."
        )
    if _differs(change, "dtype"):
        return "Call keras.config.set_dtype_policy() once, before any model is built."
    return _ATTRIBUTE


def _differs(change: _Change, entry: str) -> bool:
    """Whether an entry of a layer is another one: the text behind its name, up to a quote."""
    if change.old is None or change.new is None:
        return False
    mark = f'"{entry}": "'
    old, new = (f.value.partition(mark)[2].partition('"')[0] for f in (change.old, change.new))
    return old != new
