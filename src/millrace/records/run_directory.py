"""The directory with the records of a run.

    compile_log.jsonl    one CompileRecord in each line, written when it is made

Lines are complete or missing, also after a run was killed. A later line about a switch replaces an
earlier one about the same switch.
"""

import json
import pathlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from millrace.errors import DataError, OptionError
from millrace.records.compilation import CompileRecord, Origin

COMPILE_LOG = "compile_log"


class RunDirectory:
    """Writes records into a directory, at the end of existing files."""

    def __init__(self, directory: str | pathlib.Path, process: int = 0):
        """Makes the directory.

        Args:
            directory: of the run.
            process: number of this process in the run; each writes its own file.

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
    """Reads the records of a run, of all its processes, in the order of their begin.

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
        key = (record.cause, record.began) if not record.is_executable else number
        records[key] = record
    return list(records.values())


def _record(values: Mapping[str, Any]) -> CompileRecord:
    names = {field.name for field in fields(CompileRecord)}  # a newer version may have more
    arguments: dict[str, Any] = {name: value for name, value in values.items() if name in names}
    arguments["origin"] = Origin(values["origin"])
    return CompileRecord(**arguments)


def _no_log(file: pathlib.Path, line: int) -> DataError:
    return DataError(
        f"Line {line} of {file} is not a record of a compilation. Give the directory of "
        f"Strategy(report_dir=...) or a {COMPILE_LOG}*.jsonl in it, and read it with the millrace "
        "that wrote it, or a newer one."
    )
