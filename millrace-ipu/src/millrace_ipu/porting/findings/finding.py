"""Findings: the lines of a program that need a change, and the changes that need no judgement.

keras.optimizers.SGD(lr=0.1)
^^ Finding("lr= of keras.optimizers.SGD", "learning_rate=")
TextEdit("learning_rate")
"""

from dataclasses import dataclass

from millrace_ipu.porting.findings.source_text import TextEdit


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a program that millrace does not run, or runs under another name."""

    line: int
    what: str
    instead: str  # the text to write in its place
    blocks: bool = True  # whether it prevents the program from running
    edits: tuple[TextEdit, ...] = ()  # write the replacement, where this needs no judgement
    why: str = "runs as it is"  # why it does not, if it does not
