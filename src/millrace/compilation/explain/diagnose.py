"""The cause of a recompilation: the most similar earlier program, and the difference.

    key of the new program
        -> the nearest earlier key         of the same model object, with the fewest differences
        -> the differences                 without those that follow from others
        -> a sentence and a remedy         the likeliest cause first

The nearest is not the newest: a batch of 17 rows after many of 32 is compared with those of 32,
even if others ran in between.
"""

import difflib
import re
import threading
import zlib
from collections import deque
from collections.abc import Sequence
from itertools import starmap, zip_longest

from millrace.base.records.compilation import Aspect, Cause, KeyField, ProgramKey
from millrace.compilation.explain.words import Change, remedy_of, text_of_change

KEPT = 50  # keys of each program
MAX_TEXT = 4_000_000  # characters of a program whose text is kept: ResNet50's has 700,000


class History:
    """The newest compilations of each program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Keys, and texts in StableHLO, compressed; a text is empty if it is too long.
        self._programs: dict[str, deque[tuple[ProgramKey, bytes]]] = {}

    def keys(self, program: str) -> list[ProgramKey]:
        """Returns the keys of programs of that name, the newest last."""
        with self._lock:
            return [key for key, _ in self._programs.get(program, ())]

    def text_of(self, key: ProgramKey) -> str:
        """Returns the text of the newest program of this key; empty if it was not kept."""
        with self._lock:
            programs = list(self._programs.get(key.program, ()))
        texts = (text for other, text in reversed(programs) if other.digest == key.digest)
        text = next(texts, b"")
        return zlib.decompress(text).decode() if text else ""

    def add(self, key: ProgramKey, text: str) -> None:
        packed = zlib.compress(text.encode(), 1) if len(text) <= MAX_TEXT else b""
        with self._lock:
            self._programs.setdefault(key.program, deque(maxlen=KEPT)).append((key, packed))

    def clear(self) -> None:
        with self._lock:
            self._programs.clear()


history = History()


FIRST = "first compilation"
ANOTHER_MODEL = "another model"
SHOWN = 3  # changes that are named; others are counted

# From the likeliest mistake of a user to the differences that follow from others.
_ORDER = (
    Aspect.ARGUMENT,
    Aspect.OPTION,
    Aspect.MODEL,
    Aspect.CODE,
    Aspect.JAX,
    Aspect.DEVICE,
    Aspect.FLAG,
    Aspect.VERSION,
    Aspect.STATE,
    Aspect.IDENTITY,
)
# The weight of a change in the choice of the nearest key.
_WEIGHT = {Aspect.STATE: 0.1, Aspect.IDENTITY: 0.5, Aspect.CODE: 0.5}
# Options that follow from the data, from other options, or from the time of a step.
_DERIVED = (
    "steps in a block",
    "steps whose results a call returns",
    "steps in unrolled code",
    "values are tapped",
    "recomputation choice",
    "compiled for its memory only",
    "order of variables",
)
_NUMBER = re.compile(r"layer [\d.]+ \(")
_OBJECTS = ("strategy", "model object")  # each has its own programs
_FUNCTION = "function object"  # differs wherever the code does


def explain(new: ProgramKey, earlier: Sequence[ProgramKey], where: str = "") -> Cause:
    """Returns the cause of a compilation.

    Args:
        new: key of the program.
        earlier: keys of earlier programs of the same name, the newest last.
        where: the position in the data, such as "batch 1,875 of epoch 1".

    Returns:
        The cause in the user's words. Its aspects are those of the fields that differ; there are
        none for a first compilation, or if no field differs.
    """
    if not earlier:
        return Cause(FIRST)
    changes = _nearest(new, earlier)
    if not changes:
        gap = "The key does not describe everything that the program uses."
        text = "no field of its key differs from that of a program compiled before"
        return Cause(text, "" if new.is_complete else gap)
    shown = _without_consequences(changes)
    aspects = tuple(dict.fromkeys(change.aspect for change in shown))
    if _is_another_model(changes, new):
        return Cause(ANOTHER_MODEL, "None is needed: each model has its own programs.", aspects)
    return Cause(_sentence(shown, where), remedy_of(shown[0]), aspects)


def layers_of(key: ProgramKey) -> list[KeyField]:
    """Returns the fields of a model's layers, in their order."""
    return [field for field in key.fields if _is_layer(field)]


def _nearest(new: ProgramKey, earlier: Sequence[ProgramKey]) -> list[Change]:
    """Returns the differences from the nearest key; of equally near ones from the newest."""
    candidates = (_changes(new, key) for key in reversed(earlier))
    return min(candidates, key=_distance)


def _changes(new: ProgramKey, old: ProgramKey) -> list[Change]:
    before = {(field.aspect, field.name): field for field in old.fields}
    after = {(field.aspect, field.name): field for field in new.fields}
    changes = [
        Change(before.get(name), after.get(name))
        for name in (*after, *(name for name in before if name not in after))
        if name not in before or name not in after or before[name].value != after[name].value
    ]
    if all(change.is_exchange for change in changes if _is_layer(change.field)):
        return changes
    others = [change for change in changes if not _is_layer(change.field)]
    return [*_changes_of_layers(new, old), *others]


def _changes_of_layers(new: ProgramKey, old: ProgramKey) -> list[Change]:
    """Finds added and removed layers, although all layers behind them are renumbered."""
    before, after = layers_of(old), layers_of(new)
    texts = [[_NUMBER.sub("layer (", f.value) for f in fields] for fields in (before, after)]
    changes = []
    for tag, i, j, k, n in difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if tag != "equal":
            changes += starmap(Change, zip_longest(before[i:j], after[k:n]))
    return changes


def _distance(changes: list[Change]) -> tuple[int, float]:
    names = [change.field.name for change in changes if change.aspect is Aspect.IDENTITY]
    others = sum(name in (*_OBJECTS, _FUNCTION) for name in names)
    return others, sum(_WEIGHT.get(change.aspect, 1.0) for change in changes)


def _without_consequences(changes: list[Change]) -> list[Change]:
    """Returns changes in order, without those that follow from others."""
    aspects = {change.aspect for change in changes}
    layers = {change.field.name for change in changes if _is_layer(change.field)}
    is_explained = any(not _is_derived(c) and c.aspect is not Aspect.IDENTITY for c in changes)
    kept = []
    for change in changes:
        name, aspect = change.field.name, change.aspect
        dropped = (
            (_is_derived(change) and is_explained)
            or (aspect is Aspect.MODEL and name.startswith("connections in ") and bool(layers))
            or (aspect is Aspect.CODE and not change.is_exchange and Aspect.MODEL in aspects)
            or (
                aspect is Aspect.JAX and Aspect.VERSION in aspects
            )  # another version, other options
            or (aspect is Aspect.STATE and bool(aspects & {Aspect.MODEL, Aspect.CODE}))
            or (aspect is Aspect.IDENTITY and name == _FUNCTION and Aspect.CODE in aspects)
            or _follows_from_structure(change, changes)
        )
        if not dropped:
            kept.append(change)
    return sorted(kept or changes, key=_rank)


def _is_derived(change: Change) -> bool:
    return change.aspect is Aspect.OPTION and change.field.name in _DERIVED


def _is_layer(field: KeyField) -> bool:
    return field.aspect is Aspect.MODEL and field.name.startswith("layer ")


def _follows_from_structure(change: Change, changes: list[Change]) -> bool:
    """Whether a leaf was added or removed because the structure of its argument changed."""
    is_structure = change.field.name.endswith(": structure")
    if change.aspect is not Aspect.ARGUMENT or change.is_exchange or is_structure:
        return False
    return any(other.field.name.endswith(": structure") for other in changes)


def _rank(change: Change) -> tuple[int, int, int]:
    """Orders changes: other objects first, then by aspect; added and removed fields come later."""
    name = change.field.name
    if change.aspect is Aspect.IDENTITY and name in _OBJECTS:
        return -1, _OBJECTS.index(name), 0
    return _ORDER.index(change.aspect), not change.is_exchange, name.endswith("sample_weight")


def _is_another_model(changes: list[Change], new: ProgramKey) -> bool:
    differing = [change for change in changes if change.aspect is Aspect.MODEL]
    number = sum(field.aspect is Aspect.MODEL for field in new.fields)
    number += sum(change.new is None for change in differing)
    return len(differing) * 2 > number


def _sentence(changes: list[Change], where: str) -> str:
    texts = []
    for change in changes[:SHOWN]:
        text = text_of_change(change)
        if where and change.aspect is Aspect.ARGUMENT:  # once
            text, where = f"{text}, {where}", ""
        texts.append(text)
    more = len(changes) - SHOWN
    return "; ".join(texts) + (f"; and {more} more" if more > 0 else "")
