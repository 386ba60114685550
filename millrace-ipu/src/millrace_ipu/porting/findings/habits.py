"""Findings for the habits of the table (keras2.py), each with the edit that it has.

keras.optimizers.SGD(lr=0.1)         lr= of keras.optimizers.SGD  ->  learning_rate=
model.load_weights("w").expect_...   .expect_partial()  ->  nothing: load_weights returns nothing
optimizer.lr                         optimizer.lr  ->  optimizer.learning_rate
"""

import ast
import re
from collections.abc import Iterator

from millrace_ipu.porting.findings.source_text import Finding, SourceText, TextEdit
from millrace_ipu.porting.keras2 import RECEIVERS, Edit, Habit, habits_of
from millrace_ipu.porting.replacements import shown

_REST_OF_LINE = re.compile(r"[ \t]*(#[^\r\n]*)?(\r\n|\r|\n|$)")
_WEIGHTS = ".weights.h5"


class HabitRules:
    """The habits of a file.

    Args:
        source: its text.
        is_served: whether `millrace run` runs the program, which mends most habits.
        defined: the functions and methods that the program defines itself.
    """

    def __init__(self, source: SourceText, is_served: bool, defined: frozenset[str]) -> None:
        self._source, self._is_served, self._defined = source, is_served, defined

    def of_call(self, call: ast.Call, name: str | None) -> Iterator[Finding]:
        """Yields the findings of a call, but not those of its arguments.

        Args:
            call: the call.
            name: the canonical name of the function; None if it was not imported.
        """
        func = call.func
        if name is not None:
            yield from self._of_arguments(call, [name], shown(name))
        elif isinstance(func, ast.Attribute) and func.attr not in self._defined:
            keys = _keys(func)
            yield from self._of_arguments(call, keys, f".{func.attr}()")
            yield from self._of_member(func, call, keys, f".{func.attr}()")

    def of_attribute(self, node: ast.Attribute) -> Iterator[Finding]:
        """Yields the findings of an attribute that is not called, where a name tells the object."""
        keys = _keys(node)[:-1]
        if keys and node.attr not in self._defined:
            yield from self._of_member(node, None, keys, keys[0])

    def _of_member(
        self, node: ast.Attribute, call: ast.Call | None, keys: list[str], what: str
    ) -> Iterator[Finding]:
        for key in keys:
            habits = [habit for habit in habits_of(key) if not habit.argument]
            for habit in habits:
                edits = self._edits_of_member(node, call, habit)
                if edits or habit.edit is not Edit.KEYWORDS:
                    yield self._finding(call or node, habit, what, edits)
            if habits:
                return

    def _edits_of_member(
        self, node: ast.Attribute, call: ast.Call | None, habit: Habit
    ) -> list[TextEdit]:
        if habit.edit is Edit.RENAME:
            _, end = self._source.span(node)
            return [TextEdit(end - len(node.attr), end, habit.to)]
        if habit.edit is Edit.EXPRESSION and call is not None:
            before, _, after = habit.to.partition("{}")
            start, end = self._source.span(call)
            rest = TextEdit(self._source.span(node.value)[1], end, after)
            return [TextEdit(start, start, before), rest] if before else [rest]
        if habit.edit is Edit.KEYWORDS and call is not None:
            names = habit.to.split()
            first = call.args[0] if call.args else None
            is_name = isinstance(first, ast.JoinedStr) or isinstance(_literal(first), ast.Constant)
            if is_name and len(call.args) <= len(names):
                starts = (self._source.span(value)[0] for value in call.args)
                pairs = zip(names, starts, strict=False)
                return [TextEdit(start, start, f"{name}=") for name, start in pairs]
        return []

    def _of_arguments(self, call: ast.Call, keys: list[str], label: str) -> Iterator[Finding]:
        found: set[str] = set()
        for habit in (habit for key in keys for habit in habits_of(key)):
            keyword = next((k for k in call.keywords if k.arg == habit.argument), None)
            value = None if keyword is None else keyword.value
            if value is None and habit.position is not None and habit.position < len(call.args):
                value = call.args[habit.position]
            if not habit.argument or habit.argument in found or value is None:
                continue
            if habit.edit is Edit.SUFFIX:
                edit = self._file_name(call, value, habit, label)
            else:
                edit = self._edit(call, keyword, value, habit)
            is_value = habit.edit is Edit.SUFFIX or habit.value in ("", ast.unparse(value))
            if is_value and (edit is not None or habit.edit is None):
                found.add(habit.argument)
                what = f"{habit.argument}= of {label}"
                yield self._finding(value, habit, what, [edit] if edit else [])

    def _finding(self, node: ast.expr, habit: Habit, what: str, edits: list[TextEdit]) -> Finding:
        blocks = not (habit.mended and self._is_served)
        return Finding(node.lineno, what, habit.instead, blocks, tuple(edits))

    def _edit(
        self, call: ast.Call, keyword: ast.keyword | None, value: ast.expr, habit: Habit
    ) -> TextEdit | None:
        """Returns the edit of an argument; None where there is none, or it is not meant."""
        if habit.edit is Edit.TUPLE and _is_number(value):
            return self._as_tuple(call, value)
        if habit.edit is Edit.ELEMENT and isinstance(value, ast.List) and len(value.elts) == 1:
            return self._source.replaced(value, ast.unparse(value.elts[0]))
        if keyword is None:
            return None
        if habit.edit is Edit.RENAME:
            start, _ = self._source.span(keyword)
            return TextEdit(start, start + len(habit.argument), habit.to)
        if habit.edit is Edit.ARGUMENT:
            return self._source.replaced(keyword, habit.to)
        return self._without(keyword) if habit.edit is Edit.REMOVE else None

    def _without(self, keyword: ast.keyword) -> TextEdit:
        """Returns the edit that leaves an argument out, with its comma and its own lines."""
        text = self._source.text
        start, end = self._source.span(keyword)
        comma = re.compile(r"\s*,[ \t]*").match(text, end)
        line = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
        rest = _REST_OF_LINE.match(text, comma.end() if comma else end)
        if not text[line:start].strip() and rest and rest.end() < len(text):
            return TextEdit(line, rest.end(), "")  # lines of its own
        before = text[:start].rstrip()
        if before.endswith(","):
            return TextEdit(len(before) - 1, end, "")
        return TextEdit(start, comma.end() if comma else end, "")

    def _as_tuple(self, call: ast.Call, value: ast.expr) -> TextEdit:
        """Returns the edit that makes a tuple of a number, in the parentheses that it has."""
        text = self._source.text
        start, end = self._source.span(value)
        before = text[:start].rstrip()
        has_own = before.endswith("(") and text[end:].lstrip().startswith(")")
        of_call = len(before) - 1 == self._source.span(call.func)[1]
        written = text[start:end]
        return TextEdit(start, end, f"{written}," if has_own and not of_call else f"({written},)")

    def _file_name(
        self, call: ast.Call, value: ast.expr, habit: Habit, label: str
    ) -> TextEdit | None:
        """Returns the edit that gives a file name its ending; None if it has one, or is unknown."""
        literal = _literal(value)
        if literal is None:
            return None
        start, at = self._source.span(literal)
        written = self._source.text[start:at]
        at -= 3 if written.endswith(('"""', "'''")) else 1
        name = self._source.text[:at]
        suffix, accepted = habit.to, tuple(habit.value.split())
        if label.endswith("ModelCheckpoint") and "save_weights_only=True" in ast.unparse(call):
            suffix, accepted = _WEIGHTS, (_WEIGHTS,)
        if name.endswith(accepted) or "://" in written:
            return None
        if suffix == _WEIGHTS and name.endswith(".h5"):
            return TextEdit(at - len(".h5"), at, suffix)
        missing = next(n for n in range(len(suffix), -1, -1) if name.endswith(suffix[:n]))
        return TextEdit(at, at, suffix[missing:])


def _keys(node: ast.Attribute) -> list[str]:
    """Returns the keys of the table for a method or an attribute, the most special one first."""
    value = node.value.func if isinstance(node.value, ast.Call) else node.value
    owner = getattr(value, "attr", getattr(value, "id", "")).lower()
    kinds = (kind for kind, parts in RECEIVERS.items() if any(part in owner for part in parts))
    return [*(f"{kind}.{node.attr}" for kind in kinds), f".{node.attr}"]


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is an integer: a literal, or a size such as `x.shape[1]`."""
    if isinstance(node, ast.Subscript):
        has_index = isinstance(node.slice, ast.Constant)
        return has_index and getattr(node.value, "attr", "") == "shape"
    return isinstance(node, ast.Constant) and type(node.value) is int


def _literal(node: ast.expr | None) -> ast.expr | None:
    """Returns the text at the end of an expression for a name; None if it does not end in one."""
    if isinstance(node, ast.JoinedStr):
        ends_in_text = bool(node.values) and isinstance(node.values[-1], ast.Constant)
        return node if ends_in_text else None
    if isinstance(node, ast.Constant):
        return node if isinstance(node.value, str) and node.value else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div):
        return _literal(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _literal(node.left)
    if isinstance(node, ast.Call) and node.args:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "format" and isinstance(node.func, ast.Attribute):
            return _literal(node.func.value)
        return _literal(node.args[-1]) if name in ("join", "Path", "str") else None
    return None
