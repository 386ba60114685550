"""Attributes that an attached model has instead of its own, and the patches that it needs."""

import weakref
from typing import Any

import keras

from millrace._compat.patches import hold, new_holder, release


class Attributes:
    """What a model is given as long as it is attached."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._bound: dict[str, tuple[Any, Any]] = {}  # the model's own, and ours
        # Ends with the model, too: who has forgotten it need not detach it.
        holder = new_holder()
        hold(holder)
        self._release_patches = weakref.finalize(model, release, holder)
        self._release_patches.atexit = False

    def bind(self, name: str, value: Any) -> None:
        """Gives the model an attribute, until `unbind`."""
        own, _ = self._bound.get(name, (vars(self._model).get(name), None))
        self._bound[name] = own, value
        # Past Keras's own __setattr__, which would track it as a part of the model.
        object.__setattr__(self._model, name, value)

    def unbind(self) -> None:
        """Takes from the model what `bind` gave it, unless someone has put something over it."""
        attributes = vars(self._model)
        for name, (own, value) in self._bound.items():
            if attributes.get(name) is not value:
                continue
            if own is None:
                object.__delattr__(self._model, name)
            else:
                object.__setattr__(self._model, name, own)
        self._bound.clear()
        self._release_patches()
