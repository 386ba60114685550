"""What of a program will not carry over, line by line, found without running it.

source -> syntax tree -> each name, call and import, as what it is whatever it was imported as
       -> Finding(line, what, what to write instead, whether it stands in the way)
"""

import ast
from dataclasses import dataclass

from millrace.porting.names import canonical, exists, operation, option
from millrace.porting.replacements import (
    IPU,
    KEYWORDS,
    METHOD_KEYWORDS,
    METHODS,
    MODULES,
    OPERATIONS,
    TENSORFLOW,
    longest,
)
from millrace.porting.tapes import tape_findings

_OWN = ("ipu", "tensorflow", "keras")
_INSTALL = "keras.ops or jax.numpy; or install tensorflow, whose names are found, too"
_TABLES = {"ipu": IPU, "tensorflow": TENSORFLOW}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a program does, and what to write instead."""

    line: int
    what: str
    instead: str
    blocks: bool = True  # whether the program cannot run with it


def port(source: str) -> tuple[Finding, ...]:
    """Returns what of a program will not carry over, in the order of its lines.

    Args:
        source: of a Python program.

    Raises:
        SyntaxError: if it is no Python.
    """
    tree = ast.parse(source)
    visitor = _Visitor()
    visitor.visit(tree)
    found = {(line, what): Finding(line, what, to, blocks) for line, what, to, blocks in [
        *visitor.found, *tape_findings(tree, visitor.resolve)
    ]}  # fmt: skip
    return tuple(sorted(found.values(), key=lambda each: (each.line, each.what)))


def uses_tensorflow(source: str) -> bool:
    """Whether a program imports TensorFlow, or a package for the IPU that is not millrace's."""
    modules = {
        name
        for node in ast.walk(ast.parse(source))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    roots = ("tensorflow", "ipu_tensorflow_addons")
    return any(name.partition(".")[0] in roots or name == "keras.ipu" for name in modules)


class _Visitor(ast.NodeVisitor):
    """Walks over a program, and takes note of what it finds."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, str, bool]] = []
        self._names: dict[str, str] = {}  # as imported -> canonical
        self._configs: set[str] = set()  # variables that are an IPUConfig
        self._inside = ""  # the layer whose code this is

    def resolve(self, node: ast.AST) -> str | None:
        """Returns the canonical dotted name of an expression; None if it is no imported name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._names:
            return None
        return canonical(".".join([self._names[node.id], *reversed(parts)]))

    def visit_Import(self, node: ast.Import) -> None:
        """`import tensorflow.keras as keras`."""
        for alias in node.names:
            self._check_module(node, alias.name)
            bound = alias.name if alias.asname else alias.name.partition(".")[0]
            self._names[alias.asname or bound] = bound

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """`from tensorflow.python import ipu`."""
        if node.level or not node.module:
            return
        is_own = canonical(node.module).partition(".")[0] in _OWN
        if not is_own or node.module.startswith("keras.src"):
            self._check_module(node, node.module)
        for alias in node.names:
            name = canonical(f"{node.module}.{alias.name}")
            self._names[alias.asname or alias.name] = name
            if alias.name == "*" and is_own:
                self._add(node, f"from {node.module} import *", "the names that are used", False)
            elif is_own:
                self._check_name(node, name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """`tf.keras.layers.Dense`, as a whole."""
        name = self.resolve(node)
        if name is None:
            self.generic_visit(node)
        elif not isinstance(node.ctx, ast.Store):
            self._check_name(node, name)

    def visit_Name(self, node: ast.Name) -> None:
        """`reduce_mean`, imported by its name; whether it exists was said at its import."""
        name = self.resolve(node)
        if self._inside and name and name.startswith("tensorflow."):
            self._check_inside(node, name)

    def visit_Call(self, node: ast.Call) -> None:
        """Arguments that are no longer there, and methods."""
        name = self.resolve(node.func)
        if name is not None:
            self._check_keywords(node, name)
        elif isinstance(node.func, ast.Attribute):
            self._check_method(node, node.func.attr)
        if name == "keras.layers.Lambda":
            self._within("Lambda", node)
        else:
            self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """The code of a layer or a model is traced by JAX."""
        bases = [self.resolve(base) or "" for base in node.bases]
        is_layer = any(base.startswith(("keras.layers.", "keras.Model")) for base in bases)
        self._within(node.name if is_layer else "", node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """`config = IPUConfig()`, `config.matmuls.poplar_options = ...`."""
        for target in node.targets:
            path = _path(target)
            if path and path[0] in self._configs and len(path) > 1:
                self._check_option(target, ".".join(path[1:]))
        called = self.resolve(node.value.func) if isinstance(node.value, ast.Call) else None
        if called in ("ipu.config.IPUConfig", "ipu.utils.IPUConfig"):
            self._configs |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        self.generic_visit(node)

    def _within(self, name: str, node: ast.AST) -> None:
        before, self._inside = self._inside, name
        self.generic_visit(node)
        self._inside = before

    def _add(self, node: ast.AST, what: str, instead: str, blocks: bool = True) -> None:
        self.found.append((getattr(node, "lineno", 1), what, instead, blocks))

    def _check_module(self, node: ast.AST, name: str) -> None:
        instead = longest(MODULES, name)
        if instead:
            self._add(node, f"import of {name}", instead)
        elif canonical(name).partition(".")[0] in ("ipu", "tensorflow") and "." in canonical(name):
            self._check_name(node, canonical(name))

    def _check_name(self, node: ast.AST, name: str) -> None:
        root = name.partition(".")[0]
        if root not in _OWN or _is_tape(name):
            return
        shown = name.replace("tensorflow.", "tf.", 1)
        told = longest(_TABLES.get(root, {}), name)
        if root == "ipu" and told is not None and name.startswith("ipu.keras."):
            self._add(node, shown, told)  # the name is there, and raises when it is called
        elif exists(name):
            if self._inside and root == "tensorflow":
                self._check_inside(node, name)
        elif told is not None:
            self._add(node, shown, told)
        elif root == "ipu":
            self._add(node, shown, "nothing in millrace.ipu; see docs/porting.md")
        elif root == "keras":
            self._add(node, shown, _of_keras(name))
        else:
            self._add(node, shown, operation(name, OPERATIONS) or _INSTALL)

    def _check_inside(self, node: ast.AST, name: str) -> None:
        """A layer is compiled as it stands: the stand-in serves, Keras's own name says more."""
        instead = operation(name, OPERATIONS)
        if instead is not None and exists(name):
            shown = name.replace("tensorflow.", "tf.", 1)
            self._add(node, f"{shown} in {self._inside}", instead, blocks=False)

    def _check_keywords(self, node: ast.Call, name: str) -> None:
        for keyword in node.keywords:
            for (function, argument), instead in KEYWORDS.items():
                if keyword.arg == argument and name.startswith(function):
                    self._add(keyword.value, f"{argument}= of {name}", instead)

    def _check_method(self, node: ast.Call, method: str) -> None:
        if method in METHODS:
            self._add(node, f".{method}()", METHODS[method])
        for keyword in node.keywords:
            instead = METHOD_KEYWORDS.get((method, keyword.arg or ""))
            if instead is not None:
                self._add(keyword.value, f"{keyword.arg}= of .{method}()", instead)

    def _check_option(self, node: ast.AST, path: str) -> None:
        known, advice = option(path)
        if not known:
            self._add(node, f"IPUConfig.{path}", advice)
        elif advice:
            self._add(node, f"IPUConfig.{path}, which does nothing", advice, blocks=False)


def _is_tape(name: str) -> bool:
    return name.endswith(".GradientTape")


def _of_keras(name: str) -> str:
    if name.startswith("keras.backend."):
        return operation(name, OPERATIONS) or "keras.ops, or jax.numpy"
    if ".experimental" in name and exists(name.replace(".experimental", "")):
        return name.replace(".experimental", "")
    last = name.rpartition(".")[2]
    for place in ("layers", "optimizers", "losses", "utils", "random"):
        if exists(f"keras.{place}.{last}"):
            return f"keras.{place}.{last}"
    return "what Keras 3 has in its place"


def _path(node: ast.AST) -> list[str]:
    """Returns the parts of `config.matmuls.poplar_options`; none for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else []
