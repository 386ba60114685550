"""Runs an IPU program unchanged: its imports of TensorFlow give modules of millrace.

tensorflow                      millrace.tensorflow, and the real one's other names, if installed
tensorflow.keras                keras
tensorflow.python.ipu           millrace.ipu
keras.ipu                       millrace.ipu.keras
ipu_tensorflow_addons           millrace.ipu.addons
outfeed_wrapper, ...            millrace.ipu.outfeed_wrapper, ..., unless the program has its own
"""

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
from millrace.porting.device_requests import make_devices
from millrace.tensorflow.dispatch import real_name, real_tensorflow, restore_real_modules

NAMES = {
    "ipu_tensorflow_addons": "millrace.ipu.addons",
    "keras.ipu": "millrace.ipu.keras",
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
    package.__getattr__ = lambda name: real_name(f"python.{name}")
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
    make_devices(script, arguments)
    directory = pathlib.Path(script).absolute().parent
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(directory))
    try:
        with serving(directory):
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path


def _real_module(name: str) -> ModuleType | None:
    """Returns a module of the real TensorFlow; None if there is no such module."""
    if name.partition(".")[0] != "tensorflow" or real_tensorflow() is None:
        return None
    try:
        module = real_name(name.partition(".")[2])
    except AttributeError:
        return None
    return module if isinstance(module, ModuleType) else None
