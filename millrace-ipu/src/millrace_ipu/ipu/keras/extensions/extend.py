"""Binds the methods of IPU programs to an attached model, whose class stays Keras's own.

extend(model)
    rules              -> rules.py        IPURules, with the settings of the model
    set_*_options      -> setters.py      arguments -> settings.py -> native.py: native options
    *_pipeline_stage_* -> stages.py
    build              -> building.py
    save, get_config   -> saving.py
    export_for_ipu_serving             raises: there is no server here that loads such an export
    fit, evaluate, predict
        data of Python code          is refused, before Keras draws from it
        set_asynchronous_callbacks   is off in fit and evaluate where accumulate_outfeed is on
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras

from millrace.extend import Controller, bound, controller_of, has_own_call
from millrace_ipu._compat.keras_models import is_functional
from millrace_ipu.ipu.keras.extensions.building import (
    bind_build_by_call,
    build_checking_stages,
    build_without_checks,
)
from millrace_ipu.ipu.keras.extensions.data_checks import check_source
from millrace_ipu.ipu.keras.extensions.instances import ONE_BATCH, instances_of
from millrace_ipu.ipu.keras.extensions.native import put
from millrace_ipu.ipu.keras.extensions.rules import IPURules
from millrace_ipu.ipu.keras.extensions.saving import (
    get_config_with_settings,
    load_assets_with_settings,
    revive_from_configs,
    save_assets_with_settings,
)
from millrace_ipu.ipu.keras.extensions.setters import SETTERS
from millrace_ipu.ipu.keras.extensions.settings import rules_of, settings_of
from millrace_ipu.ipu.keras.extensions.stages import SEQUENTIAL_METHODS, STAGE_METHODS
from millrace_ipu.ipu.pre_compile import compiled, pre_compiles
from millrace_ipu.tensorflow.iterators import device_iterators
from millrace_ipu.tensorflow.replacements import SERVING
from millrace_ipu.tensorflow.unsupported import Unsupported

logger = logging.getLogger("millrace")
LOOPS = ("fit", "evaluate", "predict")


def extend(model: keras.Model) -> None:
    """Extends an attached model, also at the start of its construction."""
    revive_from_configs()
    controller = controller_of(model)
    if controller is None:
        return
    instances = instances_of(controller.setup)
    controller.put_rules(IPURules(instances=instances))
    methods = [*SETTERS, *STAGE_METHODS]
    if isinstance(model, keras.Sequential):
        methods += SEQUENTIAL_METHODS
    added: dict[str, Any] = {method.__name__: bound(method, controller) for method in methods}
    added |= {name: around(name, getattr(model, name), controller) for name in LOOPS}
    added["save_assets"] = save_assets_with_settings(model.save_assets, controller)  # type: ignore[attr-defined]
    added["load_assets"] = load_assets_with_settings(model.load_assets, controller)  # type: ignore[attr-defined]
    if isinstance(model, keras.Sequential):
        added["build"] = build_without_checks(model.build)
    elif is_functional(model):
        added["build"] = build_checking_stages(model.build, controller)
    added["get_config"] = get_config_with_settings(model.get_config, controller)
    added["export_for_ipu_serving"] = Unsupported("model.export_for_ipu_serving", lambda _: SERVING)
    if instances is not None:
        added |= dict.fromkeys(ONE_BATCH, instances.refuse_one_batch)
    for name, value in added.items():
        controller.attributes.bind(name, value)
    if has_own_call(model):
        bind_build_by_call(model, controller)
    put(controller, settings_of(controller))


def around(name: str, loop: Callable[..., object], controller: Controller) -> Callable[..., Any]:
    """Returns `fit`, `evaluate` or `predict` of an extended model.

    Args:
        name: of the loop.
        loop: the method of the attached model.
        controller: of the model.
    """

    @functools.wraps(loop)
    def run(x: object = None, *args: Any, **kwargs: Any) -> Any:
        if pre_compiles():
            return compiled(loop, controller.model, x, *args, **kwargs)
        check_source(x)
        validation = kwargs.get("validation_data")
        check_source(validation[0] if isinstance(validation, tuple) else validation)
        instances = rules_of(controller).instances
        if instances is not None:
            instances.share_weights(controller.model)
            if name == "predict":
                return instances.own_rows(controller.setup, in_scope(x, *args, **kwargs))
        return in_scope(x, *args, **kwargs)

    def in_scope(x: object, *args: Any, **kwargs: Any) -> Any:
        if name == "fit":
            epochs = kwargs.get("epochs", args[2] if len(args) > 2 else 1)
            first = kwargs.get("initial_epoch", 0)
            rules = replace(rules_of(controller), epochs=max(epochs - first, 1))
            controller.put_rules(rules)
        ignores = _ignores_asynchronous(name, controller)
        if ignores:
            _call_asynchronously(controller, False)
        try:
            with device_iterators(False):  # Keras reads data sets in Python
                return loop(x, *args, **kwargs)
        finally:
            if ignores:
                _call_asynchronously(controller, True)

    return run


def _call_asynchronously(controller: Controller, is_on: bool) -> None:
    options = replace(controller.setup.options, asynchronous_callbacks=is_on)
    controller.put_options(options, True)


def _ignores_asynchronous(name: str, controller: Controller) -> bool:
    """Whether `set_asynchronous_callbacks` is on, and without effect in this loop."""
    settings, options = settings_of(controller), controller.setup.options
    if not options.asynchronous_callbacks or not settings.accumulate_outfeed or name == "predict":
        return False
    if controller.setup.stages.assignment() is None:
        return False
    if not controller.is_running:
        logger.info(
            "accumulate_outfeed=True delivers the logs of %r once per update, so that %s calls no "
            "callbacks in between: set_asynchronous_callbacks(True) is ignored there.",
            controller.model.name,
            name,
        )
    return True
