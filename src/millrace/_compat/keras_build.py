"""Private Keras: how a model comes to be. Checked on keras 3.13.0, 3.15.1 and 3.16.0.dev.

`after_construction`    every kind of model reaches `keras.Model.__init__`.
`after_from_config`     where a model is made of a configuration, its own class aside.
`build_for`             makes the variables that fit would make of a batch.
`checked_build`         lets the batch be seen from which fit builds a model.
"""

from collections.abc import Callable, Iterator
from typing import Any

from millrace._compat.patch_table import MODEL_FROM_CONFIG, MODEL_INIT, SEQUENTIAL_FROM_CONFIG
from millrace._compat.patches import replace
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


def compilation_of(model: Any) -> tuple[Any, ...]:
    """Returns what `compile` has made of its arguments: other objects after each call."""
    names = ("_compile_loss", "_compile_metrics", "optimizer")
    return tuple(getattr(model, name, None) for name in names)


def compile_arguments(model: Any) -> dict[str, Any]:
    """Returns the arguments of the last `compile()`, as the user gave them; none before it."""
    config = getattr(getattr(model, "_compile_config", None), "config", None)
    return dict(config or {})


def as_default_build(build: Any) -> Any:
    """Marks a function that is put in the place of a layer's `build` as none of the user's.

    Keras then finds out by a call on shapes what a layer has to make, and calls `build` after it.
    """
    build._is_default = True
    return build


def has_default_build(layer: Any) -> bool:
    """Whether a layer has no `build` of the user's."""
    return bool(getattr(layer.build, "_is_default", False))


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
