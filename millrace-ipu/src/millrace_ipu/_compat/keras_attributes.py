"""Attributes of Keras's modules that Keras 3 does not have: `keras.ipu`, `keras.backend.mean`.

    let_attributes_be_read(modules, find)     find("keras.layers", "CuDNNLSTM") -> its value

`legacy_preprocessing`   Keras 3 still has the preprocessing of Keras 2, without a public name.
`build_resnet`           and the function that all its ResNets are built by.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from keras.src.applications.resnet import ResNet
from keras.src.legacy.preprocessing import image, sequence, text

from millrace.extend import Patch, put_in, take_out

__all__ = ["build_resnet", "hidden", "legacy_preprocessing", "let_attributes_be_read"]

Find = Callable[[str, str], Any]


class _Attributes:
    """Finders of attributes of one module, by the patch that they belong to."""

    def __init__(self, module: ModuleType):
        self.module, self.before = module, vars(module).get("__getattr__")
        self.finders: dict[Patch, Find] = {}
        vars(module)["__getattr__"] = self.read

    def read(self, name: str) -> Any:
        """Returns the value of an attribute; the finder that was added last comes first."""
        if self.before is not None:
            try:
                return self.before(name)
            except AttributeError:
                pass
        error = AttributeError(f"module {self.module.__name__!r} has no attribute {name!r}")
        for find in reversed(self.finders.values()):
            try:
                return find(self.module.__name__, name)
            except AttributeError as missing:
                error = missing if missing.name else error
        raise error

    def remove(self, patch: Patch) -> None:
        """Removes a finder, and with the last one what was put in."""
        self.finders.pop(patch, None)
        if self.finders or vars(self.module).get("__getattr__") != self.read:
            return
        if self.before is None:
            del vars(self.module)["__getattr__"]
        else:
            vars(self.module)["__getattr__"] = self.before
        del _attributes[self.module.__name__]


_attributes: dict[str, _Attributes] = {}


def let_attributes_be_read(patch: Patch, names: Iterable[str], find: Find) -> None:
    """Lets programs read attributes that modules lack, until the patch is taken out.

    Args:
        patch: the entry of the table.
        names: of the modules.
        find: returns the value of an attribute, by the name of the module and that of the
            attribute; raises an AttributeError without one. The one with a `name` is shown.
    """
    for name in names:
        module = importlib.import_module(name)
        take_out(patch, name)
        if name not in _attributes:
            _attributes[name] = _Attributes(module)
        _attributes[name].finders[patch] = find
        put_in(patch, functools.partial(_attributes[name].remove, patch), key=name)


@contextmanager
def hidden(names: Iterable[str]) -> Iterator[None]:
    """Removes modules of Keras for the time of a `with` block, also as attributes."""
    modules = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    attributes: list[tuple[ModuleType, str, object]] = []
    for name in names:
        package, _, last = name.rpartition(".")
        parent = sys.modules.get(package)
        if parent is not None and last in vars(parent):
            attributes.append((parent, last, vars(parent).pop(last)))
    try:
        yield
    finally:
        sys.modules.update(modules)
        for parent, last, value in attributes:
            setattr(parent, last, value)


def legacy_preprocessing() -> dict[str, ModuleType]:
    """Returns Keras 2's modules for preprocessing, by their old names."""
    return {
        "keras.preprocessing.image": image,
        "keras.preprocessing.sequence": sequence,
        "keras.preprocessing.text": text,
    }


def build_resnet(
    stack_fn: Callable[..., Any],
    preact: bool,
    use_bias: bool,
    model_name: str = "resnet",
    *args: Any,
    layers: object = None,
    **kwargs: Any,
) -> Any:
    """Returns a ResNet of stacks of one's own, by the function that Keras builds its own with.

    Args:
        stack_fn: returns the output of the stacks.
        preact: whether layers are activated before they are convolved.
        use_bias: whether convolutions have a bias.
        model_name: of the model.
        *args: the others, in the order of Keras 2, which is that of Keras 3.
        layers: the module of layers, of which there is only one.
        **kwargs: the others by their names.
    """
    return ResNet(stack_fn, preact, use_bias, *args, name=model_name, **kwargs)
