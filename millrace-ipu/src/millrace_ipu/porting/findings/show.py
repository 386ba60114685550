"""The output of `millrace port`."""

import pathlib
from collections.abc import Sequence

import click

from millrace_ipu.porting.findings.port import port_program, rewrite, uses_tensorflow
from millrace_ipu.porting.findings.program import PortedProgram
from millrace_ipu.porting.findings.source_text import Finding

_COLOURS = {"@@": "cyan", "+": "green", "-": "red"}


def show_findings(paths: Sequence[pathlib.Path]) -> int:
    """Prints the findings of programs, and returns the exit status.

    Args:
        paths: files of programs; the modules beside them that they import are read, too.

    Returns:
        0 if nothing stands in the way, 1 if something does, 2 if a file cannot be read.
    """
    program = PortedProgram(paths)
    _show_unread(program, err=False)
    return _show(program, "", err=False)


def show_rewritten(paths: Sequence[pathlib.Path], writes: bool) -> int:
    """Prints what changes in rewritten programs, and on stderr the findings that are left.

    Args:
        paths: files of programs; the modules beside them that they import change, too.
        writes: whether the files are written, after all of the diff is printed.

    Returns:
        0 if nothing is left that stands in the way, 1 if something is, 2 if a file cannot be read.
    """
    program = PortedProgram(paths)
    _show_unread(program, err=True)
    if program.unread:
        click.echo("Nothing was rewritten.", err=True)
        return 2
    files = rewrite(program)
    for file in files:
        for line in file.diff():
            colour = next((c for start, c in _COLOURS.items() if line.startswith(start)), None)
            click.secho(line, fg=colour)
    for file in files if writes else ():
        file.write()
    done = f"{_files(len(files))} {'rewritten' if writes else 'to rewrite'}. " if files else ""
    return _show(program, done, err=True)


def _show_unread(program: PortedProgram, err: bool) -> None:
    for path, error in program.unread:
        click.secho(f"{path}: cannot be read: {error}", fg="red", err=err)


def _show(program: PortedProgram, done: str, err: bool) -> int:
    findings: list[Finding] = []
    for file in port_program(program):
        findings += file.shown
        for finding in file.shown:
            click.echo(f"{file.module.path}:{finding.line}: {_text(finding)}", err=err)
    blocking = sum(finding.blocks for finding in findings)
    if program.modules:
        click.echo(done + _summary(program, len(findings), blocking, done), err=err)
    return 2 if program.unread else int(blocking > 0)


def _text(finding: Finding) -> str:
    what = click.style(finding.what, fg="red" if finding.blocks else "yellow")
    why = "" if finding.blocks else f"  ({finding.why})"
    return f"{what}  ->  {finding.instead}{why}"


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


def _summary(program: PortedProgram, number: int, blocking: int, done: str) -> str:
    where = _files(len(program.modules))
    if blocking:
        verb, of = ("stands" if blocking == 1 else "stand"), f"finding{'s' * (number > 1)}"
        return f"{where}: {blocking} of {number} {of} {verb} in the way. See docs/porting.md."
    if any(uses_tensorflow(program, module) for module in program.modules):
        return f"{where}: nothing stands in the way. Run it with `millrace run`."
    if done:
        return "Nothing else to port: run it with `python`."
    return (
        f"{where}: nothing to port, as tensorflow and ipu packages are not imported. Run it with "
        "`python`."
    )
