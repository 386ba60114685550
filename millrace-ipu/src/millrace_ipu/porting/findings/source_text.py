"""The text of a program, and edits of it that leave all other characters as they are.

Syntax trees count columns in bytes of UTF-8, and lines as Python does.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

_LINES = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True, order=True)
class TextEdit:
    """New text in place of the characters from start to end."""

    start: int
    end: int
    text: str


class SourceText:
    """A source text.

    Args:
        text: the text, with its own line endings.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(match.end() for match in _LINES.finditer(text)), len(text)]

    def offset(self, line: int, column: int) -> int:
        """Returns the index of a character: of a line from 1, and an offset in bytes."""
        start, end = self._starts[line - 1 : line + 1]
        return start + len(self.text[start:end].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Returns the indices of the first character of a node, and of the one after its last."""
        at: dict[str, int] = {name: getattr(node, name) for name in node._attributes}
        start = self.offset(at["lineno"], at["col_offset"])
        return start, self.offset(at["end_lineno"], at["end_col_offset"])

    def replaced(self, node: ast.AST, text: str) -> TextEdit:
        """Returns the edit that writes other text in place of a node."""
        return TextEdit(*self.span(node), text)

    def with_edits(self, edits: Iterable[TextEdit]) -> str:
        """Returns the text with edits; of two that overlap, the first is made."""
        parts: list[str] = []
        done = 0
        for each in sorted({*edits}):
            is_same = each.start == done == each.end and parts[-1:] == [each.text]
            if each.start >= done and not is_same:
                parts += [self.text[done : each.start], each.text]
                done = each.end
        return "".join([*parts, self.text[done:]])

    @property
    def newline(self) -> str:
        """The line ending of the first line."""
        match = _LINES.search(self.text)
        return match.group() if match else "\n"


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a program that millrace does not run, or runs under another name."""

    line: int
    what: str
    instead: str  # the text to write in its place
    blocks: bool = True  # whether it prevents the program from running
    edits: tuple[TextEdit, ...] = ()  # write the replacement, where this needs no judgement
    why: str = "runs as it is"  # why it does not, if it does not
