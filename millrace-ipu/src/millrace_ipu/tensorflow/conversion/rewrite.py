"""Rewrites the loops and tapes of a function into functions that the runtime calls.

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

step(x)                     ->      runtime.converted(step)(x)
"""

import ast
import builtins
import itertools
from collections.abc import Callable, Iterable, Iterator

from millrace.errors import LoopError
from millrace_ipu.tensorflow.conversion.source import RUNTIME, bound, needed, read

_BUILTINS = frozenset(dir(builtins))
_REFUSED = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)


class Rewriter(ast.NodeTransformer):
    """Rewrites the body of one function."""

    def __init__(
        self, function: ast.FunctionDef, path: str, names: Callable[[ast.expr, str], bool]
    ):
        """Takes the definition of a function.

        Args:
            function: its definition.
            path: of its file, for messages.
            names: returns whether an expression stands for TensorFlow's `range`, or for its
                `GradientTape`.
        """
        self._function, self._path, self._names = function, path, names
        self._loops: list[ast.stmt] = []  # around the statement that is being rewritten
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

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        """Rewrites a loop over tf.range; other loops stay unchanged."""
        call = node.iter
        if not (isinstance(call, ast.Call) and self._names(call.func, "range")):
            return self._visit_loop(node)
        if call.keywords:
            self._refuse(node, "an argument of tf.range() by name")
        self._check_body(node)
        carried = self._carried(node)
        body = self._within(node, node.body)
        number = next(self._numbers)
        name, index = f"loop_{number}_in_{self._function.name}", f"index_{number}_"
        first = ast.Assign(targets=[node.target], value=_name(index))
        function = _function(name, [index, *carried], [first, *body], _tuple(carried))
        values = ast.List(elts=[_thunk(each) for each in carried], ctx=ast.Load())
        run = _call(
            "for_range",
            _name(name),
            _list(map(self.visit, call.args)),
            values,
            ast.Constant(self._at(node)),
        )
        return _located(node, [function, _assign(carried, run)])

    def visit_While(self, node: ast.While) -> ast.AST:
        """Notes the loop: its next iteration may read the names that its body binds."""
        return self._visit_loop(node)

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        """Rewrites a block of a gradient tape."""
        if not any(self._is_tape(item.context_expr) for item in node.items):
            return self.generic_visit(node)
        item = node.items[0]
        if len(node.items) > 1 or not isinstance(item.optional_vars, ast.Name):
            raise LoopError(
                f"{self._at(node)}: a gradient tape is converted only if it is alone in its `with` "
                "statement. Write `with tf.GradientTape() as tape:`, with other context managers "
                "in statements around it."
            )
        tape = item.optional_vars.id
        taped, after = self._split(node.body, tape)
        self._check_taped(taped)
        names = [name for name in bound(taped) if name != tape]
        args = [name for name in names if name in needed(taped)]
        name = f"taped_{next(self._numbers)}_in_{self._function.name}"
        function = _function(name, args, self._statements(taped), _list(map(_thunk, names)))
        run = _call("taped", _name(tape), _name(name), _tuple(args), ast.Constant(self._at(node)))
        begin = ast.Assign(targets=[_name(tape, ast.Store())], value=item.context_expr)
        new = [begin, function, _assign(names, run)]
        return [*_located(node, new), *self._statements(after)]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Has the called function rewritten, too."""
        self.generic_visit(node)
        is_builtin = isinstance(node.func, ast.Name) and node.func.id in _BUILTINS
        if isinstance(node.func, ast.Name | ast.Attribute) and not is_builtin:
            node.func = ast.copy_location(_call("converted", node.func), node.func)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Skips inner functions: they are rewritten when they are called."""
        return node

    def visit_Lambda(self, node: ast.AST) -> ast.AST:
        """Skips lambdas and classes."""
        return node

    visit_ClassDef = visit_AsyncFunctionDef = visit_Lambda  # noqa: N815

    def _visit_loop(self, node: ast.For | ast.While) -> ast.AST:
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
        """Returns the carried names: bound in the body, and read by the next iteration or later."""
        after = {
            other.id
            for other in ast.walk(self._function)
            if isinstance(other, ast.Name)
            and isinstance(other.ctx, ast.Load)
            and getattr(other, "lineno", 0) > (node.end_lineno or 0)
        }
        target = bound([node.target])
        live = needed(node.body) | after | read(self._loops)
        return [name for name in bound(node.body) if name in live and name not in target]

    def _split(self, body: list[ast.stmt], tape: str) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """Splits the block of a tape before the first call that asks for gradients."""
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
        return isinstance(node, ast.Call) and self._names(node.func, "GradientTape")

    def _check_body(self, node: ast.For) -> None:
        if node.orelse:
            self._refuse(node.orelse[0], "`else` of a loop")
        for statement in _of_this_loop(node.body):
            if isinstance(statement, ast.Break | ast.Continue):
                self._refuse(statement, f"`{type(statement).__name__.lower()}`")
        self._check_taped(node.body, "a loop over tf.range()")

    def _check_taped(self, body: list[ast.stmt], where: str = "the block of a tape") -> None:
        for statement in body:
            for node in _scope(statement):
                if isinstance(node, _REFUSED):
                    self._refuse(node, f"`{type(node).__name__.lower()}`", where)

    def _refuse(
        self, node: ast.stmt | ast.expr, what: str, where: str = "a loop over tf.range()"
    ) -> None:
        raise LoopError(
            f"{self._at(node)}: {what} in {where} is not converted: the block becomes a function "
            "that the device runs as a whole. Use tf.where() instead, or loop over Python's "
            "range(), which unrolls the loop."
        )

    def _at(self, node: ast.stmt | ast.expr) -> str:
        return f"{self._path}:{node.lineno}"


def _of_this_loop(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a body, without those of inner loops and functions."""
    for each in body:
        if not isinstance(each, ast.For | ast.While | ast.FunctionDef | ast.ClassDef):
            yield each
            inner = [x for x in ast.iter_child_nodes(each) if isinstance(x, ast.stmt)]
            yield from _of_this_loop(inner)


def _scope(node: ast.AST) -> Iterator[ast.AST]:
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
    """Turns `tape.watch(x)` into `x = tape.watch(x)`: gradients are taken by its result."""
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


def _list(nodes: Iterable[ast.expr]) -> ast.List:
    return ast.List(elts=list(nodes), ctx=ast.Load())


def _tuple(names: list[str], context: ast.expr_context | None = None) -> ast.Tuple:
    return ast.Tuple(elts=[_name(name, context) for name in names], ctx=context or ast.Load())


def _thunk(name: str) -> ast.Lambda:
    """Returns `lambda: name`, as the name may be unbound when the loop begins."""
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


def _located(node: ast.stmt, statements: list[ast.stmt]) -> list[ast.stmt]:
    """Gives new nodes the line of the statement that they replace."""
    for each in statements:
        for new in ast.walk(each):
            if isinstance(new, ast.stmt | ast.expr | ast.arg) and not hasattr(new, "lineno"):
                new.lineno = new.end_lineno = node.lineno
                new.col_offset = new.end_col_offset = node.col_offset
    return statements
