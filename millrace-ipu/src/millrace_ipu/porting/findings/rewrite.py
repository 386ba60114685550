"""Programs rewritten for millrace: what is mechanical is changed, and all else is left as it is.

read -> findings with edits, imports -> edits -> new text -> findings ... until nothing changes
"""

import ast
import difflib
import pathlib
from dataclasses import dataclass, replace

from millrace_ipu.porting.findings.port import port_program
from millrace_ipu.porting.findings.program import OwnModule, PortedProgram
from millrace_ipu.porting.findings.source_text import SourceText

_MOST_PASSES = 10  # edits within others are made in the pass after


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

    def write(self) -> None:
        """Writes the new text into the file, in its encoding.

        Raises:
            OSError: if it cannot be written.
        """
        self.path.write_bytes(self.after.encode(self.encoding))


def rewrite(program: PortedProgram) -> list[Rewritten]:
    """Returns the files of a program that change, with their new texts.

    The program itself has the new texts afterwards. Nothing is written.
    """
    before = program.modules
    for _ in range(_MOST_PASSES):
        texts = [
            file.module.source.with_edits(
                [*(e for each in file.findings for e in each.edits), *file.imports.edits()]
            )
            for file in port_program(program)
        ]
        if texts == [module.source.text for module in program.modules]:
            break
        program.replace([_with_text(*each) for each in zip(program.modules, texts, strict=True)])
    return [
        Rewritten(old.path, old.source.text, new.source.text, old.encoding)
        for old, new in zip(before, program.modules, strict=True)
        if old.source.text != new.source.text
    ]


def _with_text(module: OwnModule, text: str) -> OwnModule:
    return replace(module, source=SourceText(text), tree=ast.parse(text))
