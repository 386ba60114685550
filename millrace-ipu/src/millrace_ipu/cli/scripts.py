"""A check of the scripts that commands run."""

import pathlib

import click


def check_script(script: str) -> None:
    """Refuses a file that is not Python, with the line of the error."""
    try:
        compile(pathlib.Path(script).read_bytes(), script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, on Python 3.11.2
        line, cause = _line_and_cause(error)
        raise click.ClickException(
            f"{script}{line}: this is not a Python program: {cause}. Give a file of Python source."
        ) from None


def _line_and_cause(error: SyntaxError | ValueError) -> tuple[str, str]:
    """Returns `, line 3`, or nothing where no line is known, and why Python refuses a file."""
    if not isinstance(error, SyntaxError):
        return "", str(error)
    return f", line {error.lineno}" if error.lineno else "", error.msg
