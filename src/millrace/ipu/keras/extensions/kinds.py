"""Classes that extended models are instances of, though their class is Keras's own.

isinstance(model, SequentialExtension)   -> an extended keras.Sequential
isinstance(model, FunctionalExtension)   -> an extended Functional
isinstance(model, ModelExtension)        -> an extended model with a `call` of its own
"""

from typing import Any

import keras

from millrace._compat.keras_graph import is_functional
from millrace.strategy.controller import controller_of


def is_extended(model: Any) -> bool:
    """Whether a model has the setters of IPU programs."""
    controller = controller_of(model)
    return controller is not None and hasattr(controller.rules, "settings")


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
