"""A strategy that is taken for something else: for its scope, or for a model."""

from typing import TYPE_CHECKING, NoReturn

from millrace.errors import PlanError
from millrace.strategy.methods import METHODS

_OF_MODELS = {"compile", "evaluate", "fit", "predict", *(method.__name__ for method in METHODS)}


class Misused:
    """Says what was meant. The base of `Strategy`."""

    def __enter__(self) -> NoReturn:
        raise PlanError(
            "`with strategy:` attaches no model, since a strategy is not its own scope. Write "
            "`with strategy.scope():`."
        )

    def __exit__(self, *_: object) -> None:
        """Is never reached. Without it, Python would not call `__enter__`."""

    if not TYPE_CHECKING:  # where any attribute would be there

        def __getattr__(self, name: str) -> NoReturn:
            """Says of a model's method whose it is."""
            error = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OF_MODELS:
                error += f". It is a method of the models of a strategy: model.{name}(...)."
            raise AttributeError(error, name=name, obj=self)
