"""The parts of a program that will not run on millrace, line by line.

    @tf.function                        also in functions that it calls, and in bodies of loops
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x))
        gradients = tape.gradient(loss, model.trainable_variables)

source -> syntax tree -> names, calls and imports under their full names
       -> Finding(line, what, instead, blocks)
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millrace.porting.replacements import (
    IPU,
    KEYWORDS,
    METHOD_KEYWORDS,
    METHODS,
    MODULES,
    OPERATIONS,
    TENSORFLOW,
    canonical,
    exists,
    longest,
    operation,
    option,
)

Resolve = Callable[[ast.AST], str | None]

# The text of the report for a tape.
TAPE = (
    "loss, gradients = millrace.value_and_grad(loss_fn, variables) in a function of "
    "millrace.compile, or model.fit"
)
_COMPILE = (
    "tensorflow.function",
    "ipu.ipu_compiler.compile",
    "ipu.loops.repeat",
    "ipu.loops.while_loop",
)


def tapes(tree: ast.AST, resolve: Resolve) -> Iterator[tuple[ast.Call, bool]]:
    """Yields the calls that create tapes, and whether each is outside of compiled functions.

    Args:
        tree: syntax tree of a program.
        resolve: returns the dotted name that an expression stands for.
    """
    compiled = _compiled(tree, resolve)
    for functions, call in _tapes(tree, resolve, ()):
        yield call, not compiled.intersection(functions)


def _compiled(tree: ast.AST, resolve: Resolve) -> set[str]:
    """Returns the names of compiled functions, and of the functions that they call."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names: set[str] = set()
    for node in functions:
        decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
        if any(resolve(each) in _COMPILE for each in decorators):
            names.add(node.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and resolve(node.func) in _COMPILE:
            names.update(map(_name, (*node.args[:2], *(each.value for each in node.keywords))))
    count = 0
    while count < len(names):
        count = len(names)
        for node in functions:
            if node.name in names:
                names |= {_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    return names - {""}


def _name(node: ast.AST) -> str:
    """Returns `step` for `step` and `self.step`; an empty string for another expression."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _tapes(
    node: ast.AST, resolve: Resolve, inside: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ast.Call]]:
    """Yields the names of the functions around each tape, and the call that creates it."""
    for child in ast.iter_child_nodes(node):
        around = (*inside, child.name) if isinstance(child, ast.FunctionDef) else inside
        if isinstance(child, ast.Call) and (resolve(child.func) or "").endswith(".GradientTape"):
            yield inside, child
        yield from _tapes(child, resolve, around)


_OWN = ("ipu", "tensorflow", "keras")
_INSTALL = "keras.ops or jax.numpy; or install tensorflow, whose names then work, too"
_TABLES = {"ipu": IPU, "tensorflow": TENSORFLOW}


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a program that millrace does not run, or runs under another name."""

    line: int
    what: str
    instead: str  # the text to write in its place
    blocks: bool = True  # whether it prevents the program from running


def port(source: str) -> tuple[Finding, ...]:
    """Returns the parts of a program that will not run, in the order of its lines.

    Args:
        source: source text of a Python program.

    Raises:
        SyntaxError: if the text is not Python.
    """
    tree = ast.parse(source)
    visitor = _FindingVisitor()
    visitor.visit(tree)
    findings = [*visitor.findings]
    for call, blocks in tapes(tree, visitor.resolve):
        what = "tf.GradientTape outside of a tf.function" if blocks else "tf.GradientTape"
        findings.append(Finding(call.lineno, what, TAPE, blocks))
    unique = {(finding.line, finding.what): finding for finding in findings}
    return tuple(sorted(unique.values(), key=lambda finding: (finding.line, finding.what)))


def uses_tensorflow(source: str) -> bool:
    """Whether a program imports TensorFlow, or an IPU package other than millrace's."""
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


class _FindingVisitor(ast.NodeVisitor):
    """Collects the findings of a program."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._names: dict[str, str] = {}  # as imported -> canonical
        self._configs: set[str] = set()  # variables that are an IPUConfig
        self._layer = ""  # the name of the layer class around the current node

    def resolve(self, node: ast.AST) -> str | None:
        """Returns the canonical dotted name of an expression; None if it was not imported."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._names:
            return None
        return canonical(".".join([self._names[node.id], *reversed(attributes)]))

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
        """`reduce_mean`, imported by its name; its import was checked for existence."""
        name = self.resolve(node)
        if self._layer and name and name.startswith("tensorflow."):
            self._check_in_layer(node, name)

    def visit_Call(self, node: ast.Call) -> None:
        """Arguments and methods that no longer exist."""
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
        """Layers and models: JAX traces their code."""
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
        before, self._layer = self._layer, name
        self.generic_visit(node)
        self._layer = before

    def _add(self, node: ast.AST, what: str, instead: str, blocks: bool = True) -> None:
        self.findings.append(Finding(getattr(node, "lineno", 1), what, instead, blocks))

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
        instead = longest(_TABLES.get(root, {}), name)
        if root == "ipu" and instead is not None and name.startswith("ipu.keras."):
            self._add(node, shown, instead)  # the name exists, but raises when it is called
        elif exists(name):
            if self._layer and root == "tensorflow":
                self._check_in_layer(node, name)
        elif instead is not None:
            self._add(node, shown, instead)
        elif root == "ipu":
            self._add(node, shown, "nothing in millrace.ipu; see docs/porting.md")
        elif root == "keras":
            self._add(node, shown, _of_keras(name))
        else:
            self._add(node, shown, operation(name, OPERATIONS) or _INSTALL)

    def _check_in_layer(self, node: ast.AST, name: str) -> None:
        """Suggests Keras's own operation for TensorFlow's in a layer, where both work."""
        instead = operation(name, OPERATIONS)
        if instead is not None and exists(name):
            shown = name.replace("tensorflow.", "tf.", 1)
            self._add(node, f"{shown} in {self._layer}", instead, blocks=False)

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
        is_option, advice = option(path)
        if not is_option:
            self._add(node, f"IPUConfig.{path}", advice)
        elif advice:
            self._add(node, f"IPUConfig.{path}, which has no effect", advice, blocks=False)


def _is_tape(name: str) -> bool:
    return name.endswith(".GradientTape")


def _of_keras(name: str) -> str:
    if name.startswith("keras.backend."):
        return operation(name, OPERATIONS) or "keras.ops, or jax.numpy"
    if ".experimental" in name and exists(name.replace(".experimental", "")):
        return name.replace(".experimental", "")
    last = name.rpartition(".")[2]
    for module in ("layers", "optimizers", "losses", "utils", "random"):
        if exists(f"keras.{module}.{last}"):
            return f"keras.{module}.{last}"
    return "its replacement in Keras 3"


def _path(node: ast.AST) -> list[str]:
    """Returns the names in `config.matmuls.poplar_options`; none for another expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []
