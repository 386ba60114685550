"""What the setters were told as plain data, and back; their free arguments are left out.

Settings      -> {"gradient_accumulation": {...}, "pipelining": {...}, "device_mapping": ...}
stages        -> "stages", as `millrace.pipelines.assignment.assignment.to_json` has them
"""

import logging
from dataclasses import replace
from typing import Any

from millrace.ipu.gradient_accumulation import GradientAccumulationReductionMethod as Method
from millrace.ipu.keras.extensions.accumulating import Accumulating
from millrace.ipu.keras.extensions.in_force import put, settings_of
from millrace.ipu.keras.extensions.settings import Settings
from millrace.options import MetricReduction
from millrace.pipelines.assignment.assignment import from_json, to_json
from millrace.strategy.controller import Controller

logger = logging.getLogger("millrace")


def as_dict(controller: Controller) -> dict[str, Any]:
    """Returns the settings and stages of a model as plain data."""
    settings, model = settings_of(controller), controller.model
    parts = {"gradient accumulation": settings.accumulation, "pipelining": settings.pipelining}
    for what, part in parts.items():
        if part.more:
            logger.info(
                "The %s options %s of %r are not saved with it. Set them again after loading.",
                what,
                list(part.more),
                model.name,
            )
    assignment = controller.stages.assignment()
    return {
        "gradient_accumulation": _accumulating(settings.accumulation),
        "pipelining": _accumulating(settings.pipelining),
        "device_mapping": settings.device_mapping and list(settings.device_mapping),
        "accumulate_outfeed": settings.accumulate_outfeed,
        "asynchronous_callbacks": settings.asynchronous,
        "replicated_metric_reduction_method": settings.metrics.value,
        "infeed_queue": dict(settings.infeed),
        "outfeed_queue": dict(settings.outfeed),
        "stages": None if assignment is None else to_json(assignment, model),
    }


def put_dict(controller: Controller, data: dict[str, Any]) -> None:
    """Puts settings and stages in force that `as_dict` has returned; what is missing is default."""
    mapping = data.get("device_mapping")
    settings = Settings(
        accumulation=_from_dict(data.get("gradient_accumulation")),
        pipelining=_from_dict(data.get("pipelining")),
        device_mapping=None if mapping is None else tuple(mapping),
        accumulate_outfeed=data.get("accumulate_outfeed", False),
        asynchronous=data.get("asynchronous_callbacks", False),
        metrics=MetricReduction(data.get("replicated_metric_reduction_method", "none")),
        infeed=data.get("infeed_queue", {}),
        outfeed=data.get("outfeed_queue", {}),
    )
    put(controller, settings)
    if data.get("stages") is not None:
        controller.stages.put(from_json(data["stages"], controller.model))


def _accumulating(part: Accumulating) -> dict[str, Any]:
    method = part.method.name
    return {"steps": part.steps, "reduction_method": method, "normalize": part.normalizes}


def _from_dict(data: dict[str, Any] | None) -> Accumulating:
    data, default = data or {}, Accumulating()
    return replace(
        default,
        steps=data.get("steps"),
        method=Method[data.get("reduction_method", default.method.name)],
        normalizes=data.get("normalize", False),
    )
