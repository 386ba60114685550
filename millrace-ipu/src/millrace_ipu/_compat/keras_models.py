"""Private Keras: how models are made and built. Checked on keras 3.13.0, 3.15.1 and 3.16.0.dev.

`after_from_config`         calls a function with models that are made from a configuration.
`give_metrics_to_outputs`   each of several outputs gets all metrics of a list.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import keras
from keras.src.models.functional import Functional

from millrace.extend import replace
from millrace_ipu._compat.patch_table import MODEL_FROM_CONFIG, SEQUENTIAL_FROM_CONFIG

Config = dict[str, Any]  # of a model, as `get_config` returns it
RestoredSettings = TypeVar("RestoredSettings")
Build = TypeVar("Build", bound=Callable[..., object])


def is_functional(model: object) -> bool:
    """Whether a model was made of inputs and outputs; a Sequential is not."""
    return isinstance(model, Functional)


def has_unbuilt_layers(model: keras.Model) -> bool:
    """Whether a layer inside a model has yet to make its variables."""
    return not all(layer.built for layer in model._flatten_layers(include_self=False))


def as_default_build(build: Build) -> Build:
    """Marks a function that replaces a layer's `build` as Keras's own default.

    Keras then learns from a call on shapes which variables a layer has, and calls `build` after it.
    """
    build._is_default = True  # type: ignore[attr-defined]
    return build


def has_default_build(layer: keras.Layer) -> bool:
    """Whether a layer's class does not override `build`."""
    return bool(getattr(layer.build, "_is_default", False))


def after_from_config(
    read: Callable[[Config], RestoredSettings],
    then: Callable[[keras.Model, RestoredSettings], None],
) -> None:
    """Calls functions before and after a model is made from a configuration.

    Args:
        read: called with the configuration, before Keras takes entries out of it.
        then: called with the model, and the result of `read`.
    """

    def wrapper(original: Callable[..., keras.Model]) -> Callable[..., keras.Model]:
        def from_config(
            cls: type[keras.Model], config: Config, *args: object, **kwargs: object
        ) -> keras.Model:
            settings = read(config)
            model = original(cls, config, *args, **kwargs)
            then(model, settings)
            return model

        return from_config

    replace(MODEL_FROM_CONFIG, wrapper)
    replace(SEQUENTIAL_FROM_CONFIG, wrapper)


def give_metrics_to_outputs(model: keras.Model, outputs: Any) -> None:
    """Gives each of several outputs all metrics of a list, as Keras 2 did.

    Args:
        model: a compiled model; it keeps metrics that have been built, or have a structure.
        outputs: a structure of several outputs.
    """
    compiled: Any = getattr(model, "_compile_metrics", None)
    if compiled is None or compiled.built:
        return
    for name in ("_user_metrics", "_user_weighted_metrics"):
        metrics = getattr(compiled, name)
        flat = [metrics] if metrics and not keras.tree.is_nested(metrics) else metrics
        if flat and isinstance(flat, list | tuple) and not any(map(keras.tree.is_nested, flat)):
            each = keras.tree.map_structure(lambda _, all_=flat: [*map(_copy, all_)], outputs)
            setattr(compiled, name, each)


def _copy(metric: Any) -> Any:
    is_object = isinstance(metric, keras.metrics.Metric)
    return type(metric).from_config(metric.get_config()) if is_object else metric
