"""The attributes that attachment gives a model, and the patches that these need."""

import weakref

import keras

from millrace._compat.patches import hold, new_holder, release


class Attributes:
    """The attributes of one attached model."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._bound: dict[str, tuple[object, object]] = {}  # the model's own, and ours
        # Released with the model, too: a model that is collected was never detached.
        holder = new_holder()
        hold(holder)
        self._release_patches = weakref.finalize(model, release, holder)
        self._release_patches.atexit = False

    def bind(self, name: str, value: object) -> None:
        """Gives the model an attribute, until `unbind`."""
        own, _ = self._bound.get(name, (vars(self._model).get(name), None))
        self._bound[name] = own, value
        # Past Keras's own __setattr__, which would track it as a part of the model.
        object.__setattr__(self._model, name, value)

    def unbind(self) -> None:
        """Takes the attributes from the model, but for those that someone has replaced since."""
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
