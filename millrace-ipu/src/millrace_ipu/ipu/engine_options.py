"""POPLAR_ENGINE_OPTIONS: whether programs leave reports, and where.

    {"autoReport.all": "true"}                                   a report of each compiled program
    {"autoReport.directory": "reports"}                          below this directory; default: "."
    {"autoReport.executionProfileProgramRunCount": "2"}          traced runs in each report
    {"autoReport.outputExecutionProfile": "false"}               none of them
    {"autoReport.outputGraphProfile": "false"}                   without memory and operations
    others                                                       a warning

It is read like the other variables: when a strategy is made or entered, and before a program is
compiled. Its text is part of the keys of cached executables, as Poplar has it.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from millrace.errors import OptionError
from millrace.extend import ProgramListener, register_listener
from millrace_ipu.tensorflow.no_operation import warn_no_effect

VARIABLE = "POPLAR_ENGINE_OPTIONS"
_PREFIX = "autoReport."
_ALL, _DIRECTORY = f"{_PREFIX}all", f"{_PREFIX}directory"
_RUNS = f"{_PREFIX}executionProfileProgramRunCount"
_GRAPH = f"{_PREFIX}outputGraphProfile"
_EXECUTION = f"{_PREFIX}outputExecutionProfile"
_EXAMPLE = """POPLAR_ENGINE_OPTIONS='{"autoReport.all":"true"}'"""
_DEFAULT_RUNS = 2


@dataclass(frozen=True, slots=True)
class AutoReport:
    """The reports that programs leave."""

    directory: pathlib.Path  # above those of the programs
    runs: int = _DEFAULT_RUNS  # traced ones, in each report
    has_graph: bool = True  # memory and operations
    has_execution: bool = True  # traces


def auto_report(text: str) -> AutoReport | None:
    """Returns the reports that engine options ask for; None for none.

    Args:
        text: the value of the variable: JSON, or nothing.

    Raises:
        OptionError: if it is no JSON object, or a value of `autoReport` is none of its values.
    """
    options = _options(text)
    is_all = _flag(options, _ALL, False)
    graph, execution = (_flag(options, name, is_all) for name in (_GRAPH, _EXECUTION))
    is_asked = is_all or graph or execution
    for name in options:
        if not name.startswith(_PREFIX):
            warn_no_effect(f"{VARIABLE} {name}", "XLA reads options of its own from XLA_FLAGS.")
        elif name not in (_DIRECTORY, _RUNS):  # files of Poplar's own, such as its archive
            is_asked |= _flag(options, name, False)
    if not is_asked:
        return None
    directory = options.get(_DIRECTORY, ".")
    if not isinstance(directory, str) or not directory:
        raise _wrong(_DIRECTORY, directory, "a directory, such as 'reports'")
    return AutoReport(pathlib.Path(directory).expanduser(), _count(options), graph, execution)


def _options(text: str) -> Mapping[str, object]:
    if not text.strip():
        return {}
    try:
        options: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"{VARIABLE}={text!r} is no JSON: {error}. Set {_EXAMPLE}, or remove it."
        ) from None
    if not isinstance(options, dict):
        raise OptionError(f"{VARIABLE}={text!r} is no JSON object. Set {_EXAMPLE}, or remove it.")
    return cast(dict[str, object], options)


def _flag(options: Mapping[str, object], name: str, default: bool) -> bool:
    value = str(options.get(name, default)).lower()
    if value not in ("true", "1", "false", "0"):
        raise _wrong(name, options[name], "'true' or 'false'")
    return value in ("true", "1")


def _count(options: Mapping[str, object]) -> int:
    value = options.get(_RUNS, _DEFAULT_RUNS)
    if isinstance(value, bool) or not str(value).strip().isdecimal():
        raise _wrong(_RUNS, value, "a number of runs, such as '2'")
    return int(str(value))


def _wrong(name: str, value: object, expected: str) -> OptionError:
    return OptionError(
        f"{VARIABLE} has {name!r} as {value!r}, which is not {expected}. Set it to that, or remove "
        "it."
    )


def current_report() -> AutoReport | None:
    """Returns the reports that the environment asks for now; None for none.

    Raises:
        OptionError: as `auto_report`.
    """
    return auto_report(os.environ.get(VARIABLE, ""))


class _Listener(ProgramListener):
    def key_suffix(self) -> str:
        text = os.environ.get(VARIABLE, "").strip()
        return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


register_listener(_Listener())
