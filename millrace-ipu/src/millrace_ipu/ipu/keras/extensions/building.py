"""The classes of extended models, and the building of models.

isinstance(model, SequentialExtension)   an extended keras.Sequential
isinstance(model, FunctionalExtension)   an extended Functional
isinstance(model, ModelExtension)        an extended subclass of keras.Model with a `call`

Functional     `build` ends its construction and checks the stages: if some layer calls are inside
               of PipelineStage scopes and others are not, it raises an OptionError
Sequential     builds a Functional of its layers, whose stages are neither read nor checked
subclass       model.build((None, 3)) and model.build(keras.Input((3,))) run `call`, which builds
               all layers
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeGuard

import keras

from millrace.errors import OptionError
from millrace.extend import Controller, ScopedValue, controller_of
from millrace_ipu._compat.keras_models import (
    as_default_build,
    has_default_build,
    has_unbuilt_layers,
    is_functional,
)

BuildArguments = ParamSpec("BuildArguments")  # the arguments of `build`

_is_in_sequential = ScopedValue(False)


def is_extended(model: object) -> bool:
    """Whether a model has the setters of IPU programs."""
    controller = controller_of(model)
    return controller is not None and hasattr(controller.setup.rules, "settings")


class _ExtensionType(type):
    def __instancecheck__(cls, model: object) -> bool:
        return is_extended(model) and cls.__name__ == _kind(model)


def _kind(model: object) -> str:
    if isinstance(model, keras.Sequential):
        return "SequentialExtension"
    return "FunctionalExtension" if is_functional(model) else "ModelExtension"


class SequentialExtension(metaclass=_ExtensionType):
    """An extended `keras.Sequential`."""


class FunctionalExtension(metaclass=_ExtensionType):
    """An extended Functional model: made of inputs and outputs."""


class ModelExtension(metaclass=_ExtensionType):
    """An extended subclass of `keras.Model` with a `call`."""


def build_checking_stages(
    build: Callable[BuildArguments, None], controller: Controller
) -> Callable[BuildArguments, None]:
    """Returns the `build` of a Functional model, which then checks its stages."""

    @functools.wraps(build)
    def build_and_check(*args: BuildArguments.args, **kwargs: BuildArguments.kwargs) -> None:
        build(*args, **kwargs)
        if not _is_in_sequential.get():
            controller.setup.stages.assignment()

    return build_and_check


def build_without_checks(build: Callable[BuildArguments, None]) -> Callable[BuildArguments, None]:
    """Returns the `build` of a Sequential, whose inner Functional model is not checked."""

    @functools.wraps(build)
    def build_sequential(*args: BuildArguments.args, **kwargs: BuildArguments.kwargs) -> None:
        with _is_in_sequential.bound_to(True):
            build(*args, **kwargs)

    return build_sequential


def bind_build_by_call(model: keras.Model, controller: Controller) -> None:
    """Gives a subclassed model with Keras's own `build` one that runs its `call`."""
    if not has_default_build(model):
        return

    mark_as_built = model.build
    is_running = False

    def build(input_shape: object) -> None:
        nonlocal is_running
        if is_running or not has_unbuilt_layers(model):  # Keras builds the model inside a call
            mark_as_built(input_shape)
            return
        is_running = True
        try:
            model(_inputs(input_shape))
        finally:
            is_running = False

    build.__doc__ = "Builds all layers by running `call` on shapes, or on `keras.Input`s."
    controller.attributes.bind("build", as_default_build(build))


def _inputs(shapes: object) -> Any:
    if isinstance(shapes, keras.KerasTensor):
        return shapes
    if _is_shape(shapes):
        return keras.Input(batch_shape=tuple(shapes))
    if isinstance(shapes, dict):
        return {name: _inputs(value) for name, value in shapes.items()}
    if isinstance(shapes, list | tuple):
        return [_inputs(value) for value in shapes]
    raise OptionError(
        f"build() takes shapes, such as (None, 3), or keras.Input objects. Received: {shapes!r}."
    )


def _is_shape(value: object) -> TypeGuard[Sequence[int | None]]:
    return isinstance(value, list | tuple) and all(d is None or isinstance(d, int) for d in value)
