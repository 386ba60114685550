"""What to write instead, added to the errors of a program that uses what Keras 3 does not have.

AttributeError: 'tuple' object has no attribute 'as_list'
Keras 3 has no .as_list. Write list(x.shape).                          the words of `millrace port`
"""

import re
from collections.abc import Iterator

from millrace_ipu.porting.keras2 import HABITS, habits_of
from millrace_ipu.porting.keras2_names import advice

_ARGUMENT = re.compile(
    r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'"
    r"|passed to (\w+): \{'(\w+)'|Argument\(s\) not (recognized): \{'(\w+)'"
)
_IMPORT = re.compile(r"cannot import name '(\w+)' from '(?:tensorflow\.)?(keras[\w.]*)'")
_OWNERS = (
    "",
    "model",
    "keras",
    "keras.layers",
    "keras.optimizers",
    "keras.callbacks",
    "keras.losses",
)


def add_note(error: BaseException) -> None:
    """Adds a note to an error that the table of habits explains.

    Args:
        error: of a program. Errors that say themselves what to write get no note.
    """
    note = next(_notes(error), None)
    if note is not None and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _notes(error: BaseException) -> Iterator[str]:
    message = str(error)
    if isinstance(error, AttributeError) and error.name:
        owner = "dtype." if isinstance(error.obj, str) else "."
        for habit in HABITS:
            if not habit.argument and any(of.endswith(f"{owner}{error.name}") for of in habit.of):
                yield f"Keras 3 has no .{error.name}. Write {habit.instead}."
    elif isinstance(error, ImportError):
        found = _IMPORT.search(message)
        name = f"{found[2]}.{found[1]}" if found else ""
        instead = advice(name or (error.name or "").removeprefix("tensorflow."))
        if instead is not None:
            yield f"Keras 3 has no {name or error.name}. Write {instead}."
    elif isinstance(error, TypeError | ValueError) and (found := _ARGUMENT.search(message)):
        function, argument = filter(None, found.groups())
        for habit in (each for owner in _OWNERS for each in habits_of(f"{owner}.{function}")):
            if habit.argument == argument:
                yield f"Keras 3 has no {argument}= of {function}. Write {habit.instead}."
