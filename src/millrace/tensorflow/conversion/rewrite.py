"""The rewriting itself: loops and tapes of a function become functions that the runtime calls.

for i in tf.range(n):               def body(i_, total):
    x = next(iterator)                  i = i_
    total += x              ->          x = next(iterator)
                                        total += x
                                        return (total,)
                                    (total,) = runtime.for_range(body, (n,), [lambda: total])

with tf.GradientTape() as tape:     def taped(): loss = f(model(x)); return (loss,)
    loss = f(model(x))      ->      tape = tf.GradientTape()
    g = tape.gradient(loss, w)      (loss,) = runtime.taped(tape, taped, ())
                                    g = tape.gradient(loss, w)

step(x)                     ->      runtime.called(step)(x)
"""

import ast
import builtins
import itertools
from collections.abc import Callable
from typing import Any

from millrace.errors import LoopError
from millrace.tensorflow.conversion.source import RUNTIME, bound, needed, read

_BUILTINS = frozenset(dir(builtins))
_LEAVES = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await)


class Rewriter(ast.NodeTransformer):
    """Rewrites the body of one function."""

    def __init__(
        self, function: ast.FunctionDef, path: str, means: Callable[[ast.expr, str], bool]
    ):
        """Prepares for a function.

        Args:
            function: its definition.
            path: of its file, for messages.
            means: whether an expression is `range` or `GradientTape` of TensorFlow.
        """
        self._function, self._path, self._means = function, path, means
        self._loops: list[ast.stmt] = []  # around the statement that is rewritten
        self._numbers = itertools.count(1)

    def rewritten(self) -> list[ast.stmt]:
        """Returns the new statements of the function."""
        return self._statements(self._function.body)

    def _statements(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for each in statements:
            result = self.visit(each)
            new.extend(result if isinstance(result, list) else [result])
        return new

    def visit_For(self, node: ast.For) -> Any:
        """Rewrites a loop over tf.range; other loops stay as they are."""
        call = node.iter
        if not (isinstance(call, ast.Call) and self._means(call.func, "range")):
            return self._around(node)
        if call.keywords:
            self._refuse(node, "an argument of tf.range() by name")
        self._check_body(node)
        carried = self._carried(node)
        body = self._within(node, node.body)
        number = next(self._numbers)
        name, turn = f"loop_{number}_in_{self._function.name}", f"turn_{number}_"
        first = ast.Assign(targets=[node.target], value=_name(turn))
        function = _function(name, [turn, *carried], [first, *body], _tuple(carried))
        values = ast.List(elts=[_thunk(each) for each in carried], ctx=ast.Load())
        run = _call(
            "for_range",
            _name(name),
            _list(map(self.visit, call.args)),
            values,
            ast.Constant(self._at(node)),
        )
        return _placed(node, [function, _assign(carried, run)])

    def visit_While(self, node: ast.While) -> Any:
        """Takes note of the loop: what its body binds may be read in the next turn."""
        return self._around(node)

    def visit_With(self, node: ast.With) -> Any:
        """Rewrites a block of a gradient tape."""
        if not any(self._is_tape(item.context_expr) for item in node.items):
            return self.generic_visit(node)
        item = node.items[0]
        if len(node.items) > 1 or not isinstance(item.optional_vars, ast.Name):
            raise LoopError(
                f"{self._at(node)}: a gradient tape is converted where it stands alone. Write "
                "`with tf.GradientTape() as tape:` in a line of its own."
            )
        tape = item.optional_vars.id
        taped, rest = self._split(node.body, tape)
        self._check_taped(taped)
        names = [name for name in bound(taped) if name != tape]
        given = [name for name in names if name in needed(taped)]
        name = f"taped_{next(self._numbers)}_in_{self._function.name}"
        function = _function(name, given, self._statements(taped), _list(map(_thunk, names)))
        run = _call("taped", _name(tape), _name(name), _tuple(given), ast.Constant(self._at(node)))
        begin = ast.Assign(targets=[_name(tape, ast.Store())], value=item.context_expr)
        new = [begin, function, _assign(names, run)]
        return [*_placed(node, new), *self._statements(rest)]

    def visit_Call(self, node: ast.Call) -> Any:
        """Lets functions that are called be rewritten, too."""
        self.generic_visit(node)
        is_builtin = isinstance(node.func, ast.Name) and node.func.id in _BUILTINS
        if isinstance(node.func, ast.Name | ast.Attribute) and not is_builtin:
            node.func = ast.copy_location(_call("called", node.func), node.func)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Leaves functions within the function alone: they are rewritten when they are called."""
        return node

    def visit_Lambda(self, node: Any) -> Any:
        """Leaves lambdas alone, and classes."""
        return node

    visit_ClassDef = visit_AsyncFunctionDef = visit_Lambda  # noqa: N815

    def _around(self, node: Any) -> Any:
        self._loops.append(node)
        self.generic_visit(node)
        self._loops.pop()
        return node

    def _within(self, node: ast.For, body: list[ast.stmt]) -> list[ast.stmt]:
        self._loops.append(node)
        new = self._statements(body)
        self._loops.pop()
        return new

    def _carried(self, node: ast.For) -> list[str]:
        """Returns what goes round: bound in the body, and read in the next turn or afterwards."""
        after = {
            found.id
            for found in ast.walk(self._function)
            if isinstance(found, ast.Name)
            and isinstance(found.ctx, ast.Load)
            and getattr(found, "lineno", 0) > (node.end_lineno or 0)
        }
        target = bound([node.target])
        live = needed(node.body) | after | read(self._loops)
        return [name for name in bound(node.body) if name in live and name not in target]

    def _split(self, body: list[ast.stmt], tape: str) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """Splits the block of a tape where it is first asked for gradients."""
        for index, each in enumerate(body):
            for call in ast.walk(each):
                if not _is_gradient(call, tape):
                    continue
                taped = body[:index]
                if call.args and not isinstance(call.args[0], ast.Name):  # type: ignore[attr-defined]
                    target = f"target_{next(self._numbers)}_"
                    value = call.args[0]  # type: ignore[attr-defined]
                    assign = ast.Assign(targets=[_name(target, ast.Store())], value=value)
                    taped = [*taped, ast.copy_location(assign, each)]
                    call.args[0] = ast.copy_location(_name(target), value)  # type: ignore[attr-defined]
                return _watching(taped, tape), body[index:]
        return _watching(body, tape), []

    def _is_tape(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and self._means(node.func, "GradientTape")

    def _check_body(self, node: ast.For) -> None:
        if node.orelse:
            self._refuse(node.orelse[0], "`else` of a loop")
        for found in _own(node.body):
            if isinstance(found, ast.Break | ast.Continue):
                self._refuse(found, f"`{type(found).__name__.lower()}`")
        self._check_taped(node.body, "a loop over tf.range()")

    def _check_taped(self, body: list[ast.stmt], where: str = "the block of a tape") -> None:
        for each in body:
            for found in _scope(each):
                if isinstance(found, _LEAVES):
                    self._refuse(found, f"`{type(found).__name__.lower()}`", where)
                if isinstance(found, ast.Global | ast.Nonlocal):
                    self._refuse(found, f"`{type(found).__name__.lower()}`", where)

    def _refuse(self, node: Any, what: str, where: str = "a loop over tf.range()") -> None:
        raise LoopError(
            f"{self._at(node)}: {what} in {where} is not converted: the block becomes a function "
            "that the device runs as a whole. Compute with tf.where() in its place, or loop over "
            "Python's range(), which writes the turns out one by one."
        )

    def _at(self, node: Any) -> str:
        return f"{self._path}:{node.lineno}"


def _own(body: list[ast.stmt]) -> Any:
    """Yields the nodes of a body that are not in a loop or a function of their own."""
    for each in body:
        if not isinstance(each, ast.For | ast.While | ast.FunctionDef | ast.ClassDef):
            yield each
            yield from _own([x for x in ast.iter_child_nodes(each) if isinstance(x, ast.stmt)])


def _scope(node: ast.AST) -> Any:
    yield node
    if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            yield from _scope(child)


def _is_gradient(node: ast.AST, tape: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == tape
        and node.func.attr in ("gradient", "jacobian", "batch_jacobian")
    )


def _watching(body: list[ast.stmt], tape: str) -> list[ast.stmt]:
    """Lets `tape.watch(x)` give x anew, as what is differentiated by."""
    new = []
    for each in body:
        call = getattr(each, "value", None)
        if (
            isinstance(each, ast.Expr)
            and isinstance(call, ast.Call)
            and ast.unparse(call.func) == f"{tape}.watch"
            and len(call.args) == 1
            and isinstance(call.args[0], ast.Name)
        ):
            target = _name(call.args[0].id, ast.Store())
            each = ast.copy_location(ast.Assign(targets=[target], value=call), each)
        new.append(each)
    return new


def _name(name: str, context: ast.expr_context | None = None) -> ast.Name:
    return ast.Name(id=name, ctx=context or ast.Load())


def _list(nodes: Any) -> ast.List:
    return ast.List(elts=list(nodes), ctx=ast.Load())


def _tuple(names: list[str], context: ast.expr_context | None = None) -> ast.Tuple:
    return ast.Tuple(elts=[_name(name, context) for name in names], ctx=context or ast.Load())


def _thunk(name: str) -> ast.Lambda:
    """Returns `lambda: name`: the name may not be bound."""
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=nothing, body=_name(name))


def _call(function: str, *args: ast.expr) -> ast.Call:
    runtime = ast.Attribute(value=_name(RUNTIME), attr=function, ctx=ast.Load())
    return ast.Call(func=runtime, args=list(args), keywords=[])


def _assign(names: list[str], value: ast.expr) -> ast.stmt:
    if not names:
        return ast.Expr(value=value)
    return ast.Assign(targets=[_tuple(names, ast.Store())], value=value)


def _function(
    name: str, parameters: list[str], body: list[ast.stmt], result: ast.expr
) -> ast.FunctionDef:
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg=each) for each in parameters],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    statements = [*body, ast.Return(value=result)]
    function = ast.FunctionDef(name=name, args=arguments, body=statements, decorator_list=[])
    function.type_params = []  # type: ignore[attr-defined]  # of Python 3.12
    return function


def _placed(node: ast.stmt, statements: list[ast.stmt]) -> list[ast.stmt]:
    """Gives what is new the line of the statement that it stands for."""
    for each in statements:
        for new in ast.walk(each):
            if isinstance(new, ast.stmt | ast.expr | ast.arg) and not hasattr(new, "lineno"):
                new.lineno = new.end_lineno = node.lineno
                new.col_offset = new.end_col_offset = node.col_offset
    return statements
