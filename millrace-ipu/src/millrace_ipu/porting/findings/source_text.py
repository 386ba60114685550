"""The text of a program, and edits of it that leave all other characters as they are.

Syntax trees count columns in bytes of UTF-8, and lines as Python does.
"""

import re
from collections.abc import Iterable

from millrace_ipu.porting.findings.finding import TextEdit

_LINES = re.compile(r"\r\n|\r|\n")


class SourceText:
    """A source text with positions of `ast`.

    Args:
        text: the text, with its own line endings.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(match.end() for match in _LINES.finditer(text))]

    def offset(self, position: tuple[int, int]) -> int:
        """Returns the index of a character.

        Args:
            position: line from 1, and offset in bytes.
        """
        start = self._starts[position[0] - 1]
        end = self._starts[position[0]] if position[0] < len(self._starts) else len(self.text)
        return start + len(self.text[start:end].encode()[: position[1]].decode())

    def position(self, offset: int) -> tuple[int, int]:
        """Returns the line from 1, and the offset in bytes, of a character."""
        line = next(n for n in range(len(self._starts), 0, -1) if self._starts[n - 1] <= offset)
        return line, len(self.text[self._starts[line - 1] : offset].encode())

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """Returns a part of the text."""
        return self.text[self.offset(start) : self.offset(end)]

    def edit(self, start: int, end: int, text: str) -> TextEdit:
        """Returns the edit that writes `text` in place of the characters from start to end."""
        return TextEdit(self.position(start), self.position(end), text)

    def with_edits(self, edits: Iterable[TextEdit]) -> str:
        """Returns the text with edits; of two that overlap, the first is made."""
        parts: list[str] = []
        done = 0
        for each in sorted({*edits}):
            start, end = self.offset(each.start), self.offset(each.end)
            if start < done or (start == done and start == end and parts[-1:] == [each.text]):
                continue
            parts += [self.text[done:start], each.text]
            done = end
        return "".join([*parts, self.text[done:]])

    @property
    def newline(self) -> str:
        """The line ending of the first line."""
        match = _LINES.search(self.text)
        return match.group() if match else "\n"
