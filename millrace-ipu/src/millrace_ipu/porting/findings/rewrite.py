"""Programs rewritten for millrace: what is mechanical is changed, and all else is left as it is.

read -> findings with edits, imports -> edits -> new text -> findings ... until nothing changes
                                                    |
                                                    +-> must compile, and the file must be as read
"""

import ast
import difflib
import os
import pathlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.errors import MillraceError
from millrace_ipu.porting.findings.own_modules import OwnModule, PortedProgram
from millrace_ipu.porting.findings.port import port_program
from millrace_ipu.porting.findings.source_text import SourceText

_MOST_PASSES = 10  # edits within others are made in the pass after


class RewriteError(MillraceError, RuntimeError):
    """A program cannot be rewritten, and no file was changed."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file of a program before and after."""

    path: pathlib.Path
    before: str
    after: str
    encoding: str

    def diff(self) -> list[str]:
        """Returns the lines of a unified diff, without line endings."""
        old, new = (text.splitlines() for text in (self.before, self.after))
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), lineterm="")
        return [*lines]


def rewrite(program: PortedProgram, number: int) -> list[Rewritten]:
    """Returns the files of a program that change, with their new texts.

    Args:
        program: its files.
        number: how many of them, from the first one on, are scripts or were named beside them.

    Raises:
        RewriteError: if a new text is not Python. Nothing is written then.
    """
    before = [module.source.text for module in program.modules]
    for _ in range(_MOST_PASSES):
        texts = [
            file.module.source.with_edits(
                [*(e for each in file.findings for e in each.edits), *file.imports.edits()]
            )
            for file in port_program(program, number)
        ]
        if texts == [module.source.text for module in program.modules]:
            break
        program.replace([_module(*each) for each in zip(program.modules, texts, strict=True)])
    return [
        Rewritten(module.path, text, module.source.text, module.encoding)
        for module, text in zip(program.modules, before, strict=True)
        if module.source.text != text
    ]


def write(files: Sequence[Rewritten]) -> None:
    """Writes new texts into their files, each at once, in its encoding.

    Raises:
        RewriteError: if a file is not as it was read; no file is changed then.
        OSError: if a file cannot be written.
    """
    for each in files:
        if each.path.read_bytes() != each.before.encode(each.encoding):
            raise RewriteError(
                f"{each.path} has changed since it was read, so nothing was written. Run the "
                "command again."
            )
    for each in files:
        path = each.path.resolve()  # a link stays a link
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(each.after.encode(each.encoding))
            os.chmod(name, path.stat().st_mode)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


def _module(module: OwnModule, text: str) -> OwnModule:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise RewriteError(
            f"{module.path} would not be Python after its edits: line {error.lineno}, {error.msg}. "
            "Nothing was written. Change the lines that `millrace port` lists by hand, and report "
            "this."
        ) from error
    return OwnModule(module.path, SourceText(text), tree, module.encoding)
