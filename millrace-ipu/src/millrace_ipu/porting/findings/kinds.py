"""The classes of the values of a program, as far as its text tells.

model = keras.Sequential([...])            model    ->  keras.Sequential
data = tf.data.Dataset.range(3).batch(2)   data     ->  tensorflow.data.Dataset
x = tf.reduce_mean(y)                      x        ->  array
def make(): return keras.Model(a, b)       make()   ->  keras.Model
class Net(keras.Model): ...                self     ->  Net, with the bases that it has

A name that gets values of several classes, or of one that is not known, has none.
"""

import ast

from millrace_ipu.porting.findings.signatures import class_of, value_of
from millrace_ipu.porting.names import Function, ImportedNames, parameters, within

ARRAY = "array"
_RUNNING = "?"  # of a value that is computed from itself: `data = data.repeat()`
_DEEPEST = 50
UNKNOWN_SIZE = -1  # a size of an array, such as x.shape[1]
_DATASET = "tensorflow.data.Dataset"
_OTHER_RESULTS = {"as_numpy_iterator", "cardinality", "reduce", "apply"}
_OTHERS = ("function", "name_scope", "device", "constant_initializer")


class Kinds:
    """The classes of a module's expressions.

    Args:
        tree: the syntax tree of the module.
        names: what its names stand for.
        has_arrays: whether operations of `tf` return arrays: not in programs of TensorFlow 1.
    """

    def __init__(self, tree: ast.Module, names: ImportedNames, has_arrays: bool = True) -> None:
        self._names, self._has_arrays = names, has_arrays
        self.classes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
        self._functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self._scopes: dict[int, _Scope] = {}
        self._running: set[int] = set()
        self._place(tree, _Scope(tree, None, ""))

    def of(self, node: ast.AST) -> str | None:
        """Returns the canonical name of an expression's class; None where it is unknown."""
        kind = self._kind(node)
        return None if kind == _RUNNING else kind

    def _kind(self, node: ast.AST) -> str | None:
        if len(self._running) > _DEEPEST:
            return None
        if id(node) in self._running:
            return _RUNNING
        self._running.add(id(node))
        try:
            return self._of(node)
        finally:
            self._running.discard(id(node))

    def base_of(self, kind: str | None) -> tuple[str | None, set[str]]:
        """Returns the class of Keras or millrace below a class of the program.

        Returns:
            Its canonical name; None if there is not exactly one. And what the program's own
            classes define on top of it.
        """
        own: set[str] = set()
        while kind in self.classes:
            node = self.classes[kind]
            own |= _defined(node)
            if len(node.bases) != 1:
                return None, own
            kind = self._names.resolve(node.bases[0]) or getattr(node.bases[0], "id", None)
        return (kind if kind == ARRAY or class_of(kind or "") else None), own

    def value(self, node: ast.AST) -> object:
        """Returns the constant that an expression is; None where the text does not tell."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "shape":
            return UNKNOWN_SIZE if isinstance(node.slice, ast.Constant) else None
        if not isinstance(node, ast.Name) or id(node) in self._running:
            return None
        scope = self._scopes.get(id(node))
        while scope is not None and node.id not in scope.values:
            if node.id in scope.parameters:
                return None
            scope = scope.outer
        values = [] if scope is None else scope.values[node.id]
        self._running.add(id(node))
        try:
            return self.value(values[0]) if len(values) == 1 and values[0] is not None else None
        finally:
            self._running.discard(id(node))

    def _of(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            scope = self._scopes.get(id(node))
            return None if scope is None else self._of_name(node.id, scope)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node)
        return self._of_call(node) if isinstance(node, ast.Call) else None

    def _of_name(self, name: str, scope: "_Scope | None") -> str | None:
        while scope is not None:
            if name == "self" and scope.kind and name in scope.parameters[:1]:
                return scope.kind
            if name in scope.parameters:
                return None
            if name in scope.values:
                return self._common(scope.values[name])
            scope = scope.outer
        return None

    def _common(self, values: list[ast.expr | None]) -> str | None:
        kinds = {None if value is None else self._kind(value) for value in values}
        if len(kinds) > 1:
            kinds.discard(_RUNNING)
        return kinds.pop() if len(kinds) == 1 else None

    def _of_attribute(self, node: ast.Attribute) -> str | None:
        if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            return None
        kind = self.of(node.value)
        if kind not in self.classes:
            return None
        values = [
            each.value
            for each in ast.walk(self.classes[kind])
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Attribute)
            and target.attr == node.attr
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        ]
        return self._common([*values]) if values else None

    def _of_call(self, node: ast.Call) -> str | None:
        name = self._names.resolve(node.func)
        if name is not None:
            return self._of_result(name)
        if isinstance(node.func, ast.Name):
            if node.func.id in self.classes:
                return node.func.id
            return self._of_function(self._functions.get(node.func.id))
        if not isinstance(node.func, ast.Attribute):
            return None
        owner = self._kind(node.func.value)
        if owner == _RUNNING:
            return owner
        if owner == _DATASET and node.func.attr not in _OTHER_RESULTS:
            return _DATASET
        return None

    def _of_result(self, name: str) -> str | None:
        if name.startswith(f"{_DATASET}.") and name.count(".") == _DATASET.count(".") + 1:
            return _DATASET
        if name in ("keras.Input", "keras.layers.Input"):
            return "keras.KerasTensor"
        kind = class_of(name)
        if kind is not None:
            return name
        value = value_of(name)
        is_operation = name.startswith("tensorflow.") and hasattr(value, "__wrapped__")
        is_operation &= not name.startswith(("tensorflow.compat", "tensorflow.data"))
        is_operation &= name.rpartition(".")[2] not in _OTHERS
        return ARRAY if is_operation and self._has_arrays else None

    def _of_function(self, function: ast.FunctionDef | None) -> str | None:
        if function is None or function.decorator_list or _is_generator(function):
            return None
        values = [each.value for each in within(function) if isinstance(each, ast.Return)]
        return self._common(values) if values else None

    def _place(self, node: ast.AST, scope: "_Scope") -> None:
        for child in ast.iter_child_nodes(node):
            self._scopes[id(child)] = scope
            if isinstance(child, ast.ClassDef):
                self._place(child, _Scope(child, scope, child.name, is_class=True))
            elif isinstance(child, Function):
                kind = scope.kind if scope.is_class else ""
                outer = scope.outer if scope.is_class else scope
                self._place(child, _Scope(child, outer, kind))
            else:
                self._place(child, scope)


class _Scope:
    """The values that the names of a function or of the module get; None for another value."""

    def __init__(
        self, node: ast.AST, outer: "_Scope | None", kind: str, is_class: bool = False
    ) -> None:
        self.outer, self.kind, self.is_class = outer, kind, is_class
        self.parameters = parameters(node) if isinstance(node, Function) else []
        self.values: dict[str, list[ast.expr | None]] = {}
        plain: set[int] = set()
        for each in within(node):
            if isinstance(each, ast.Assign | ast.AnnAssign):
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        plain.add(id(target))
                        self.values.setdefault(target.id, []).append(each.value)
        for each in within(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                if id(each) not in plain:
                    self.values.setdefault(each.id, []).append(None)
            elif isinstance(each, ast.FunctionDef | ast.ClassDef | ast.alias):
                bound = each.name if not isinstance(each, ast.alias) else each.asname or each.name
                self.values.setdefault(bound, []).append(None)


def _defined(node: ast.ClassDef) -> set[str]:
    """Returns the names that a class of a program defines, in its body and on `self`."""
    names = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            names.add(each.attr)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
    return names


def _is_generator(function: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in within(function))
