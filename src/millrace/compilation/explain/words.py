"""One difference between two keys, in words, and its remedy.

argument x: shape (32, 28, 28) -> (17, 28, 28)
layer 'dense_1' (Dense): units 16 -> 32
`rate`, closed over by loss() at train.py:12: 0.1 -> 0.2
"""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from millrace.base.records.compilation import Aspect, KeyField

LONGEST = 60  # characters of a value
AROUND = 15  # characters shown on both sides of what differs
MOST_ENTRIES = 3  # of a layer, that are named

_OBJECTS = {
    "strategy": "another Strategy than before",
    "model object": "another model object than before",
    "function object": "another function object with the same code",
    "compile() calls": "compile() was called again",
}
_LAYER = re.compile(r"layer [\d.]+ \((?P<kind>\w+)\)(?P<rest>.*)")
_NOT_THERE = "not there"


@dataclass(frozen=True, slots=True)
class Change:
    """A field that differs between two keys; None where one key has no such field."""

    old: KeyField | None
    new: KeyField | None

    @property
    def field(self) -> KeyField:
        """The field, as in the newer key that has it."""
        return cast(KeyField, self.new or self.old)

    @property
    def aspect(self) -> Aspect:
        """The aspect of the field."""
        return self.field.aspect

    @property
    def is_exchange(self) -> bool:
        """Whether both keys have the field, with different values."""
        return self.old is not None and self.new is not None


def text_of_change(change: Change) -> str:
    """Describes a change."""
    field, name = change.field, change.field.name
    if field.aspect is Aspect.IDENTITY:
        return _OBJECTS.get(name, f"another {name} than before")
    if field.aspect is Aspect.ARGUMENT:
        name, _, fact = name.partition(": ")
        if fact == "structure" and not change.is_exchange:
            argument = name.removeprefix("argument ")
            return f"{argument} is {'not passed any more' if change.new is None else 'passed now'}"
        return _pair(f"{name}: {fact}" if fact else f"{name}:", change, name)
    if field.aspect is Aspect.MODEL:
        return _model(change)
    if field.aspect is Aspect.CODE:
        return _code(change)
    if field.aspect is Aspect.STATE and field.where:
        name = f"{name} ({field.where!r})"
    return _pair(f"{name}:", change, name)


def _pair(start: str, change: Change, name: str) -> str:
    """Returns the text `start`, followed by both values."""
    if change.old is None or change.new is None:
        return f"{name} is {'new' if change.old is None else 'gone'}"
    old, new = change.old.value, change.new.value
    if change.aspect is Aspect.FLAG:  # added and removed flags only
        before, after = old.split(), new.split()
        old = " ".join(flag for flag in before if flag not in after)
        new = " ".join(flag for flag in after if flag not in before)
    return f"{start} {values(old, new)}"


def values(old: str, new: str) -> str:
    """Returns two values with an arrow between them; long ones are cut to their differences."""
    if len(old) > LONGEST or len(new) > LONGEST:
        start = common_start(old, new)
        end = min(common_start(old[::-1], new[::-1]), min(len(old), len(new)) - start)
        old, new = (_cut(text, start, len(text) - end) for text in (old, new))
    return f"{old or 'none'} -> {new or 'none'}"


def common_start(old: Sequence[str], new: Sequence[str]) -> int:
    """Returns the length of the common start of two sequences or texts."""
    pairs = zip(old, new, strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def _cut(text: str, start: int, end: int) -> str:
    first, last = max(start - AROUND, 0), min(end + AROUND, len(text))
    middle = text[first:last]
    if len(middle) > LONGEST:
        middle = f"{middle[: LONGEST // 2]}...{middle[-LONGEST // 2 :]}"
    return f"{'...' if first else ''}{middle}{'...' if last < len(text) else ''}"


def _model(change: Change) -> str:
    field, name = change.field, change.field.name
    match = _LAYER.fullmatch(name)
    if match and field.where:  # the user's name instead of the number
        name = f"layer {field.where!r} ({match['kind']}){match['rest']}"
    elif name.startswith("layer ") and field.where:
        name = f"{name} {field.where!r}"
    before, after = _entries(change.old), _entries(change.new)
    if before is None or after is None:
        return _pair(f"{name}:", change, name)
    if name.startswith("connections in "):
        return f"the layers of {name.removeprefix('connections in ')} are connected differently"
    if before.get("class") != after.get("class"):
        return f"{name}: {values(before.get('class', ''), after.get('class', ''))}"
    if name.startswith("optimizer"):
        name = f"{name} ({after.get('class', '').rpartition('.')[2]})"
    names = _differing(before, after)
    shown = [
        f"{entry} {values(before.get(entry, _NOT_THERE), after.get(entry, _NOT_THERE))}"
        for entry in names[:MOST_ENTRIES]
    ]
    more = len(names) - MOST_ENTRIES
    return f"{name}: {', '.join(shown)}" + (f" and {more} more" if more > 0 else "")


def _entries(field: KeyField | None) -> dict[str, str] | None:
    if field is None or not field.value.startswith('{"'):
        return None
    try:
        entries: Any = json.loads(field.value)
    except ValueError:  # the text of a user's dict
        return None
    return entries if isinstance(entries, dict) else None


def _differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [name for name in (after | before) if before.get(name) != after.get(name)]


def _code(change: Change) -> str:
    at = f" at {change.field.where}" if change.field.where else ""
    what, _, function = change.field.name.partition(" of ")
    if change.old is not None and change.new is not None:
        if what == "instructions":
            return f"the code of {function}{at} was changed"
        if what == "constants":
            before, after = _one_constant(change.old.value, change.new.value)
            return f"a constant in {function}{at}: {values(before, after)}"
    name = f"{change.field.name}{at}"
    return _pair(f"{name}:", change, name)


def _one_constant(old: str, new: str) -> tuple[str, str]:
    """Returns the one constant that differs, or all of them."""
    before, after = old[1:-1].split(", "), new[1:-1].split(", ")
    differing = [(a, b) for a, b in zip(before, after, strict=False) if a != b]
    is_one = len(before) == len(after) and len(differing) == 1
    return differing[0] if is_one else (old, new)


_STAYS = "None is needed: what was compiled with other {0} stays in the cache."
# Of each aspect, patterns of subjects (`_subject`) and remedies; the first match counts.
_REMEDIES: dict[Aspect, tuple[tuple[str, str], ...]] = {
    Aspect.ARGUMENT: (
        ("static argument ", "Each value of a static argument is a program of its own: pass it as "
         "an array instead, if the shapes do not depend on it."),
        ("arguments passed by keyword", "Pass the arguments in one way, in every call."),
        ("argument sample_weight(:|$)", "Pass sample_weight in every call or in none: weights of "
         "one change nothing."),
        (".*: structure", "Pass it in one structure, in every call."),
        (".*: shape, fewer rows", "Leave out the smaller last batch: of arrays by "
         "x[: len(x) // {rows} * {rows}], of a data set by batch({rows}, drop_remainder=True)."),
        (".*: shape, other rows", "Use one batch_size in every call, and leave out what does not "
         "fill a batch."),
        (".*: shape", "Bring what the data set yields to one shape: pad it, crop it, or sort it by "
         "length."),
        (".*: dtype", "Give all batches one dtype: cast in the data set, dataset.map(...), or once "
         "before, x.astype({old!r})."),
        (".*: weak type", "Pass np.float32(...) or an array instead of a Python number, always."),
        (".*: placement", "Put it where it is used once, by jax.device_put, before the first call, "
         "and pass that."),
        ("", "Pass it the same way in every call."),
    ),
    Aspect.IDENTITY: (
        ("strategy", "Use one Strategy for the whole of a program's run."),
        ("model object", "Keep the model instead of building it anew, and give it back its first "
         "weights: weights = model.get_weights() once, then model.set_weights(weights)."),
        ("function object", "Define the function once, outside of the loop that calls it."),
        ("compile\\(\\) calls", "Call compile() once. To change the learning rate, set "
         "optimizer.learning_rate; to train on from other weights, use set_weights()."),
        ("", "Keep the object instead of making a new one."),
    ),
    Aspect.MODEL: (
        ("optimizer\\b", "Only the learning rate can be changed without compiling: "
         "optimizer.learning_rate = ... . What else an optimizer was made with is a constant of "
         "the program."),
        ("loss_weights\\b", "Call compile() once; a weight that changes can be a keras.Variable."),
        ("loss\\b", "Call compile() once, with the loss of the whole training."),
        ("(weighted_)?metrics\\b", "Call compile() once, with all metrics."),
        (".*: trainable", "Which variables are trained is fixed when a program is compiled: set "
         "trainable before the first fit, where that is possible."),
        (".*: dtype", "Call keras.config.set_dtype_policy() once, before any model is built."),
        ("", "What a layer was made with is a constant of the program: set it once, before the "
         "first fit, or keep what changes in a variable of the layer."),
    ),
    Aspect.CODE: (
        ("(instructions|constants|base classes) of ", "None is needed if the code was changed on "
         "purpose."),
        ("", "It is a constant of the program: pass it as an argument, or keep it in a "
         "keras.Variable that belongs to the model."),
    ),
    Aspect.OPTION: (
        ("steps in a block|steps whose results|steps in unrolled code", "Keep steps_per_execution "
         "and the number of batches in an epoch, or let the one be a divisor of the other."),
        ("tensor statistics|values are tapped", "Use the callbacks that look at tensors in every "
         "fit, or in none."),
        ("", "Set it once, before the first fit."),
    ),
    Aspect.JAX: (("", "Set it once, before the first fit, and not in the middle of it."),),
    Aspect.DEVICE: (
        ("", "Use the same devices, if they are of one kind; the results are the same."),
    ),
    Aspect.FLAG: (("", _STAYS.format("flags")),),
    Aspect.VERSION: (("", _STAYS.format("versions")),),
    Aspect.STATE: (("", "Build the model for the same shapes and with the same dtype."),),
}  # fmt: skip


def remedy_of(change: Change) -> str:
    """Returns advice on how to avoid a change that was not intended."""
    subject, old = _subject(change), change.old.value if change.old else ""
    text = next(text for start, text in _REMEDIES[change.aspect] if re.match(start, subject))
    if "{rows}" in text:
        return text.format(rows=ast.literal_eval(old)[0])
    return text.format(old=old) if "{old" in text else text


def _subject(change: Change) -> str:
    """Returns the name of the field, with the one fact or entry that a remedy depends on."""
    name = change.field.name
    if change.aspect is Aspect.ARGUMENT and name.startswith("argument "):
        argument, _, fact = name.partition(": ")
        if change.old is None or change.new is None:
            return f"{argument}: structure"
        if fact == "shape":
            before, after = (ast.literal_eval(f.value) for f in (change.old, change.new))
            if len(before) == len(after) and before[1:] == after[1:]:
                return f"{name}, {'fewer' if after[0] < before[0] else 'other'} rows"
    if change.aspect is Aspect.MODEL:
        differing = _differing(_entries(change.old) or {}, _entries(change.new) or {})
        if change.is_exchange:
            return f"{name}{''.join(f': {e}' for e in differing if e in ('trainable', 'dtype'))}"
    return name
