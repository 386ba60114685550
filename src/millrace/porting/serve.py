"""Runs an IPU program unchanged: its imports of TensorFlow give modules of millrace.

tensorflow                      millrace.tensorflow, and the real one's other names, if installed
tensorflow.keras                keras
tensorflow.python.ipu           millrace.ipu
keras.ipu                       millrace.ipu.keras
ipu_tensorflow_addons           millrace.ipu.addons
outfeed_wrapper, ...            millrace.ipu.outfeed_wrapper, ..., unless the program has its own
"""

import contextlib
import importlib
import pathlib
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from millrace import tensorflow
from millrace._compat.module_aliases import (
    serve,
    show_own_tensorflow,
    show_tensorflow,
    stop_serving,
)
from millrace._compat.patch_table import SCRIPT_MODULES
from millrace._compat.patches import put_in, take_out
from millrace.tensorflow.dispatch import real_name, real_tensorflow, restore_real_modules
from millrace.tensorflow.replacements import MODULES, unsupported_module
from millrace.tensorflow.unsupported import longest

NAMES = {
    "ipu_tensorflow_addons": "millrace.ipu.addons",
    "keras.ipu": "millrace.ipu.keras",
    "popdist": "millrace.ipu.popdist",
    "tensorflow": "millrace.tensorflow",
    "tensorflow.keras": "keras",
    "tensorflow.keras.ipu": "millrace.ipu.keras",
    "tensorflow.python.ipu": "millrace.ipu",
    "tensorflow.python.keras": "keras",
}
TUTORIAL = ("outfeed_callback", "outfeed_layers", "outfeed_optimizer", "outfeed_wrapper")
PURPOSE = "tensorflow"


@contextmanager
def serving(directory: pathlib.Path) -> Iterator[None]:
    """Serves modules of millrace to the imports of a program in `directory`."""
    own = {path.stem for path in directory.iterdir()} if directory.is_dir() else set()
    helpers = {name: f"millrace.ipu.{name}" for name in TUTORIAL if name not in own}
    before = {k: m for k, m in sys.modules.items() if k.partition(".")[0] == "tensorflow"}
    for name in before:
        del sys.modules[name]
    show_tensorflow(before.get("tensorflow"))
    serve({**NAMES, **helpers}, PURPOSE, _real_module)
    package: Any = ModuleType("tensorflow.python", "Modules of TensorFlow that `ipu` is one of.")
    package.__path__ = []
    package.__getattr__ = _of_tensorflow_python
    sys.modules["tensorflow"] = tensorflow
    sys.modules["tensorflow.python"] = tensorflow.python = package  # type: ignore[attr-defined]

    def undo() -> None:
        stop_serving(PURPOSE)
        del tensorflow.python  # type: ignore[attr-defined]
        sys.modules.update(before)
        restore_real_modules()
        show_own_tensorflow()

    put_in(SCRIPT_MODULES, undo)
    try:
        yield
    finally:
        take_out(SCRIPT_MODULES)


def run_script(script: str, arguments: Sequence[str] = ()) -> None:
    """Runs a script as Python does, with modules of millrace for its imports.

    Args:
        script: path of the file.
        arguments: values of `sys.argv` after the script's name.
    """
    directory = pathlib.Path(script).absolute().parent
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(directory))
    try:
        with serving(directory):
            runpy.run_path(script, run_name="__main__")
    except ModuleNotFoundError as error:
        _add_advice(error)
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


def _of_tensorflow_python(name: str) -> object:
    """Returns an attribute of `tensorflow.python`: one of the real TensorFlow, or a module."""
    if not name.startswith("__") and real_tensorflow() is None:
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"tensorflow.python.{name}")
    return real_name(f"python.{name}")


def _real_module(name: str) -> ModuleType | None:
    """Returns a module of the real TensorFlow, or one whose names raise; None if there is none."""
    if name.partition(".")[0] != "tensorflow":
        return None
    if real_tensorflow() is None:
        return unsupported_module(name)
    try:
        module = real_name(name.partition(".")[2])
    except AttributeError:
        return None
    return module if isinstance(module, ModuleType) else None
