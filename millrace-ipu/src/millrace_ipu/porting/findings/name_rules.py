"""Findings for the names of a program that millrace does not have, or has under another name."""

import ast
from collections.abc import Iterator

from millrace_ipu.porting import keras2_names
from millrace_ipu.porting.findings.finding import Finding, TextEdit, replaced
from millrace_ipu.porting.findings.imports import ImportRules
from millrace_ipu.porting.findings.near_names import shown, what_to_write
from millrace_ipu.porting.findings.signatures import is_importable
from millrace_ipu.porting.names import ImportedNames
from millrace_ipu.porting.private_paths import public_name
from millrace_ipu.porting.replacements import (
    IPU,
    OPERATIONS,
    canonical,
    exists,
    longest,
    operation,
)
from millrace_ipu.porting.running.private_modules import private_module
from millrace_ipu.tensorflow.replacements import unsupported_module

_OWN = ("ipu", "tensorflow", "keras")
_RAISING = ("keras.optimizers.legacy.",)  # names of Keras 3 that only raise
# Functions of keras.backend whose defaults are others than those of keras.ops.
_OTHER_DEFAULTS = ("argmax", "argmin", "concatenate", "cumprod", "cumsum", "expand_dims", "flatten")
_OTHER_DEFAULTS += ("batch_dot", "batch_flatten", "count_params", "eval", "get_value", "int_shape")
_OTHER_DEFAULTS += ("hard_sigmoid", "one_hot", "ones", "zeros", "repeat", "round", "in_top_k")
_OTHER_DEFAULTS += ("cast_to_floatx", "dtype", "ctc_batch_cost", "conv1d", "conv2d", "conv3d")
_OTHER_DEFAULTS += ("binary_crossentropy", "categorical_crossentropy", "batch_normalization")
_OTHER_DEFAULTS += ("sparse_categorical_crossentropy", "l2_normalize", "dropout", "switch")
_OTHER_DEFAULTS += ("random_normal", "random_uniform", "truncated_normal", "resize_images", "dot")


def name_now(name: str) -> str:
    """Returns the name that a canonical name has now: a name that only moved gets its new one.

    Args:
        name: such as `keras.layers.core.Dense`, or a private one of TensorFlow.
    """
    if name.partition(".")[0] not in _OWN:
        return name
    if exists(name) and not name.startswith(_RAISING):
        return name
    parts = name.split(".")
    for n in range(len(parts), 1, -1):
        prefix = ".".join(parts[:n])
        new = public_name(prefix, exists) or _moved(prefix)
        if new is not None and exists(".".join([new, *parts[n:]])):
            return ".".join([new, *parts[n:]])
    return name


class NameRules:
    """The names of a file.

    Args:
        names: what they stand for.
        imports: the file's imports, which tell how a name is spelled.
        is_served: whether `millrace run` runs the program, which has many of the former names.
    """

    def __init__(self, names: ImportedNames, imports: ImportRules, is_served: bool) -> None:
        self._names, self._imports, self._is_served = names, imports, is_served
        self._reported: set[str] = set()  # names whose import has a finding

    def of_name(self, node: ast.AST, name: str, layer: str = "") -> Iterator[Finding]:
        """Yields the findings of an imported name, which an expression or an import spells.

        Args:
            node: where it is.
            name: the canonical name.
            layer: the name of the layer class around it; an empty string outside of one.
        """
        root = name.partition(".")[0]
        line = node.lineno  # type: ignore[attr-defined]
        if root not in _OWN or name.endswith(".GradientTape"):
            return
        instead = longest(IPU, name) if name.startswith("ipu.keras.") else None
        if instead is not None:
            yield Finding(line, shown(name), instead)  # it exists, but raises when it is called
        elif exists(name) and not name.startswith(_RAISING):
            yield from self.in_layer(node, name, layer)
        else:
            yield self._of_missing(node, line, name)
            return
        edit = self.spelled_anew(node)
        if edit is not None:
            yield Finding(line, "", "", blocks=False, edits=(edit,))

    def of_import(self, node: ast.stmt, name: str, module: str) -> Iterator[Finding]:
        """Yields the findings of a name that a statement imports.

        A name that only raises when it is used is found where it is used.

        Args:
            node: the statement.
            name: the canonical name.
            module: the module as the statement spells it.
        """
        works = is_importable(name) or (self._is_served and _has_replacement(module))
        for finding in self.of_name(node, name):
            if not (finding.blocks and works):
                self._reported.add(name)
                yield finding

    def of_use(self, node: ast.Name, name: str, layer: str) -> Iterator[Finding]:
        """Yields the findings of a name that was imported by itself, where it is used."""
        if name not in self._reported:
            yield from self.of_name(node, name, layer)

    def in_layer(self, node: ast.AST, name: str, layer: str) -> Iterator[Finding]:
        """Yields Keras's own operation for TensorFlow's in a layer, where both work."""
        instead = operation(name, OPERATIONS)
        if layer and name.startswith("tensorflow.") and instead is not None and exists(name):
            line = node.lineno  # type: ignore[attr-defined]
            yield Finding(line, f"{shown(name)} in {layer}", instead, blocks=False)

    def spelled_anew(self, node: ast.AST) -> TextEdit | None:
        """Returns the edit of an expression that spells a name in a way that no longer works."""
        spelled = self._names.spelled(node)
        if spelled is None or not isinstance(node, ast.expr):
            return None
        text = self._imports.spelled_anew(spelled)
        return None if text is None else replaced(node, text)

    def _of_missing(self, node: ast.AST, line: int, name: str) -> Finding:
        new = name_now(name)
        value = keras2_names.VALUES.get(name)
        text = shown(new) if new != name and not _has_other_defaults(name) else what_to_write(name)
        is_served = self._is_served and _is_served(name)
        edits: tuple[TextEdit, ...] = ()
        if isinstance(node, ast.expr):
            if value is not None:
                edits = (replaced(node, value),)
            elif new != name and not _has_other_defaults(name):
                edits = (replaced(node, self._imports.spelling(new)),)
        other = None if edits else self.spelled_anew(node)
        if other is not None:
            edits = (other,)
        return Finding(line, shown(name), text, blocks=not is_served, edits=edits)


def _has_replacement(module: str) -> bool:
    """Whether `millrace run` has something in place of a module that is not here."""
    own = canonical(module)
    if own.startswith("ipu.") and exists(own):
        return False  # the real one is imported
    return module.startswith("tensorflow.") and (
        private_module(module) is not None or unsupported_module(module) is not None
    )


def _moved(name: str) -> str | None:
    new = keras2_names.new_name(name)
    return None if new is None or "(" in new or new.startswith(("variable.", "x.")) else new


def _is_served(name: str) -> bool:
    """Whether `millrace run` has a name that Keras 3 and millrace do not have."""
    if name_now(name) != name:
        return True
    if name in keras2_names.GONE:
        return False
    parts = name.split(".")
    is_better = any(".".join(parts[:n]) in keras2_names.BETTER for n in range(1, len(parts) + 1))
    new = keras2_names.new_name(name)
    return is_better or name in keras2_names.VALUES or (new is not None and _is_there(new))


def _is_there(name: str) -> bool:
    return exists(name) if name.startswith("keras.") else True


def _has_other_defaults(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return module == "keras.backend" and last in _OTHER_DEFAULTS
