"""A model's options as an asset of its `.keras` file: `millrace.json`, which stock Keras skips.

    {"accumulation": {"steps": 4, "reduction": "mean", ...}, ..., "stop_within": null,
     "stages": [...] or null}

The keys come from the table of options. A file without one of them has its default.
"""

import json
import logging
import pathlib
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar, cast

import keras

from millrace.base.options import TABLE, Entry, Options
from millrace.base.options.checks import device_numbers, unchecked
from millrace.base.records.codec import short_text
from millrace.base.records.json_text import parse_json
from millrace.base.records.printable import printable
from millrace.errors import MillraceError, OptionError, ScheduleError
from millrace.programs.steps.accumulate import accumulator_dtype
from millrace.run.fit.controller import Controller
from millrace.run.pipelines.assignment.assignment import from_json, to_json
from millrace.run.schedules.table import SCHEDULES, check_batch_serialization
from millrace.run.schedules.text import parse

OPTIONS_FILE = "millrace.json"

T = TypeVar("T")
Json = Mapping[str, object]
_ENTRIES = {(entry.record, entry.field): entry for entry in TABLE}

# Options of XLA that name files, or programs to run, such as xla_gpu_cuda_data_dir.
_OF_FILES = re.compile(r"dump|dir|path|file|plugin|extra|lib|tool", re.IGNORECASE)
_PATH = re.compile(r"[/\\]")
_LONGEST = 1000  # characters of a reason in an error
_LARGEST = 2**63 - 1  # whole number that an option may have

logger = logging.getLogger("millrace")


def save_options(controller: Controller, directory: str) -> None:
    """Writes the options and the stages of a model."""
    model = controller.model
    data = _saved(controller.setup.options, "", model.name)
    assignment = controller.setup.stages.assignment()
    data["stages"] = None if assignment is None else to_json(assignment, model)
    path = pathlib.Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    (path / OPTIONS_FILE).write_text(json.dumps(data, indent=1))


def load_options(controller: Controller, directory: str) -> None:
    """Puts the saved options and stages in force, if there are any.

    Raises:
        OptionError: if they are damaged, or the stages are of another model.
    """
    path = pathlib.Path(directory or ".") / OPTIONS_FILE
    if not directory or not path.is_file():
        return
    try:
        data = parse_json(path.read_bytes())
        options = _loaded(Options(), "", data)
        _check_together(options, controller.model)
    except (OSError, ValueError, MillraceError) as error:
        reason = printable(str(error)[:_LONGEST]).rstrip(".")
        raise OptionError(
            f"{OPTIONS_FILE}, the options in the file of the model {controller.model.name!r}, "
            f"cannot be used: {reason}. Save the model again; or remove {OPTIONS_FILE} from its "
            "file, a zip archive, and set the options again."
        ) from error
    stages = data.get("stages")
    assignment = None if stages is None else from_json(stages, controller.model)
    controller.put_options(options)
    if assignment is not None:
        controller.setup.stages.put(assignment)


def _saved(record: object, name: str, model_name: str) -> dict[str, object]:
    """Returns a record of options as JSON has it; `name` is its field in `Options`."""
    data: dict[str, object] = {}
    for each in fields(record):  # type: ignore[arg-type]
        value, entry = getattr(record, each.name), _ENTRIES.get((name, each.name))
        if is_dataclass(value):
            data[each.name] = _saved(value, each.name, model_name)
        elif entry is None:
            data[each.name] = value
        elif callable(value):
            data[entry.saved_as] = entry.default
            logger.info(
                "%s of %r is a function, which belongs to the program and is not saved with the "
                "model. Set it again after loading.",
                entry.option.name,
                model_name,
            )
        else:
            data[entry.saved_as] = entry.option.to_json(value)
    return data


def _loaded(record: T, name: str, data: object) -> T:
    """Returns a record of options with the saved values.

    Raises:
        ValueError: for a value that no setter would take.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{name or 'its content'} is not a JSON object.")
    saved = cast(Json, data)
    values: dict[str, object] = {}
    for each in fields(record):  # type: ignore[arg-type]
        default, entry = getattr(record, each.name), _ENTRIES.get((name, each.name))
        keys = [each.name] if entry is None else [entry.saved_as, each.name]
        key = next((key for key in keys if key in saved), None)
        if is_dataclass(default):
            values[each.name] = _loaded(default, each.name, saved.get(each.name, {}))
        elif key is None:
            values[each.name] = default
        else:
            values[each.name] = _value(default, entry, each.name, saved[key])
    return type(record)(**values)


def _value(default: object, entry: Entry | None, name: str, value: object) -> object:
    """Returns a saved value as its record has it.

    Raises:
        ValueError: if no setter would take it.
    """
    if value is None and default is None:
        return None
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"{name} is a number of {value.bit_length()} bits.")
    if entry is None:  # the part of the schedule that each stage is
        return device_numbers(name, value)
    if entry.option.check is unchecked and not isinstance(value, str):
        raise ValueError(f"{entry.option.name} is not a text.")
    return entry.option.check(entry.option.name, value)


def _is_path(name: str, value: object) -> bool:
    """Whether an option of XLA may read, write or run files of the author's choice."""
    return isinstance(value, str) and bool(_OF_FILES.search(name) or _PATH.search(value))


def _check_together(options: Options, model: keras.Model) -> None:
    """Checks the values that setters check together, or leave to a file.

    Raises:
        MillraceError: if no setter would take them.
        ValueError: likewise.
    """
    accumulation, pipelining = options.accumulation, options.pipelining
    for variable in model.trainable_variables:
        accumulator_dtype(accumulation.dtype, variable)
        accumulator_dtype(pipelining.dtype, variable)
    for each in (
        *(pipelining.forward_options or ()),
        *(pipelining.backward_options or ()),
        pipelining.update_options or {},
    ):
        paths = [name for name, value in each.items() if _is_path(name, value)]
        if paths:
            raise ValueError(f"the option {short_text(paths[0])} of XLA names files.")
    if accumulation.steps % accumulation.batch_serialization:
        raise ValueError(
            f"{accumulation.steps} steps in an update are not a multiple of "
            f"{accumulation.batch_serialization}."
        )
    schedule = pipelining.schedule_in_force
    # Never a path: whoever wrote this file would choose what is read.
    if isinstance(schedule, str) and schedule.lower() not in SCHEDULES and not parse(schedule):
        raise ScheduleError("the schedule is a text without tasks.")
    check_batch_serialization(
        schedule, pipelining.device_mapping or (), pipelining.batch_serialization
    )
