"""What an extended model is, and what happens when it is built.

isinstance(model, SequentialExtension)   an extended keras.Sequential
isinstance(model, FunctionalExtension)   an extended Functional
isinstance(model, ModelExtension)        an extended model with a `call` of its own

Functional     its construction ends in `build`, which checks the stages: a call outside of all
               PipelineStage scopes beside one inside is an OptionError
Sequential     makes a Functional of its layers, whose stages are neither read nor checked
subclass       model.build((None, 3)) and model.build(keras.Input((3,))) run `call`, and thereby
               build all layers
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from millrace._compat.keras_build import as_default_build, has_default_build
from millrace._compat.keras_graph import is_functional
from millrace._compat.keras_layers import has_unbuilt_layers
from millrace.errors import OptionError
from millrace.fit.controller import Controller, controller_of
from millrace.threads.scoped_value import ScopedValue

_is_in_sequential = ScopedValue(False)


def is_extended(model: Any) -> bool:
    """Whether a model has the setters of IPU programs."""
    controller = controller_of(model)
    return controller is not None and hasattr(controller.setup.rules, "settings")


class _Kind(type):
    def __instancecheck__(cls, model: Any) -> bool:
        return is_extended(model) and cls.describes(model)  # type: ignore[attr-defined]


class SequentialExtension(metaclass=_Kind):
    """An extended `keras.Sequential`."""

    @staticmethod
    def describes(model: Any) -> bool:
        """Whether a model is of this kind."""
        return isinstance(model, keras.Sequential)


class FunctionalExtension(metaclass=_Kind):
    """An extended Functional model."""

    @staticmethod
    def describes(model: Any) -> bool:
        """Whether a model is of this kind."""
        return is_functional(model) and not isinstance(model, keras.Sequential)


class ModelExtension(metaclass=_Kind):
    """An extended model with a `call` of its own."""

    @staticmethod
    def describes(model: Any) -> bool:
        """Whether a model is of this kind."""
        return not is_functional(model) and not isinstance(model, keras.Sequential)


def build_checking_stages(
    build: Callable[..., None], controller: Controller
) -> Callable[..., None]:
    """Returns the `build` of a Functional model, which then checks its stages."""

    @functools.wraps(build)
    def checked(*args: Any, **kwargs: Any) -> None:
        build(*args, **kwargs)
        if not _is_in_sequential.get():
            controller.setup.stages.assignment()

    return checked


def build_without_checks(build: Callable[..., None]) -> Callable[..., None]:
    """Returns the `build` of a Sequential, whose inner Functional model is not checked."""

    @functools.wraps(build)
    def spared(*args: Any, **kwargs: Any) -> None:
        with _is_in_sequential.bound_to(True):
            build(*args, **kwargs)

    return spared


def bind_build_by_call(model: Any, controller: Controller) -> None:
    """Gives a subclassed model that has no `build` of its own one that runs its `call`."""
    if not has_default_build(model):
        return

    mark_as_built = model.build
    is_running = False

    def build(input_shape: Any) -> None:
        nonlocal is_running
        if is_running or not has_unbuilt_layers(model):  # a call of the model is under way
            mark_as_built(input_shape)
            return
        is_running = True
        try:
            model(_inputs(input_shape))
        finally:
            is_running = False

    build.__doc__ = "Builds all layers by a run of `call` on shapes, or on `keras.Input`s."
    controller.attributes.bind("build", as_default_build(build))


def _inputs(given: Any) -> Any:
    if isinstance(given, keras.KerasTensor):
        return given
    if _is_shape(given):
        return keras.Input(batch_shape=tuple(given))
    if isinstance(given, dict):
        return {name: _inputs(value) for name, value in given.items()}
    if isinstance(given, list | tuple):
        return [_inputs(value) for value in given]
    raise OptionError(
        f"build() takes shapes, such as (None, 3), or keras.Input objects. Received: {given!r}."
    )


def _is_shape(given: Any) -> bool:
    return isinstance(given, list | tuple) and all(d is None or isinstance(d, int) for d in given)
