"""Which names statements bind, and which they need from before.

x = y + 1          binds x, needs y
total += x         binds total, needs total (x is there by now)
"""

import ast
from collections.abc import Iterable

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound(nodes: Iterable[ast.AST]) -> list[str]:
    """Returns the names that statements bind in their own scope, in order."""
    found: dict[str, None] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found[node.id] = None
        elif isinstance(node, _NAMED) and node.name is not None:
            found[node.name] = None
        elif isinstance(node, ast.alias):
            found[(node.asname or node.name).partition(".")[0]] = None
        if not isinstance(node, (*_SCOPES, *_COMPREHENSIONS)):
            for child in ast.iter_child_nodes(node):
                visit(child)

    for node in nodes:
        visit(node)
    return list(found)


def read(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the names that are read anywhere within, functions in them included."""
    return {
        node.id
        for root in nodes
        for node in ast.walk(root)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load | ast.Del)
    } | {
        node.target.id
        for root in nodes
        for node in ast.walk(root)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }


def needed(statements: Iterable[ast.stmt]) -> set[str]:
    """Returns the names that statements may read before they bind them themselves."""
    found: set[str] = set()
    _walk(list(statements), set(), found)
    return found


def _walk(statements: list[ast.stmt], known: set[str], found: set[str]) -> set[str]:
    """Goes through statements in order; adds to what is found, returns what is bound for sure."""

    def reads(*nodes: ast.AST | None) -> None:
        found.update(read([node for node in nodes if node is not None]) - known)

    for each in statements:
        if isinstance(each, ast.Assign):
            reads(each.value, *each.targets)
            known = known | set(bound(each.targets))
        elif isinstance(each, ast.If):
            reads(each.test)
            known = _walk(each.body, known, found) & _walk(each.orelse, known, found)
        elif isinstance(each, ast.For | ast.AsyncFor):
            reads(each.iter)
            _walk(each.body, known | set(bound([each.target])), found)
            _walk(each.orelse, known, found)
        elif isinstance(each, ast.While):
            reads(each.test)
            _walk(each.body, known, found)
            _walk(each.orelse, known, found)
        elif isinstance(each, ast.With | ast.AsyncWith):
            reads(*(item.context_expr for item in each.items))
            targets = [item.optional_vars for item in each.items if item.optional_vars]
            known = _walk(each.body, known | set(bound(targets)), found)
        elif isinstance(each, ast.Try):
            for body in (each.body, *(h.body for h in each.handlers), each.orelse, each.finalbody):
                _walk(body, known, found)
        else:
            reads(each)
            known = known | set(bound([each]))
    return known
