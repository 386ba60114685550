"""What a run leaves behind in a directory of its own.

    compile_log.jsonl    one CompileRecord a line, written as it is made

Lines are whole or missing: a run that was killed leaves all that it had said. A line about the same
switch as an earlier one takes its place.
"""

import json
import pathlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, cast

from millrace.errors import DataError, OptionError
from millrace.records.compilation import CompileRecord, Origin

COMPILE_LOG = "compile_log"


class RunDirectory:
    """Writes records into a directory. Files that are there are added to."""

    def __init__(self, directory: str | pathlib.Path, process: int = 0):
        """Makes the directory.

        Args:
            directory: of the run.
            process: this one's number among those of the run; each writes a file of its own.

        Raises:
            OptionError: if it cannot be made.
        """
        self.path = pathlib.Path(directory)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(
                f"report_dir={str(directory)!r} cannot be made: {error}. Set it to a directory "
                "that can be written to, or leave it out."
            ) from error
        suffix = f".{process}" if process else ""
        self._compile_log = self.path / f"{COMPILE_LOG}{suffix}.jsonl"

    def add_compile_record(self, record: CompileRecord) -> None:
        """Writes a record at the end of the file."""
        values = {**asdict(record), "origin": record.origin.value}
        with self._compile_log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def read_compile_log(path: str | pathlib.Path) -> tuple[CompileRecord, ...]:
    """Reads the records of a run, of all its processes, in the order in which they began.

    Args:
        path: a run directory, or one file of it.

    Raises:
        DataError: if there is no compile log.
    """
    path = pathlib.Path(path)
    files = [path] if path.is_file() else sorted(path.glob(f"{COMPILE_LOG}*.jsonl"))
    if not files:
        raise DataError(
            f"{path} has no compile log. Set Strategy(report_dir=...) to a directory, and give "
            "that one."
        )
    records: list[CompileRecord] = []
    for file in files:
        records += _read(file)
    return tuple(sorted(records, key=lambda record: record.began))


def _read(file: pathlib.Path) -> list[CompileRecord]:
    records: dict[Any, CompileRecord] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise _no_log(file, 1) from error
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except ValueError:
            if number == 1 and not line.lstrip().startswith("{"):
                raise _no_log(file, number) from None
            continue  # the last line of a run that was killed
        try:
            record = _record(values)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _no_log(file, number) from error
        same = (record.cause, record.began) if not record.is_executable else number
        records[same] = record
    return list(records.values())


def _record(values: Any) -> CompileRecord:
    given = cast(Mapping[str, Any], values)
    known = {field.name for field in fields(CompileRecord)}  # a newer version may have more
    kept: dict[str, Any] = {name: value for name, value in given.items() if name in known}
    kept["origin"] = Origin(given["origin"])
    return CompileRecord(**kept)


def _no_log(file: pathlib.Path, line: int) -> DataError:
    return DataError(
        f"Line {line} of {file} is no record of a compilation. Give the directory of "
        f"Strategy(report_dir=...) or a {COMPILE_LOG}*.jsonl in it, and read it with the millrace "
        "that wrote it, or a newer one."
    )
