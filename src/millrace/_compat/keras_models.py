"""Public methods of Keras's models that have no hook: what is done as a model comes to be.

`after_construction`    every kind of model reaches `keras.Model.__init__`.
`after_from_config`     where a model is made of a configuration, its own class aside.
"""

from collections.abc import Callable
from typing import Any

from millrace._compat.patch_table import MODEL_FROM_CONFIG, MODEL_INIT, SEQUENTIAL_FROM_CONFIG
from millrace._compat.patches import replace


def after_construction(then: Callable[[Any], None]) -> None:
    """Calls `then` with every model that has been constructed."""

    def wrapper(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(self, *args, **kwargs)
            then(self)

        return __init__

    replace(MODEL_INIT, wrapper)


def after_from_config(note: Callable[[Any], Any], then: Callable[[Any, Any], None]) -> None:
    """Lets something be done with models that are made of a configuration.

    Args:
        note: called with the configuration, before Keras takes entries out of it.
        then: called with the model, and with what `note` has returned.
    """

    def wrapper(original: Any) -> Any:
        def from_config(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
            noted = note(config)
            model = original(cls, config, *args, **kwargs)
            then(model, noted)
            return model

        return from_config

    replace(MODEL_FROM_CONFIG, wrapper)
    replace(SEQUENTIAL_FROM_CONFIG, wrapper)
