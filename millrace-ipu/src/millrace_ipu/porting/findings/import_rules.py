"""Findings for the packages and modules that a program imports."""

import ast
import importlib.machinery
import sys
from collections.abc import Iterator

from millrace_ipu.porting.findings.finding import Finding
from millrace_ipu.porting.findings.name_rules import NameRules
from millrace_ipu.porting.findings.near_names import of_module
from millrace_ipu.porting.findings.own_modules import OwnModule, PortedProgram
from millrace_ipu.porting.replacements import canonical

_OWN = ("ipu", "tensorflow", "keras", "millrace", "millrace_ipu")
# Packages that import TensorFlow themselves, with what does the same without it.
NEED_TENSORFLOW = {
    "tensorflow_datasets": "pip install tensorflow tensorflow-datasets; or keras.datasets",
    "tensorflow_text": "pip install tensorflow tensorflow-text; or keras_hub.tokenizers",
    "tensorflow_io": "pip install tensorflow tensorflow-io; or tf.data.Dataset.from_generator",
    "tensorflow_transform": "pip install tensorflow tensorflow-transform; or NumPy",
    "tensorflow_model_optimization": "the model without it: it wraps layers of Keras 2",
    "tensorflow_ranking": "losses of keras.losses: it needs Keras 2",
    "tensorflow_recommenders": "keras_rs",
    "tf_slim": "layers of keras.layers",
    "official": "keras_hub.models",
    "tf2_common": "the code of its modules that the program uses: it needs TensorFlow",
    "kerastuner": "keras_tuner",
}
_NAMES = {"tf_slim": "tf-slim", "yaml": "pyyaml", "PIL": "pillow", "cv2": "opencv-python"}
_NAMES |= {"sklearn": "scikit-learn", "skimage": "scikit-image", "absl": "absl-py"}


class ModuleRules:
    """The imports of a file.

    Args:
        program: the program that the file is part of.
        module: the file.
        names: the rules for the names that it imports.
    """

    def __init__(self, program: PortedProgram, module: OwnModule, names: NameRules) -> None:
        self._program, self._module, self._names = program, module, names

    def of_import(self, node: ast.Import) -> Iterator[Finding]:
        """`import tensorflow.keras as keras`."""
        for alias in node.names:
            if not self._program.is_own(self._module, alias.name, 0):
                yield from self._of_module(node, alias.name)

    def of_import_from(self, node: ast.ImportFrom) -> Iterator[Finding]:
        """`from tensorflow.python import ipu`."""
        module = node.module or ""
        if node.level or self._program.is_own(self._module, module, 0):
            return
        is_own = canonical(module).partition(".")[0] in _OWN
        if not is_own or module.startswith("keras.src"):
            yield from self._of_module(node, module)
        for alias in node.names:
            if alias.name == "*" and is_own:
                what = f"from {module} import *"
                yield Finding(node.lineno, what, "the names that are used", blocks=False)
            elif is_own:
                name = canonical(f"{module}.{alias.name}")
                yield from self._names.of_import(node, name, module)
            elif module == "transformers" and alias.name.startswith("TF"):
                what = f"transformers.{alias.name}, which needs TensorFlow"
                yield Finding(node.lineno, what, "keras_hub.models, or keras.layers")

    def _of_module(self, node: ast.stmt, name: str) -> Iterator[Finding]:
        root = name.partition(".")[0]
        what = f"import of {name}"
        if self._program.served_by(self._module, name) is not None:
            return
        needs = NEED_TENSORFLOW.get(root)
        if needs is not None:
            if not (is_installed(root) and is_installed("tensorflow")):
                yield Finding(node.lineno, f"{what}, which needs TensorFlow", needs)
        elif of_module(name):
            yield Finding(node.lineno, what, of_module(name) or "")
        elif canonical(name).partition(".")[0] in _OWN:
            if "." in canonical(name):
                yield from self._names.of_import(node, canonical(name), name)
        elif not is_installed(root):
            instead = f"pip install {_NAMES.get(root, root.replace('_', '-'))}"
            blocks = "sys.path" not in self._module.source.text  # else it may be elsewhere
            why = "unless sys.path has it"
            what = f"{what}, which is not installed"
            yield Finding(node.lineno, what, instead, blocks, why=why)


def is_installed(name: str) -> bool:
    """Whether a package can be imported here; does not import it."""
    if name in sys.stdlib_module_names or name in sys.builtin_module_names:
        return True
    return importlib.machinery.PathFinder.find_spec(name) is not None
