"""Findings for calls: arguments and methods that there are no longer.

keras.optimizers.SGD(lr=0.1)     a habit of Keras 2                              habit_rules.py
keras.layers.Dense(4, wieghts=w) an argument that no signature has               signatures.py
tf.reduce_sum(x).get_shape()     a method that the class of the object lacks     kinds.py
x.shape.as_list()                an attribute that only TensorFlow's objects have
"""

import ast
from collections.abc import Iterator

from millrace_ipu.porting.findings.arguments import rename_method
from millrace_ipu.porting.findings.finding import Finding
from millrace_ipu.porting.findings.habit_rules import HabitRules
from millrace_ipu.porting.findings.kinds import ARRAY, Kinds
from millrace_ipu.porting.findings.near_names import nearest, shown
from millrace_ipu.porting.findings.setter_rules import ATTACHED, SETTER_ARGUMENTS, of_setter
from millrace_ipu.porting.findings.signatures import (
    class_of,
    has_too_many,
    parameters_of,
    requires_tensorflow,
    unknown_arguments,
    value_of,
)
from millrace_ipu.porting.mending.members import members
from millrace_ipu.porting.names import ImportedNames
from millrace_ipu.porting.object_names import ATTRIBUTES, DISTINCTIVE, METHODS, OF_DTYPES, OF_SHAPES
from millrace_ipu.porting.replacements import IPU, KEYWORDS, METHOD_KEYWORDS, canonical, longest
from millrace_ipu.porting.replacements import METHODS as OLD_METHODS
from millrace_ipu.tensorflow.dispatch import is_installed
from millrace_ipu.tensorflow.unsupported import Unsupported, is_supported

_ARRAY_CLASS = "tensorflow.Tensor"
_CHECKED = ("tensorflow.data.Dataset", "ipu.", ARRAY)  # classes that have all their attributes
# Classes of Keras whose objects have no callable attributes but methods, or very few.
_COMPLETE = ("keras.optimizers.", "keras.metrics.", "keras.Model", "keras.Sequential")
_ATTACHED = {*ATTACHED, "optimizer", "loss", "activation", "kernel_initializer", "gain"}
_ATTACHED |= {"train_function", "test_function", "predict_function", "loss_tracker"}
_ABSENT = Unsupported("", str)  # of a method that is not there
_OPTIMIZERS = ("keras.optimizers.", "tensorflow.compat.v1.train.")
_MODELS = ("keras.Model", "keras.Sequential", "keras.models.", "keras.applications.")


class ObjectRules:
    """The calls of a file.

    Args:
        names: what its names stand for.
        kinds: the classes of its expressions.
        habits: the rules for habits of Keras 2.
        defined: the functions and methods that the program defines itself.
        is_served: whether `millrace run` runs the program.
    """

    def __init__(
        self,
        names: ImportedNames,
        kinds: Kinds,
        habits: HabitRules,
        defined: frozenset[str],
        is_served: bool,
    ) -> None:
        self._names, self._kinds, self._habits, self._defined = names, kinds, habits, defined
        self._is_served = is_served
        roots = {canonical(name).partition(".")[0] for name in names.imported.values()}
        self._is_for_ipu = is_served or "ipu" in roots  # else the setters are millrace's own

    def of_call(self, node: ast.Call, name: str | None) -> list[Finding]:
        """Returns the findings of a call.

        Args:
            node: the call.
            name: the canonical name of the function; None if it was not imported.
        """
        if name is not None:
            findings = self._habits.of_call(node, name, shown(name), is_model=False)
            return [*_of_norm(node, name), *findings, *self._of_signature(node, name, findings)]
        if not isinstance(node.func, ast.Attribute):
            return []
        return self._of_method(node, node.func)

    def of_attribute(self, node: ast.Attribute) -> Iterator[Finding]:
        """Yields the attributes of shapes, dtypes and objects of Keras that are no longer there."""
        owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
        if isinstance(node.ctx, ast.Store) and node.attr != "lr":
            return
        if isinstance(node.value, ast.Attribute) and owner == "shape" and node.attr in OF_SHAPES:
            yield self._of_shape(node)
        elif isinstance(node.value, ast.Attribute) and owner == "dtype" and node.attr in OF_DTYPES:
            yield Finding(node.lineno, f".dtype.{node.attr}", OF_DTYPES[node.attr])
        else:
            kind, own = self._kinds.base_of(self._kinds.of(node.value))
            for (base, attribute), instead in ATTRIBUTES.items():
                is_kind = (kind or "").startswith(base) or owner == _LAST.get(base)
                if attribute == node.attr and is_kind and node.attr not in own:
                    name = instead.rpartition(".")[2]
                    edits = (rename_method(node, name),) if name.isidentifier() else ()
                    what = f".{node.attr} of {base.strip('.')}"
                    blocks = node.attr not in self._members(class_of(_CLASSES[base]))
                    yield Finding(node.lineno, what, instead, blocks, edits)

    def _of_signature(self, node: ast.Call, name: str, findings: list[Finding]) -> list[Finding]:
        function = value_of(name)
        if function is None or not callable(function):
            return []
        if requires_tensorflow(function) and not is_installed():
            what = f"{name}, which needs TensorFlow"
            return [Finding(node.lineno, what, "pip install tensorflow; or NumPy, before fit")]
        return self._unknown(node, function, shown(name), findings, name)

    def _unknown(
        self, node: ast.Call, function: object, label: str, findings: list[Finding], name: str = ""
    ) -> list[Finding]:
        bound = 1 if label.startswith(".") else 0
        reported = {finding.what.partition("=")[0] for finding in findings}
        more: list[Finding] = []
        if not callable(function):
            return []
        for argument in unknown_arguments(node, function, bound):
            keyword = next(each for each in node.keywords if each.arg == argument)
            if argument not in reported:
                instead = _advice(name, argument, parameters_of(function) or [])
                more.append(Finding(keyword.value.lineno, f"{argument}= of {label}", instead))
        if has_too_many(node, function, bound):
            names = ", ".join((parameters_of(function) or [])[bound : bound + 6])
            what = f"{len(node.args)} arguments without names of {label}"
            more.append(Finding(node.lineno, what, f"names for them: it takes {names}"))
        return more

    def _of_method(self, node: ast.Call, func: ast.Attribute) -> list[Finding]:
        method = func.attr
        kind, own = self._kinds.base_of(self._kinds.of(func.value))
        if method in own or (kind is None and method in self._defined):
            return []
        label = f".{method}()"
        is_model = _is_model(func.value, kind)
        if method in SETTER_ARGUMENTS and self._is_for_ipu:
            return of_setter(node, method)
        findings = self._habits.of_call(node, f".{method}", label, is_model)
        owner = class_of(_ARRAY_CLASS if kind == ARRAY else kind or "")
        if owner is not None and is_supported(getattr(owner, method, _ABSENT)):
            findings = [each for each in findings if each.what != label]  # the class has the method
            return findings + self._unknown(node, getattr(owner, method), label, findings)
        if any(finding.what == label for finding in findings):
            return findings
        is_checked = (kind or "").startswith(_CHECKED) and not own
        is_checked |= (kind or "").startswith(_COMPLETE) and method not in _ATTACHED
        is_checked &= longest(IPU, kind or "") is None  # a class that only raises has a finding
        if is_checked and owner is not None and method not in self._defined:
            return [*findings, self._missing(node, kind or "", owner, method)]
        instead = DISTINCTIVE.get(method) or OLD_METHODS.get(method)
        if (kind or "").startswith(_OPTIMIZERS):
            has_it = is_supported(getattr(owner, method, _ABSENT))
            instead = None if has_it else METHODS.get(method)
        if instead is not None:
            findings.append(Finding(node.lineno, label, instead))
        for keyword in node.keywords:
            text = METHOD_KEYWORDS.get((method, keyword.arg or ""))
            what = f"{keyword.arg}= of {label}"
            if text is not None and all(what != finding.what for finding in findings):
                findings.append(Finding(keyword.value.lineno, what, text))
        return findings

    def _missing(self, node: ast.Call, kind: str, owner: type, method: str) -> Finding:
        public = [name for name in dir(owner) if not name.startswith("_")]
        near = nearest(method, public)
        instead = METHODS.get(method) or OLD_METHODS.get(method)
        if instead is None:
            instead = f".{near}()" if near else f"one of {', '.join(public[:12])}"
            if kind.startswith("keras.") and not near:
                instead = f"a method of {kind}, or one of your own"
        of = "an array" if kind == ARRAY else shown(kind)
        blocks = method not in self._members(owner)
        return Finding(node.lineno, f".{method}() of {of}", instead, blocks)

    def _members(self, kind: type | None) -> frozenset[str]:
        return frozenset() if kind is None else members(kind, self._is_served)

    def _of_shape(self, node: ast.Attribute) -> Finding:
        return Finding(node.lineno, f".shape.{node.attr}", OF_SHAPES[node.attr])


def _of_norm(node: ast.Call, name: str) -> Iterator[Finding]:
    """Yields a normalizing function that is to have weights, for which it has no place."""
    module, _, function = name.replace("ipu.ops.", "ipu.").rpartition(".")
    without = {each.arg for each in node.keywords if ast.unparse(each.value) == "False"}
    is_norm = function in ("group_norm", "instance_norm", "layer_norm")
    if module == "ipu.normalization_ops" and is_norm and not without >= {"center", "scale"}:
        yield Finding(node.lineno, f"{module}.{function} with weights", IPU[module])


_LAST = {"keras.optimizers.": "optimizer"}
_CLASSES = {"keras.optimizers.": "keras.optimizers.Optimizer"}
_CLASSES |= {"keras.Model": "keras.Model", "keras.Sequential": "keras.Sequential"}


def _advice(function: str, argument: str, parameters: list[str]) -> str:
    for (beginning, name), instead in KEYWORDS.items():
        if name == argument and function.startswith(beginning):
            return instead
    near = nearest(argument, parameters)
    if near is not None:
        return f"{near}="
    return f"leave it out: it takes {', '.join(p for p in parameters[:10] if p != 'self')}"


def _is_model(node: ast.expr, kind: str | None) -> bool:
    if kind is not None:
        return kind.startswith(_MODELS)
    name = getattr(node, "attr", getattr(node, "id", "")).lower()
    return any(word in name for word in ("model", "net", "encoder", "decoder", "bert"))
