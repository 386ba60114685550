"""The output of `millrace port`."""

import pathlib
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from millrace.porting.port import Finding, port, uses_tensorflow


def show_findings(paths: Sequence[pathlib.Path], console: Console | None = None) -> int:
    """Prints the findings of programs, and returns the exit status.

    Args:
        paths: files of programs.
        console: prints the lines; None is standard output.

    Returns:
        0 if nothing stands in the way, 1 if something does, 2 if a file cannot be read.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    findings: list[Finding] = []
    unread, is_for_ipu = 0, False
    for path in paths:
        try:
            source = path.read_text(encoding="utf-8")
            of_file = port(source)
        except (OSError, SyntaxError, ValueError) as error:
            console.print(Text(f"{path}: cannot be read: {_why(path, error)}", style="red"))
            unread += 1
            continue
        for finding in of_file:
            console.print(_line(path, finding))
        findings += of_file
        is_for_ipu |= uses_tensorflow(source)
    blocking = sum(finding.blocks for finding in findings)
    if unread < len(paths):
        console.print(_summary(len(paths) - unread, len(findings), blocking, is_for_ipu))
    return 2 if unread else int(blocking > 0)


def _line(path: pathlib.Path, finding: Finding) -> Text:
    text = Text(f"{path}:{finding.line}: ")
    text.append(finding.what, style="bold red" if finding.blocks else "yellow")
    text.append(f"  ->  {finding.instead}")
    return text if finding.blocks else text.append("  (runs as it is)", style="dim")


def _why(path: pathlib.Path, error: Exception) -> str:
    if path.is_dir():
        return f"it is a directory. Give its files, such as {path}/*.py."
    if not path.exists():
        return "there is no such file."
    if isinstance(error, SyntaxError):
        line = f"line {error.lineno}: " if error.lineno else ""
        return f"{line}{error.msg}. Convert a program for Python 2 with 2to3 first."
    return "it is not text in UTF-8." if isinstance(error, ValueError) else str(error)


def _summary(files: int, number: int, blocking: int, is_for_ipu: bool) -> str:
    where = "1 file" if files == 1 else f"{files} files"
    if not blocking and not is_for_ipu:
        return (
            f"{where}: nothing to port, as tensorflow and ipu packages are not imported. Run it "
            "with `python`."
        )
    if not blocking:
        return f"{where}: nothing stands in the way. Run it with `millrace run`."
    verb = "stands" if blocking == 1 else "stand"
    of = "finding" if number == 1 else "findings"
    return f"{where}: {blocking} of {number} {of} {verb} in the way. See docs/porting.md."
