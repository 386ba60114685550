"""Saving of settings and stages with a model, except for the keyword arguments of its setters.

in a `.keras` file              an asset, `millrace_ipu.json`, which stock Keras skips
in get_config(), to_json()      an entry of the first layer, which stock Keras skips

{"gradient_accumulation": {...}, "pipelining": {...}, "device_mapping": ..., ..., "stages": ...}
"""

import copy
import json
import logging
import pathlib
from collections.abc import Callable
from typing import Any, TypeAlias

import keras

from millrace.errors import MillraceError, OptionError
from millrace.extend import Controller, MetricReduction, controller_of, from_json, to_json
from millrace_ipu._compat.keras_models import after_from_config
from millrace_ipu.ipu.gradient_accumulation import GradientAccumulationReductionMethod as Method
from millrace_ipu.ipu.keras.extensions.building import is_extended
from millrace_ipu.ipu.keras.extensions.native import put
from millrace_ipu.ipu.keras.extensions.settings import Accumulating, Settings, settings_of

logger = logging.getLogger("millrace")
_WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_LONGEST = 1000  # characters of a reason in an error
FILE, ENTRY = "millrace_ipu.json", "millrace_ipu"

Entry: TypeAlias = dict[str, Any]  # of a JSON file; see `as_dict`


def save_assets_with_settings(
    save: Callable[[str], None], controller: Controller
) -> Callable[[str], None]:
    """Returns the `save_assets` of an extended model, which also writes the settings."""

    def save_assets(directory: str) -> None:
        save(directory)
        (pathlib.Path(directory) / FILE).write_text(json.dumps(as_dict(controller), indent=1))

    return save_assets


def load_assets_with_settings(
    load: Callable[[str], None], controller: Controller
) -> Callable[[str], None]:
    """Returns the `load_assets` of an extended model, which also reads the settings."""

    def load_assets(directory: str) -> None:
        load(directory)
        path = pathlib.Path(directory or ".") / FILE
        if directory and path.is_file():
            _restore(controller, path.read_bytes(), FILE)

    return load_assets


def _restore(controller: Controller, data: bytes | Entry, where: str) -> None:
    """Puts saved settings in force.

    Args:
        controller: of the model.
        data: the content of a file, or of an entry of a configuration.
        where: their name, for errors.

    Raises:
        MillraceError: if no setter would take them.
    """
    try:
        _put_dict(controller, json.loads(data) if isinstance(data, bytes) else data)
    except MillraceError:
        raise
    except (*_WRONG, RecursionError) as error:
        raise OptionError(
            f"{where!r}, the settings that were saved with the model {controller.model.name!r}, "
            f"cannot be used: {_escaped(str(error)[:_LONGEST])}. Save the model again; or remove "
            f"{where!r} from its file, a zip archive, and call the setters again."
        ) from error


def _escaped(text: str) -> str:
    """Escapes what a terminal would act on, in a text that anybody may have written."""
    return text.encode("unicode_escape").decode()


def get_config_with_settings(
    own: Callable[[], object], controller: Controller
) -> Callable[[], object]:
    """Returns the `get_config` of an extended model, with the settings in it."""

    def get_config() -> object:
        config = own()
        layers = config.get("layers") if isinstance(config, dict) else None
        if layers and isinstance(layers[0], dict) and isinstance(config, dict):
            config = {**config, "layers": [{**layers[0], ENTRY: as_dict(controller)}, *layers[1:]]}
        return config

    return get_config


def revive_from_configs() -> None:
    """Makes `from_config` of Keras's models restore settings, where a scope extends the models."""
    after_from_config(_entry_of, _revive)


def _entry_of(config: object) -> Entry | None:
    layers = config.get("layers") if isinstance(config, dict) else None
    return copy.deepcopy(layers[0].get(ENTRY)) if layers else None


def _revive(model: keras.Model, entry: Entry | None) -> None:
    if entry is not None and is_extended(model):
        _restore(controller_of(model), entry, ENTRY)  # type: ignore[arg-type]


def as_dict(controller: Controller) -> Entry:
    """Returns the settings and stages of a model as plain data."""
    settings, model = settings_of(controller), controller.model
    setters = {"gradient accumulation": settings.accumulation, "pipelining": settings.pipelining}
    for title, accumulating in setters.items():
        if accumulating.more:
            logger.info(
                "The %s options %s of %r are not saved with it. Set them again after loading.",
                title,
                list(accumulating.more),
                model.name,
            )
    assignment = controller.setup.stages.assignment()
    return {
        "gradient_accumulation": _accumulating(settings.accumulation),
        "pipelining": _accumulating(settings.pipelining),
        **{entry: getattr(settings, name) for entry, name in _SAME.items()},
        "replicated_metric_reduction_method": settings.metrics.value,
        "stages": None if assignment is None else to_json(assignment, model),
    }


_SAME = {  # entries of the file, and attributes of the settings
    "device_mapping": "device_mapping",
    "accumulate_outfeed": "accumulate_outfeed",
    "asynchronous_callbacks": "asynchronous",
    "infeed_queue": "infeed",
    "outfeed_queue": "outfeed",
}


def _put_dict(controller: Controller, data: Entry) -> None:
    """Puts the result of `as_dict` in force. Missing entries get their defaults."""
    same = {name: data[entry] for entry, name in _SAME.items() if entry in data}
    mapping = same.pop("device_mapping", None)
    settings = Settings(
        accumulation=_from_dict(data.get("gradient_accumulation")),
        pipelining=_from_dict(data.get("pipelining")),
        device_mapping=None if mapping is None else tuple(mapping),
        metrics=MetricReduction(data.get("replicated_metric_reduction_method", "none")),
        **same,
    )
    put(controller, settings)
    if data.get("stages") is not None:
        controller.setup.stages.put(from_json(data["stages"], controller.model))


def _accumulating(settings: Accumulating) -> Entry:
    return {
        "steps": settings.steps,
        "reduction_method": settings.method.name,
        "normalize": settings.normalizes,
    }


def _from_dict(data: Entry | None) -> Accumulating:
    data = data or {}
    return Accumulating(
        steps=data.get("steps"),
        method=Method[data.get("reduction_method", Method.SUM.name)],
        normalizes=data.get("normalize", False),
    )
