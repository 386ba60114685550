"""Private Keras: building a model as fit does. Checked on keras 3.13.0, 3.14.0 and 3.15.1."""

from collections.abc import Callable, Iterator
from typing import Any

from millrace._compat.versions import keras_is

CHECKED_BUILD = "_maybe_symbolic_build"  # the method by which fit builds a model, from 3.16 on


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


def checked_build(model: Any, check: Callable[[Any], Any]) -> dict[str, Callable[..., None]]:
    """Returns the attributes of a model that let `check` see the batch that fit builds it from.

    Up to Keras 3.15 fit draws that batch from its epoch iterator, which can check it, and there
    are none; from 3.16 on it goes past the iterator, to the data adapter.
    """
    if not keras_is("3.16"):
        return {}

    def build(iterator: Any = None, data_batch: Any = None) -> None:
        if data_batch is None and any(model._get_unbuilt_components()):
            data_batch = next(iter(iterator.data_adapter.get_jax_iterator()), None)
            check(data_batch)
        type(model)._maybe_symbolic_build(model, iterator, data_batch)

    return {CHECKED_BUILD: build}


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
