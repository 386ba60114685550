"""Errors for a strategy that is used as its own scope, or as a model."""

from typing import TYPE_CHECKING, NoReturn

from millrace.api.strategy.methods import METHODS
from millrace.errors import PlanError

_OF_MODELS = {"compile", "evaluate", "fit", "predict", *(method.__name__ for method in METHODS)}


class Misused:
    """Base of `Strategy`: errors for `with strategy:` and `strategy.fit()`."""

    def __enter__(self) -> NoReturn:
        raise PlanError(
            "`with strategy:` attaches no model, since a strategy is not its own scope. Write "
            "`with strategy.scope():`."
        )

    def __exit__(self, *_: object) -> None:
        """Never runs; without it, Python would not call `__enter__`."""

    if not TYPE_CHECKING:  # which would then take any attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raises an error that tells a model's method from a name that does not exist."""
            error = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OF_MODELS:
                error += f". It is a method of the models of a strategy: model.{name}(...)."
            raise AttributeError(error, name=name, obj=self)
