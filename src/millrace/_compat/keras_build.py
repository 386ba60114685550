"""Private Keras: building a model as fit does. Checked on keras 3.13.0, 3.14.0 and 3.15.1."""

from collections.abc import Iterator
from typing import Any


def build_for(model: Any, batch: Any) -> bool:
    """Makes the variables that fit would make: of the model, its metrics and its optimizer.

    Args:
        model: a compiled model.
        batch: x, y and sample weights, or their specs; nothing is computed.

    Returns:
        Whether a batch was needed for it. fit would have drawn one, and begun its data anew.
    """
    needed = False

    def batches() -> Iterator[tuple[int, int, list[Any]]]:
        nonlocal needed
        needed = True
        yield 0, 0, [batch]

    model._symbolic_build(iterator=batches())
    return needed


def layer_names(model: Any) -> tuple[str, ...]:
    """Returns the names of all layers in a model, inner ones included, in their order."""
    return tuple(layer.name for layer in model._flatten_layers(include_self=False))


def compilation_of(model: Any) -> tuple[Any, ...]:
    """Returns what `compile` has made of its arguments: other objects after each call."""
    names = ("_compile_loss", "_compile_metrics", "optimizer")
    return tuple(getattr(model, name, None) for name in names)


def as_default_build(build: Any) -> Any:
    """Marks a function that is put in the place of a layer's `build` as none of the user's.

    Keras then finds out by a call on shapes what a layer has to make, and calls `build` after it.
    """
    build._is_default = True
    return build


def has_default_build(layer: Any) -> bool:
    """Whether a layer has no `build` of the user's."""
    return bool(getattr(layer.build, "_is_default", False))


def has_unbuilt_layers(model: Any) -> bool:
    """Whether a layer inside a model has yet to make its variables."""
    return not all(layer.built for layer in model._flatten_layers(include_self=False))
