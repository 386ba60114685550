"""What the setters were told travels with a model, but for their free arguments.

in a `.keras` file              -> an asset, `millrace_ipu.json`, which stock Keras skips
in get_config(), to_json()      -> an entry beside the first layer, which stock Keras skips
"""

import copy
import json
import pathlib
from collections.abc import Callable
from typing import Any

from millrace._compat.keras_models import after_from_config
from millrace.ipu.keras.extensions.kinds import is_extended
from millrace.ipu.keras.extensions.plain_settings import as_dict, put_dict
from millrace.strategy.controller import Controller, controller_of

FILE, ENTRY = "millrace_ipu.json", "millrace_ipu"


def saving(save: Callable[[str], None], controller: Controller) -> Callable[[str], None]:
    """Returns `save_assets` of an extended model."""

    def save_assets(directory: str) -> None:
        save(directory)
        (pathlib.Path(directory) / FILE).write_text(json.dumps(as_dict(controller), indent=1))

    return save_assets


def loading(load: Callable[[str], None], controller: Controller) -> Callable[[str], None]:
    """Returns `load_assets` of an extended model."""

    def load_assets(directory: str) -> None:
        load(directory)
        path = pathlib.Path(directory or ".") / FILE
        if directory and path.is_file():
            put_dict(controller, json.loads(path.read_text()))

    return load_assets


def describing(own: Callable[[], Any], controller: Controller) -> Callable[[], Any]:
    """Returns `get_config` of an extended model."""

    def get_config() -> Any:
        config = own()
        layers = config.get("layers") if isinstance(config, dict) else None
        if layers and isinstance(layers[0], dict):
            config = {**config, "layers": [{**layers[0], ENTRY: as_dict(controller)}, *layers[1:]]}
        return config

    return get_config


def revive_from_configs() -> None:
    """Lets `from_config` of Keras's models put settings in force, where a scope extends them."""
    after_from_config(_entry_of, _revive)


def _entry_of(config: Any) -> Any:
    layers = config.get("layers") if isinstance(config, dict) else None
    return copy.deepcopy(layers[0].get(ENTRY)) if layers else None


def _revive(model: Any, entry: Any) -> None:
    if entry is not None and is_extended(model):
        put_dict(controller_of(model), entry)  # type: ignore[arg-type]
