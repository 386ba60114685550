"""Puts the methods of IPU programs on an attached model. Its class stays Keras's own."""

from typing import Any

import keras

from millrace._compat.keras_graph import has_own_call, is_functional
from millrace.ipu.keras.extensions.building import build_by_call
from millrace.ipu.keras.extensions.construction import checking, sparing
from millrace.ipu.keras.extensions.in_force import put, settings_of
from millrace.ipu.keras.extensions.loops import LOOPS, around
from millrace.ipu.keras.extensions.rules import IPURules
from millrace.ipu.keras.extensions.saving import describing, loading, revive_from_configs, saving
from millrace.ipu.keras.extensions.setters import SETTERS
from millrace.ipu.keras.extensions.stage_methods import SEQUENTIAL_METHODS, STAGE_METHODS
from millrace.strategy.attach import bound
from millrace.strategy.controller import controller_of


def extend(model: keras.Model) -> None:
    """Extends an attached model, at the start of its construction too."""
    revive_from_configs()
    controller = controller_of(model)
    if controller is None:
        return
    controller.rules = IPURules()
    methods = [*SETTERS, *STAGE_METHODS]
    if isinstance(model, keras.Sequential):
        methods += SEQUENTIAL_METHODS
    added: dict[str, Any] = {method.__name__: bound(method, controller) for method in methods}
    added |= {name: around(name, getattr(model, name), controller) for name in LOOPS}
    added["save_assets"] = saving(model.save_assets, controller)  # type: ignore[attr-defined]
    added["load_assets"] = loading(model.load_assets, controller)  # type: ignore[attr-defined]
    if isinstance(model, keras.Sequential):
        added["build"] = sparing(model.build)
    elif is_functional(model):
        added["build"] = checking(model.build, controller)
    added["get_config"] = describing(model.get_config, controller)
    for name, value in added.items():
        controller.bind(name, value)
    if has_own_call(model):
        build_by_call(model, controller)
    put(controller, settings_of(controller))
