"""What to write instead, added to the errors of a program that uses what Keras 3 does not have.

AttributeError: 'tuple' object has no attribute 'as_list'
Keras 3 has no .as_list(). Write list(x.shape).                        the words of `millrace port`
"""

import re
from collections.abc import Iterator

from millrace_ipu.porting.keras2 import ATTRIBUTES, Habit, habits_of
from millrace_ipu.porting.keras2_names import advice

_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
_UNRECOGNIZED = re.compile(r"Unrecognized keyword arguments passed to (\w+): \{'(\w+)'")
_OPTIMIZER = re.compile(r"Argument\(s\) not recognized: \{'(\w+)'")
_CALLED = re.compile(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument")
_OWNERS = ("", "keras.layers.", "keras.optimizers.", "keras.callbacks.", "keras.losses.", "keras.")


def add_notes(error: BaseException) -> None:
    """Adds a note to an error that the table of habits explains.

    Args:
        error: of a program. Errors that say themselves what to write get no note.
    """
    for note in _notes(error):
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return


def _notes(error: BaseException) -> Iterator[str]:
    if isinstance(error, AttributeError):
        yield from _of_attribute(error)
    elif isinstance(error, ImportError):
        yield from _of_import(error)
    elif isinstance(error, TypeError | ValueError):
        yield from _of_argument(str(error))


def _of_attribute(error: AttributeError) -> Iterator[str]:
    name = error.name or ""
    for habit in habits_of(f".{name}"):
        if not habit.argument:
            yield f"Keras 3 has no .{name}(). Write {habit.instead}."
    for attribute, instead in ATTRIBUTES.items():
        if attribute == f"dtype.{name}" and isinstance(error.obj, str):
            yield f"Keras 3 has no {attribute}. Write {instead}."


def _of_import(error: ImportError) -> Iterator[str]:
    found = re.search(r"cannot import name '(\w+)' from '([\w.]+)'", str(error))
    name = f"{found[2]}.{found[1]}" if found else error.name or ""
    name = name.removeprefix("tensorflow.") if name.startswith("tensorflow.keras") else name
    instead = advice(name) if name.startswith("keras") else None
    if instead is not None:
        yield f"Keras 3 has no {name}. Write {instead}."


def _of_argument(message: str) -> Iterator[str]:
    layer = _UNRECOGNIZED.search(message)
    optimizer = _OPTIMIZER.search(message)
    unexpected = _UNEXPECTED.search(message)
    if layer:
        yield from _of_habits(layer[1], layer[2])
    elif optimizer:
        yield from _of_habits("Optimizer", optimizer[1])
    elif unexpected:
        called = _CALLED.search(message)
        yield from _of_habits(called[1] if called else "", unexpected[1])


def _of_habits(function: str, argument: str) -> Iterator[str]:
    for owner in _OWNERS:
        for name in (f"{owner}{function}", f".{function}"):
            habit = _habit(name, argument)
            if habit is not None:
                yield f"Keras 3 has no {argument}= of {function}. Write {habit.instead}."


def _habit(name: str, argument: str) -> Habit | None:
    if not name.strip("."):
        return None
    return next((each for each in habits_of(name) if each.argument == argument), None)
