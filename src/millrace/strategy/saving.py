"""A model's options as an asset of its `.keras` file: `millrace.json`, which stock Keras skips.

    {"accumulation": {"steps": 4, "reduction": "mean", ...}, ..., "stop_within": null,
     "stages": [...] or null}

The keys come from the table of options. A file without one of them has its default.
"""

import enum
import json
import logging
import pathlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar

from millrace.fit.controller import Controller
from millrace.options import TABLE, Options
from millrace.pipelines.assignment.assignment import from_json, to_json

OPTIONS_FILE = "millrace.json"

T = TypeVar("T")
Json = Mapping[str, object]
_ENTRIES = {(entry.record, entry.field): entry for entry in TABLE}

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
    """Puts the saved options and stages in force, if there are any."""
    path = pathlib.Path(directory or ".") / OPTIONS_FILE
    if not directory or not path.is_file():
        return
    data = json.loads(path.read_text())
    controller.put_options(_loaded(Options(), "", data))
    if data.get("stages") is not None:
        controller.setup.stages.put(from_json(data["stages"], controller.model))


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


def _loaded(record: T, name: str, data: Json) -> T:
    """Returns a record of options with the saved values."""
    values: dict[str, object] = {}
    for each in fields(record):  # type: ignore[arg-type]
        default, entry = getattr(record, each.name), _ENTRIES.get((name, each.name))
        keys = [each.name] if entry is None else [entry.saved_as, each.name]
        value = next((data[key] for key in keys if key in data), default)
        if is_dataclass(default):
            value = _loaded(default, each.name, data.get(each.name, {}))  # type: ignore[arg-type]
        elif isinstance(default, enum.Enum):
            value = type(default)(value)
        elif isinstance(value, list):  # JSON has lists where the records have tuples
            value = tuple(value)
        values[each.name] = value
    return type(record)(**values)
