"""One field that differs, in words.

argument x: shape (32, 28, 28) -> (17, 28, 28)
layer 'dense_1' (Dense): units 16 -> 32
`rate`, closed over by loss() at train.py:12: 0.1 -> 0.2
"""

import json
import re
from typing import Any

from millrace.records.compilation import Aspect, KeyField

LONGEST = 60  # characters of a value
AROUND = 15  # characters shown on both sides of what differs
MOST_ENTRIES = 3  # of a layer

_OBJECTS = {
    "strategy": "another Strategy than before",
    "model object": "another model object than before",
    "function object": "another function object with the same code",
    "compile() calls": "compile() was called again",
}
_LAYER = re.compile(r"layer [\d.]+ \((?P<kind>\w+)\)(?P<rest>.*)")
_NOT_THERE = "not there"


def text_of_change(old: KeyField | None, new: KeyField | None) -> str:
    """Returns what changed. None is a field that one of the keys has not got."""
    field = new or old
    if field is None:
        return ""
    if field.aspect is Aspect.IDENTITY:
        return _OBJECTS.get(field.name, f"another {field.name} than before")
    if field.aspect is Aspect.ARGUMENT:
        return _argument(old, new, field)
    if field.aspect is Aspect.MODEL:
        return _model(old, new, field)
    if field.aspect is Aspect.CODE:
        return _code(old, new, field)
    if field.aspect is Aspect.FLAG and old is not None and new is not None:
        return f"{field.name}: {_flags(old.value, new.value)}"
    if field.aspect is Aspect.STATE and field.where:
        return f"{_pair(f'{field.name} ({field.where!r})', old, new)}"
    return _pair(field.name, old, new)


def _pair(name: str, old: KeyField | None, new: KeyField | None) -> str:
    if old is None or new is None:
        return f"{name} is {'new' if old is None else 'gone'}"
    return f"{name}: {values(old.value, new.value)}"


def values(old: str, new: str) -> str:
    """Returns two values with an arrow between them, long ones cut to where they differ."""
    if len(old) > LONGEST or len(new) > LONGEST:
        start = _common(old, new)
        end = min(_common(old[::-1], new[::-1]), min(len(old), len(new)) - start)
        old, new = (_cut(text, start, len(text) - end) for text in (old, new))
    return f"{old or 'none'} -> {new or 'none'}"


def _common(old: str, new: str) -> int:
    """Returns how many characters two texts have in common at their beginning."""
    pairs = zip(old, new, strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def _cut(text: str, start: int, end: int) -> str:
    first, last = max(start - AROUND, 0), min(end + AROUND, len(text))
    middle = text[first:last]
    if len(middle) > LONGEST:
        middle = f"{middle[: LONGEST // 2]}...{middle[-LONGEST // 2 :]}"
    return f"{'...' if first else ''}{middle}{'...' if last < len(text) else ''}"


def _argument(old: KeyField | None, new: KeyField | None, field: KeyField) -> str:
    name, _, what = field.name.partition(": ")
    if what == "structure" and (old is None or new is None):
        spoken = name.removeprefix("argument ")
        return f"{spoken} is passed now" if old is None else f"{spoken} is not passed any more"
    if old is None or new is None:
        return _pair(name, old, new)
    return f"{name}: {what} {values(old.value, new.value)}" if what else _pair(name, old, new)


def _model(old: KeyField | None, new: KeyField | None, field: KeyField) -> str:
    name = _spoken(field)
    if old is None or new is None:
        return _pair(name, old, new)
    before, after = _entries(old.value), _entries(new.value)
    if before is None or after is None:
        return f"{name}: {values(old.value, new.value)}"
    if field.name.startswith("connections in "):
        return f"the layers of {name.removeprefix('connections in ')} are connected differently"
    if before.get("class") != after.get("class"):
        return f"{name}: {values(before.get('class', ''), after.get('class', ''))}"
    if field.name.startswith("optimizer"):
        name = f"{name} ({after.get('class', '').rpartition('.')[2]})"
    return f"{name}: {_differing(before, after)}"


def _differing(before: dict[str, str], after: dict[str, str]) -> str:
    names = [name for name in (after | before) if before.get(name) != after.get(name)]
    shown = [
        f"{name} {values(before.get(name, _NOT_THERE), after.get(name, _NOT_THERE))}"
        for name in names[:MOST_ENTRIES]
    ]
    more = len(names) - MOST_ENTRIES
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _entries(value: str) -> dict[str, str] | None:
    if not value.startswith('{"'):
        return None
    try:
        found: Any = json.loads(value)
    except ValueError:  # a dict of the user's that only looks like one of ours
        return None
    return found if isinstance(found, dict) else None


def _spoken(field: KeyField) -> str:
    """Returns the name of a layer as its user knows it, for the number by which it is known."""
    match = _LAYER.fullmatch(field.name)
    if match and field.where:
        return f"layer {field.where!r} ({match['kind']}){match['rest']}"
    if field.name.startswith("layer ") and field.where:
        return f"{field.name} {field.where!r}"
    return field.name


def _code(old: KeyField | None, new: KeyField | None, field: KeyField) -> str:
    at = f" at {field.where}" if field.where else ""
    if old is None or new is None:
        return _pair(f"{field.name}{at}", old, new)
    if field.name.startswith("instructions of "):
        return f"the code of {field.name.removeprefix('instructions of ')}{at} was changed"
    if field.name.startswith("constants of "):
        function = field.name.removeprefix("constants of ")
        before, after = _one_constant(old.value, new.value)
        return f"a constant in {function}{at}: {values(before, after)}"
    return f"{field.name}{at}: {values(old.value, new.value)}"


def _one_constant(old: str, new: str) -> tuple[str, str]:
    """Returns the one constant that differs, or all of them."""
    before, after = old[1:-1].split(", "), new[1:-1].split(", ")
    differing = [(a, b) for a, b in zip(before, after, strict=False) if a != b]
    is_one = len(before) == len(after) and len(differing) == 1
    return differing[0] if is_one else (old, new)


def _flags(old: str, new: str) -> str:
    """Returns the flags that came and went, instead of all of them."""
    before, after = old.split(), new.split()
    gone = " ".join(flag for flag in before if flag not in after)
    come = " ".join(flag for flag in after if flag not in before)
    return values(gone, come)
