"""Findings for the names and packages of a program that millrace has not, or under other names."""

import ast
import importlib.machinery
from collections.abc import Iterator

from millrace_ipu.ipu.replacements import IPU
from millrace_ipu.porting import keras2_names
from millrace_ipu.porting.findings.imports import ImportRules
from millrace_ipu.porting.findings.program import OwnModule, PortedProgram
from millrace_ipu.porting.findings.source_text import Finding, TextEdit
from millrace_ipu.porting.names import ImportedNames
from millrace_ipu.porting.replacements import (
    HOMES,
    canonical,
    exists,
    is_importable,
    name_now,
    shown,
    what_to_write,
)
from millrace_ipu.tensorflow.replacements import INSTALL, MODULES
from millrace_ipu.tensorflow.unsupported import longest

_TAPE = (
    "loss, gradients = millrace.value_and_grad(loss_fn, variables) in a function of "
    "millrace.compile, or model.fit"
)
# Packages that import TensorFlow themselves, with what does the same without it.
NEED_TENSORFLOW = {
    "tensorflow_datasets": f"{INSTALL} tensorflow-datasets; or keras.datasets",
    "tensorflow_text": f"{INSTALL} tensorflow-text; or keras_hub.tokenizers",
    "tensorflow_io": f"{INSTALL} tensorflow-io; or tf.data.Dataset.from_generator",
    "tensorflow_transform": f"{INSTALL} tensorflow-transform; or NumPy",
    "tensorflow_model_optimization": "the model without it: it wraps layers of Keras 2",
    "tensorflow_ranking": "losses of keras.losses: it needs Keras 2",
    "tensorflow_recommenders": "keras_rs",
    "tf_slim": "layers of keras.layers",
    "official": "keras_hub.models",
    "tf2_common": "the code of its modules that the program uses: it needs TensorFlow",
    "kerastuner": "keras_tuner",
}


class NameRules:
    """The names of a file.

    Args:
        program: the program that the file is part of.
        module: the file.
        names: what its names stand for.
        imports: its imports, which tell how a name is spelled.
        is_served: whether `millrace run` runs the program, which has many of the former names.
    """

    def __init__(
        self,
        program: PortedProgram,
        module: OwnModule,
        names: ImportedNames,
        imports: ImportRules,
        is_served: bool,
    ) -> None:
        self._program, self._module, self._names = program, module, names
        self._imports, self._is_served = imports, is_served
        self._reported: set[str] = set()  # names whose import has a finding

    def of_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Finding]:
        """Yields the findings of the modules and names that a statement imports.

        Names of TensorFlow and of the IPU that only raise are found where they are used.
        """
        modules = [alias.name for alias in node.names]
        names = modules
        if isinstance(node, ast.ImportFrom):
            modules = [] if node.level else [node.module or ""]
            names = [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*"]
        if any(self._program.is_own(self._module, module, 0) for module in modules):
            return
        for module in modules:
            yield from self._of_package(node, module)
        for name in map(canonical, names if modules else []):
            if name.startswith("keras.") or _is_missing(name):
                self._reported.add(name)
                yield from self._of_name(node, name)

    def of_use(self, node: ast.Attribute | ast.Name, name: str) -> Iterator[Finding]:
        """Yields the findings of an expression.

        Args:
            node: the expression.
            name: the canonical name that it spells.
        """
        if name.endswith(".GradientTape"):
            what, why = "tf.GradientTape", "runs in functions of tf.function"
            yield Finding(node.lineno, what, _TAPE, blocks=False, why=why)
        elif isinstance(node, ast.Attribute) or name not in self._reported:
            yield from self._of_name(node, name)

    def _of_package(self, node: ast.stmt, name: str) -> Iterator[Finding]:
        root = name.partition(".")[0]
        if self._program.served_by(self._module, name) is not None:
            return
        instead = longest(NEED_TENSORFLOW, name)
        if instead and not (is_installed(root) and is_installed("tensorflow")):
            yield Finding(node.lineno, f"import of {name}, which needs TensorFlow", instead)
        elif not instead and longest(MODULES, name):
            yield Finding(node.lineno, f"import of {name}", longest(MODULES, name) or "")

    def _of_name(self, node: ast.expr | ast.stmt, name: str) -> Iterator[Finding]:
        if name.partition(".")[0] not in HOMES:
            return
        # Old classes of models exist, and raise when they are called.
        instead = longest(IPU, name) if name.startswith("ipu.keras.") else None
        if exists(name) and instead is None:
            edit = self._spelled_anew(node)
            if edit is not None:
                yield Finding(node.lineno, "", "", blocks=False, edits=(edit,))
            return
        now = name_now(name)
        text = instead or what_to_write(name)
        blocks = not (self._is_served and _is_served(name, now))
        edit = self._edit(node, name, now)
        yield Finding(node.lineno, shown(name), text, blocks, () if edit is None else (edit,))

    def _edit(self, node: ast.expr | ast.stmt, name: str, now: str) -> TextEdit | None:
        if isinstance(node, ast.expr) and name in keras2_names.VALUES:
            return self._module.source.replaced(node, keras2_names.VALUES[name])
        if isinstance(node, ast.expr) and now != name:
            return self._module.source.replaced(node, self._imports.spelling(now))
        return self._spelled_anew(node)

    def _spelled_anew(self, node: ast.AST) -> TextEdit | None:
        """Returns the edit of an expression that spells a name in a way that no longer works."""
        spelled = self._names.spelled(node)
        if spelled is None or not isinstance(node, ast.expr):
            return None
        text = self._imports.spelled_anew(spelled)
        return None if text is None else self._module.source.replaced(node, text)


def is_installed(name: str) -> bool:
    """Whether a package can be imported here; does not import it."""
    return importlib.machinery.PathFinder.find_spec(name) is not None


def _is_missing(name: str) -> bool:
    """Whether the import of a name fails; that of a module that is not here does not."""
    owner = name.rpartition(".")[0]
    return owner.startswith("ipu.") and exists(owner) and not is_importable(name)


def _is_served(name: str, now: str) -> bool:
    """Whether `millrace run` has a name that Keras 3 and millrace do not have."""
    is_better = longest(keras2_names.BETTER, name) and not longest(keras2_names.GONE, name)
    return now != name or name in keras2_names.VALUES or bool(is_better)
