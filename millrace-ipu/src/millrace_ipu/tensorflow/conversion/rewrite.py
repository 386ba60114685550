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
from collections.abc import Callable, Iterator
from typing import Any

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
        limits = ast.List(elts=[self.visit(each) for each in call.args], ctx=ast.Load())
        function, run = _parsed(
            f"""
def {name}({", ".join([index, *carried])}):
    return ({_listed(carried)})
{_targets(carried)}{RUNTIME}.for_range({name}, [], [{_thunks(carried)}], {self._at(node)!r})
"""
        )
        first = ast.Assign(targets=[node.target], value=ast.Name(id=index, ctx=ast.Load()))
        function.body[:0] = [first, *body]
        run.value.args[1] = limits
        return _located(node, [function, run])

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
        function, run = _parsed(
            f"""
def {name}({", ".join(args)}):
    return [{_thunks(names)}]
{_targets(names)}{RUNTIME}.taped({tape}, {name}, ({_listed(args)}), {self._at(node)!r})
"""
        )
        function.body[:0] = self._statements(taped)
        begin = ast.Assign(targets=[item.optional_vars], value=item.context_expr)
        return [*_located(node, [begin, function, run]), *self._statements(after)]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Has the called function rewritten, too."""
        self.generic_visit(node)
        is_builtin = isinstance(node.func, ast.Name) and node.func.id in _BUILTINS
        if isinstance(node.func, ast.Name | ast.Attribute) and not is_builtin:
            call = ast.parse(f"{RUNTIME}.converted(_)", mode="eval").body
            call.args = [node.func]  # type: ignore[attr-defined]
            node.func = ast.copy_location(call, node.func)
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
                    (assign,) = _parsed(f"{target} = _")
                    assign.value = value
                    taped = [*taped, *_located(each, [assign])]
                    read = ast.Name(id=target, ctx=ast.Load())
                    call.args[0] = ast.copy_location(read, value)  # type: ignore[attr-defined]
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
            (assign,) = _parsed(f"{call.args[0].id} = _")
            assign.value = call
            (each,) = _located(each, [assign])
        new.append(each)
    return new


def _parsed(text: str) -> Any:
    """Returns the statements of a text, without places in a file."""
    statements = ast.parse(text).body
    for statement in statements:
        for node in ast.walk(statement):
            for place in ("lineno", "end_lineno", "col_offset", "end_col_offset"):
                vars(node).pop(place, None)
    return statements


def _listed(names: list[str]) -> str:
    return "".join(f"{name}, " for name in names)


def _targets(names: list[str]) -> str:
    return f"({_listed(names)}) = " if names else ""


def _thunks(names: list[str]) -> str:
    """Returns functions of no arguments, as a name may be unbound when the loop begins."""
    return ", ".join(f"lambda: {name}" for name in names)


def _located(node: ast.stmt, statements: list[ast.stmt]) -> list[ast.stmt]:
    """Gives new nodes the line of the statement that they replace."""
    for each in statements:
        for new in ast.walk(each):
            if isinstance(new, ast.stmt | ast.expr | ast.arg) and not hasattr(new, "lineno"):
                new.lineno = new.end_lineno = node.lineno
                new.col_offset = new.end_col_offset = node.col_offset
    return statements
