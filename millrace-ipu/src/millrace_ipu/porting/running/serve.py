"""Runs an IPU program unchanged: its imports of TensorFlow give modules of millrace.

tensorflow                      millrace_ipu.tensorflow, and other names of an installed one
tensorflow.keras                keras
tensorflow.python.ipu           millrace_ipu.ipu
keras.ipu                       millrace_ipu.ipu.keras
ipu_tensorflow_addons           millrace_ipu.ipu.addons
outfeed_wrapper, ...            millrace_ipu.ipu.outfeed_wrapper, ...           `tutorial_copies`
keras.layers.core, ...          keras.layers, ...                           `keras2_modules`
tensorflow.python.ops, ...      the public names of TensorFlow              `private_modules`

Calls of Keras get the meaning that they had in Keras 2: `mending`. An error about what Keras 3 does
not have gets a note with the words of `millrace port`:

AttributeError: 'tuple' object has no attribute 'as_list'
Keras 3 has no .as_list. Write list(x.shape).
"""

import importlib
import pathlib
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from millrace.extend import put_in, take_out
from millrace_ipu import tensorflow
from millrace_ipu._compat.keras_attributes import hidden, let_attributes_be_read
from millrace_ipu._compat.module_aliases import (
    serve,
    show_own_tensorflow,
    show_tensorflow,
    stop_serving,
)
from millrace_ipu._compat.patch_table import KERAS2_CALLS, OLD_ATTRIBUTES, SCRIPT_MODULES
from millrace_ipu.porting.keras2 import HABITS, habits_of
from millrace_ipu.porting.keras2_names import advice, module_now
from millrace_ipu.porting.mending.calls import put_in_all
from millrace_ipu.porting.running.keras2_modules import (
    module_aliases,
    old_attribute,
    patched_modules,
)
from millrace_ipu.porting.running.private_modules import make_private_module, private_module
from millrace_ipu.porting.tutorial_copies import TutorialModules
from millrace_ipu.tensorflow.dispatch import real_name, real_tensorflow, restore_real_modules
from millrace_ipu.tensorflow.replacements import MODULES, unsupported_module
from millrace_ipu.tensorflow.unsupported import longest

# The last of these had `ops.gen_ipu_ops`, the IPU's own operations, and `driver`.
_OF_COMPILER = ("tensorflow.compiler", "tensorflow.compiler.plugin")
_OF_COMPILER += ("tensorflow.compiler.plugin.poplar",)
NAMES = {
    "ipu_tensorflow_addons": "millrace_ipu.ipu.addons",
    "keras.ipu": "millrace_ipu.ipu.keras",
    "popdist": "millrace_ipu.ipu.popdist",
    "tensorflow": "millrace_ipu.tensorflow",
    **dict.fromkeys(_OF_COMPILER, "millrace_ipu.ipu"),
    "tensorflow.keras": "keras",
    "tensorflow.keras.ipu": "millrace_ipu.ipu.keras",
    "tensorflow.python.ipu": "millrace_ipu.ipu",
    "tensorflow.python.keras": "keras",
}
PURPOSE = "tensorflow"
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
for _name in ("callbacks", "layers", "models", "optimizers", "values"):
    importlib.import_module(f"millrace_ipu.porting.mending.{_name}")  # registers its wrappers


@contextmanager
def serving(directory: pathlib.Path) -> Iterator[None]:
    """Serves modules of millrace to the imports of a program in `directory`."""
    helpers = TutorialModules(directory)
    aliases = module_aliases()
    before = {k: m for k, m in sys.modules.items() if k.partition(".")[0] == "tensorflow"}
    for name in before:
        del sys.modules[name]
    show_tensorflow(before.get("tensorflow"))
    serve({**aliases, **NAMES, **helpers.aliases}, PURPOSE, _other_module, helpers.say)
    let_attributes_be_read(OLD_ATTRIBUTES, patched_modules(), old_attribute)
    package = make_private_module("tensorflow.python")
    sys.modules["tensorflow"] = tensorflow
    sys.modules["tensorflow.python"] = tensorflow.python = package  # type: ignore[attr-defined]

    def undo() -> None:
        take_out(OLD_ATTRIBUTES)
        stop_serving(PURPOSE)
        del tensorflow.python  # type: ignore[attr-defined]
        sys.modules.pop("tensorflow.python", None)
        sys.modules.update(before)
        restore_real_modules()
        show_own_tensorflow()

    put_in(SCRIPT_MODULES, undo)
    try:
        with hidden(aliases):
            put_in_all()
            yield
    finally:
        take_out(KERAS2_CALLS)
        take_out(SCRIPT_MODULES)


def run_script(script: str, arguments: Sequence[str] = ()) -> None:
    """Runs a script as Python does, with modules of millrace for its imports.

    Args:
        script: path of the file.
        arguments: values of `sys.argv` after the script's name.

    An error gets a note that says what to write, where the table of habits has its cause.
    """
    directory = pathlib.Path(script).absolute().parent
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(directory))
    try:
        with serving(directory):
            runpy.run_path(script, run_name="__main__")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError):
            _add_advice(error)
        _add_note(error)
        raise
    finally:
        sys.argv, sys.path[:] = argv, path


def _add_advice(error: ModuleNotFoundError) -> None:
    """Adds to the message of a package that is not installed what to write in its place.

    It stays a ModuleNotFoundError, for programs that do without the package.
    """
    name = error.name or ""
    instead = longest(MODULES, name)
    if instead and name not in sys.modules:
        error.msg = f"{error.msg}. In its place: {instead}."


def _add_note(error: BaseException) -> None:
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


def _other_module(name: str) -> ModuleType | None:
    """Returns what stands for a module of TensorFlow or Keras 2 that is not here; or None."""
    moved = module_now(name.removeprefix("tensorflow.").removeprefix("python."))
    if moved is not None:
        return importlib.import_module(moved)
    if name.partition(".")[0] != "tensorflow":
        return None
    module = private_module(name)
    if module is not None:
        return module
    if real_tensorflow() is None:
        return unsupported_module(name)
    try:
        real = real_name(name.partition(".")[2])
    except AttributeError:
        return None
    return real if isinstance(real, ModuleType) else None
