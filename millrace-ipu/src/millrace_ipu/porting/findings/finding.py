"""Findings: the lines of a program that need a change, and the changes that need no judgement.

keras.optimizers.SGD(lr=0.1)
^^ Finding("lr= of keras.optimizers.SGD", "learning_rate=")
TextEdit("learning_rate")
"""

import ast
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TextEdit:
    """New text for a part of a source text.

    Positions are those of `ast`: lines from 1, and offsets in bytes of UTF-8 in their line.
    """

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a program that millrace does not run, or runs under another name."""

    line: int
    what: str
    instead: str  # the text to write in its place
    blocks: bool = True  # whether it prevents the program from running
    edits: tuple[TextEdit, ...] = ()  # write the replacement, where this needs no judgement
    why: str = "runs as it is"  # why it does not, if it does not


def replaced(node: ast.expr | ast.stmt | ast.keyword, text: str) -> TextEdit:
    """Returns the edit that writes other text in place of a node."""
    return TextEdit(start_of(node), end_of(node), text)


def start_of(node: ast.AST) -> tuple[int, int]:
    """Returns the position of the first character of a node."""
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def end_of(node: ast.AST) -> tuple[int, int]:
    """Returns the position after the last character of a node."""
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
