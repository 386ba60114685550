"""A model's options as an asset of its `.keras` file: `millrace.json`, which stock Keras skips."""

import json
import logging
import pathlib
from dataclasses import asdict
from typing import Any

from millrace.fit.controller import Controller
from millrace.options import (
    Accumulation,
    Feed,
    MetricReduction,
    Offload,
    Options,
    Pipelining,
    Recomputation,
    RecomputationMode,
    Reduction,
    Replication,
)
from millrace.pipelines.assignment.assignment import from_json, to_json

OPTIONS_FILE = "millrace.json"

logger = logging.getLogger("millrace")


def save_options(controller: Controller, directory: str) -> None:
    """Writes the options and the stages of a model."""
    options = controller.setup.options
    data = asdict(options)
    # The file calls it as it did when it was first written.
    data["accumulation"]["at_a_time"] = data["accumulation"].pop("batch_serialization")
    for name, part in (("accumulation", options.accumulation), ("pipelining", options.pipelining)):
        data[name]["reduction"] = part.reduction.value
    data["replication"]["metrics"] = options.replication.metrics.value
    data["recomputation"]["mode"] = options.recomputation.mode.value
    functions = {
        "gradient accumulation dtype": (data["accumulation"], "dtype", None),
        "gradient_accumulation_dtype": (data["pipelining"], "dtype", None),
        "pipeline_schedule": (data["pipelining"], "schedule", Pipelining().schedule),
    }
    for option, (part, name, default) in functions.items():
        if callable(part[name]):
            part[name] = default
            logger.info(
                "%s of %r is a function, which is the program's and not saved with the model: "
                "set it again after loading.",
                option,
                controller.model.name,
            )
    data["pipelining"]["schedule"] = _text(data["pipelining"]["schedule"])
    assignment = controller.setup.stages.assignment()
    data["stages"] = None if assignment is None else to_json(assignment, controller.model)
    path = pathlib.Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    (path / OPTIONS_FILE).write_text(json.dumps(data, indent=1))


def load_options(controller: Controller, directory: str) -> None:
    """Puts the saved options and stages in force, if there are any."""
    path = pathlib.Path(directory or ".") / OPTIONS_FILE
    if not directory or not path.is_file():
        return
    data = json.loads(path.read_text())
    controller.put_options(_options(data))
    if data.get("stages") is not None:
        controller.setup.stages.put(from_json(data["stages"], controller.model))


def _options(data: dict[str, Any]) -> Options:
    def part(name: str) -> dict[str, Any]:
        values = dict(data.get(name, {}))
        if "at_a_time" in values:
            values["batch_serialization"] = values.pop("at_a_time")
        if "reduction" in values:
            values["reduction"] = Reduction(values["reduction"])
        if "metrics" in values:
            values["metrics"] = MetricReduction(values["metrics"])
        if "mode" in values:
            values["mode"] = RecomputationMode(values["mode"])
        # JSON has lists where the records have tuples.
        return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}

    return Options(
        accumulation=Accumulation(**part("accumulation")),
        pipelining=Pipelining(**part("pipelining")),
        replication=Replication(**part("replication")),
        recomputation=Recomputation(**part("recomputation")),
        offload=Offload(**part("offload")),
        feed=Feed(**data["feed"]),
        asynchronous_callbacks=data["asynchronous_callbacks"],
        stop_within=data.get("stop_within"),
    )


def _text(schedule: Any) -> str:
    """Returns a schedule as a name or as text; the text of a file, which may not travel along."""
    path = pathlib.Path(str(schedule))
    is_file = isinstance(schedule, pathlib.Path) or ("\n" not in str(schedule) and path.is_file())
    return path.read_text() if is_file else str(schedule)
