"""Edits of the arguments of a call, and what these arguments are.

f(a, lr=0.1, workers=4)       rename(lr, "learning_rate")    f(a, learning_rate=0.1, workers=4)
                              remove(workers)                f(a, lr=0.1)
Input(shape=(80))             as_tuple(80)                   Input(shape=(80,))
"""

import ast
import re

from millrace_ipu.porting.findings.finding import TextEdit, end_of, replaced, start_of
from millrace_ipu.porting.findings.source_text import SourceText

_REST_OF_LINE = re.compile(r"[ \t]*(#[^\r\n]*)?(\r\n|\r|\n|$)")


def keyword_of(call: ast.Call, name: str) -> ast.keyword | None:
    """Returns the keyword argument with a name; None if the call has none."""
    return next((each for each in call.keywords if each.arg == name), None)


def argument(call: ast.Call, name: str, position: int | None) -> ast.expr | None:
    """Returns the value of an argument, passed by name or by position; None if it is not."""
    keyword = keyword_of(call, name)
    if keyword is not None:
        return keyword.value
    if position is None or position >= len(call.args):
        return None
    value = call.args[position]
    return None if isinstance(value, ast.Starred) else value


def rename(keyword: ast.keyword, name: str) -> TextEdit:
    """Returns the edit that gives a keyword argument another name."""
    line, column = start_of(keyword)
    return TextEdit((line, column), (line, column + len((keyword.arg or "").encode())), name)


def rename_method(method: ast.Attribute, name: str) -> TextEdit:
    """Returns the edit that gives a method or an attribute another name."""
    line, column = end_of(method)
    return TextEdit((line, column - len(method.attr.encode())), (line, column), name)


def remove(keyword: ast.keyword, source: SourceText) -> TextEdit:
    """Returns the edit that leaves a keyword argument out, with its comma and its own lines."""
    text = source.text
    start, end = source.offset(start_of(keyword)), source.offset(end_of(keyword))
    comma = re.compile(r"\s*,").match(text, end)
    line = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    rest = _REST_OF_LINE.match(text, comma.end() if comma else end)
    if not text[line:start].strip() and rest and rest.end() < len(text):
        return source.edit(line, rest.end(), "")  # lines of its own
    before = text[:start].rstrip()
    if before.endswith(","):
        return source.edit(len(before) - 1, end, "")
    after = re.compile(r"\s*,[ \t]*").match(text, end)
    return source.edit(start, after.end() if after else end, "")


def as_tuple(call: ast.Call, value: ast.expr, source: SourceText) -> TextEdit:
    """Returns the edit that makes a tuple of a number, within the parentheses that it has."""
    text = source.text
    start, end = source.offset(start_of(value)), source.offset(end_of(value))
    before, after = text[:start].rstrip(), text[end:].lstrip()
    has_own = before.endswith("(") and after.startswith(")")
    if has_own and len(before) - 1 == source.offset(end_of(call.func)):
        has_own = False  # those of the call
    written = text[start:end]
    return replaced(value, f"{written}," if has_own else f"({written},)")


def with_suffix(value: ast.expr, suffix: str, source: SourceText) -> TextEdit | None:
    """Returns the edit that adds an ending to a file name; None for an expression of other form.

    A literal, or the literal at the end of an expression, gets it within its quotes.
    """
    last = _last_literal(value)
    if last is None:
        written = source.between(start_of(value), end_of(value))
        is_plain = isinstance(value, ast.Name | ast.Attribute) and '"' not in written
        return replaced(value, f'f"{{{written}}}{suffix}"') if is_plain else None
    written = source.between(start_of(last), end_of(last))
    closing = 3 if written.endswith(('"""', "'''")) else 1
    at = source.offset(end_of(last)) - closing
    if suffix.startswith(".weights") and source.text[:at].endswith(".h5"):
        at, suffix = at - len(".h5"), ".weights"
    return source.edit(at, at, suffix)


def ending(value: ast.expr) -> str | None:
    """Returns the last characters of a file name, as far as they are a literal; None if not."""
    last = _last_literal(value)
    if isinstance(last, ast.JoinedStr):
        part = last.values[-1] if last.values else None
        return _text(part)
    return _text(last)


def _text(node: ast.expr | None) -> str | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None


def _last_literal(value: ast.expr) -> ast.Constant | ast.JoinedStr | None:
    if isinstance(value, ast.JoinedStr):
        return value
    if isinstance(value, ast.Constant):
        return value if isinstance(value.value, str) and value.value else None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Div):
        return _last_literal(value.right)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod):
        return _last_literal(value.left)
    if isinstance(value, ast.Call) and value.args:
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        if name in ("join", "Path", "str"):
            return _last_literal(value.args[-1])
        if name == "format" and isinstance(value.func, ast.Attribute):
            return _last_literal(value.func.value)
    return None
