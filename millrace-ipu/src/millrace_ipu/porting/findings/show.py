"""The output of `millrace port`."""

import pathlib
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from millrace_ipu.porting.findings.finding import Finding
from millrace_ipu.porting.findings.own_modules import PortedProgram
from millrace_ipu.porting.findings.port import FileFindings, port_program, uses_tensorflow
from millrace_ipu.porting.findings.rewrite import Rewritten, rewrite, write

_STYLES = {"---": "bold", "+++": "bold", "@@": "cyan", "+": "green", "-": "red"}


def show_findings(paths: Sequence[pathlib.Path], console: Console | None = None) -> int:
    """Prints the findings of programs, and returns the exit status.

    Args:
        paths: files of programs; the modules beside them that they import are read, too.
        console: prints the lines; None is standard output.

    Returns:
        0 if nothing stands in the way, 1 if something does, 2 if a file cannot be read.
    """
    console = console or _console()
    program = PortedProgram(paths)
    _show_unread(program, console)
    return _show(program, port_program(program, len(paths)), console, "")


def show_rewritten(
    paths: Sequence[pathlib.Path],
    writes: bool,
    console: Console | None = None,
    messages: Console | None = None,
) -> int:
    """Prints what changes in rewritten programs, and the findings that are left.

    Args:
        paths: files of programs; the modules beside them that they import change, too.
        writes: whether the files are written, after all of the diff is printed.
        console: prints the diff; None is standard output.
        messages: prints all else; None is standard error.

    Returns:
        0 if nothing is left that stands in the way, 1 if something is, 2 if a file cannot be read.

    Raises:
        RewriteError: if a file has changed since it was read.
    """
    console = console or _console()
    messages = messages or _console(stderr=True)
    program = PortedProgram(paths)
    _show_unread(program, messages)
    if program.unread:
        messages.print("Nothing was rewritten.")
        return 2
    files = rewrite(program, len(paths))
    for file in files:
        _show_diff(file, console)
    if writes:
        write(files)
    done = f"{_files(len(files))} {'rewritten' if writes else 'to rewrite'}. " if files else ""
    return _show(program, port_program(program, len(paths)), messages, done)


def _console(stderr: bool = False) -> Console:
    return Console(highlight=False, soft_wrap=True, stderr=stderr)


def _show_diff(file: Rewritten, console: Console) -> None:
    for line in file.diff():
        style = next((s for start, s in _STYLES.items() if line.startswith(start)), "")
        console.print(Text(line, style=style))


def _show_unread(program: PortedProgram, console: Console) -> None:
    for path, error in program.unread:
        console.print(Text(f"{path}: cannot be read: {_why(path, error)}", style="red"))


def _show(program: PortedProgram, files: list[FileFindings], console: Console, done: str) -> int:
    findings: list[Finding] = []
    for file in files:
        for finding in file.shown:
            console.print(_line(file.module.path, finding))
        findings += file.shown
    blocking = sum(finding.blocks for finding in findings)
    is_for_ipu = any(uses_tensorflow(file.module.tree) for file in files)
    if files:
        console.print(done + _summary(len(files), len(findings), blocking, is_for_ipu))
    return 2 if program.unread else int(blocking > 0)


def _line(path: pathlib.Path, finding: Finding) -> Text:
    text = Text(f"{path}:{finding.line}: ")
    text.append(finding.what, style="bold red" if finding.blocks else "yellow")
    text.append(f"  ->  {finding.instead}")
    return text if finding.blocks else text.append(f"  ({finding.why})", style="dim")


def _why(path: pathlib.Path, error: Exception) -> str:
    if path.is_dir():
        return f"it is a directory. Give its files, such as {path}/*.py."
    if not path.exists():
        return "there is no such file."
    if isinstance(error, SyntaxError):
        line = f"line {error.lineno}: " if error.lineno else ""
        return f"{line}{error.msg}. Convert a program for Python 2 with 2to3 first."
    encoding = error.encoding if isinstance(error, UnicodeDecodeError) else "utf-8"
    return f"it is not text in {encoding.upper()}." if isinstance(error, ValueError) else str(error)


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


def _summary(files: int, number: int, blocking: int, is_for_ipu: bool) -> str:
    where = _files(files)
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
