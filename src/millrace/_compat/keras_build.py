"""Private Keras: the construction of models. Checked on keras 3.13.0, 3.15.1 and 3.16.0.dev.

`after_construction`    calls a function with every model; all reach `keras.Model.__init__`.
`after_from_config`     calls a function with models that are made from a configuration.
`raise_own_errors`      lets our errors out of `load_model`.
`build_for`             makes the variables that fit would make for a batch.
`checked_build`         shows a function the batch from which fit builds a model.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras

from millrace._compat.patch_table import (
    LOADING_FAILURE,
    MODEL_FROM_CONFIG,
    MODEL_INIT,
    SEQUENTIAL_FROM_CONFIG,
)
from millrace._compat.patches import replace
from millrace._compat.versions import keras_is
from millrace.errors import MillraceError
from millrace.pytrees import ArrayTree, SpecTree

Config = dict[str, Any]  # of a model, as `get_config` returns it
RestoredSettings = TypeVar("RestoredSettings")
Build = TypeVar("Build", bound=Callable[..., object])

CHECKED_BUILD = "_maybe_symbolic_build"  # the method by which fit builds a model, from 3.16 on


def build_for(model: keras.Model, batch: "ArrayTree | SpecTree") -> bool:
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

    private: Any = model  # the method is of a mix-in for each backend
    private._symbolic_build(iterator=batches())
    return needed


def checked_build(
    model: keras.Model, check: Callable[[ArrayTree], object]
) -> dict[str, Callable[..., None]]:
    """Returns attributes of a model that show `check` the batch from which fit builds it.

    Up to Keras 3.15 fit draws that batch from its epoch iterator, which can check it, and there
    are no attributes; from 3.16 on fit bypasses the iterator, and asks the data adapter.
    """
    if not keras_is("3.16"):
        return {}

    private: Any = model

    def build(iterator: Any = None, data_batch: ArrayTree = None) -> None:
        if data_batch is None and any(private._get_unbuilt_components()):
            first_batch = getattr(iterator, "first_batch", None)
            if first_batch is None:
                data_batch = next(iter(iterator.data_adapter.get_jax_iterator()), None)
            else:  # its errors name the batch
                with contextlib.suppress(StopIteration):
                    data_batch = first_batch()
            check(data_batch)
        type(private)._maybe_symbolic_build(private, iterator, data_batch)

    return {CHECKED_BUILD: build}


def compilation_of(model: keras.Model) -> tuple[object, ...]:
    """Returns the objects that `compile` makes of its arguments, new ones in each call."""
    names = ("_compile_loss", "_compile_metrics", "optimizer")
    return tuple(getattr(model, name, None) for name in names)


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Returns the arguments of the last `compile()`, as the user gave them; none before it."""
    config = getattr(getattr(model, "_compile_config", None), "config", None)
    return dict(config or {})


def as_default_build(build: Build) -> Build:
    """Marks a function that replaces a layer's `build` as Keras's own default.

    Keras then learns from a call on shapes which variables a layer has, and calls `build` after it.
    """
    build._is_default = True  # type: ignore[attr-defined]
    return build


def has_default_build(layer: keras.Layer) -> bool:
    """Whether a layer's class does not override `build`."""
    return bool(getattr(layer.build, "_is_default", False))


def after_construction(then: Callable[[keras.Model], None]) -> None:
    """Calls `then` with every model at the end of its construction."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: keras.Model, *args: object, **kwargs: object) -> None:  # noqa: N807
            original(self, *args, **kwargs)
            then(self)

        return __init__

    replace(MODEL_INIT, wrapper)


def raise_own_errors() -> None:
    """Lets `load_model` raise errors of ours, of which it would quote the text in a ValueError."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def raise_failure(failures: dict[int, tuple[object, Exception]], **options: bool) -> None:
            for _, error in failures.values():
                if isinstance(error, MillraceError):
                    raise error
            original(failures, **options)

        return raise_failure

    replace(LOADING_FAILURE, wrapper)


def after_from_config(
    read: Callable[[Config], RestoredSettings],
    then: Callable[[keras.Model, RestoredSettings], None],
) -> None:
    """Calls functions before and after a model is made from a configuration.

    Args:
        read: called with the configuration, before Keras takes entries out of it.
        then: called with the model, and the result of `read`.
    """

    def wrapper(original: Callable[..., keras.Model]) -> Callable[..., keras.Model]:
        def from_config(
            cls: type[keras.Model], config: Config, *args: object, **kwargs: object
        ) -> keras.Model:
            settings = read(config)
            model = original(cls, config, *args, **kwargs)
            then(model, settings)
            return model

        return from_config

    replace(MODEL_FROM_CONFIG, wrapper)
    replace(SEQUENTIAL_FROM_CONFIG, wrapper)


def give_metrics_to_outputs(model: keras.Model, outputs: Any) -> None:
    """Gives each of several outputs all metrics of a list, as Keras 2 did.

    Args:
        model: a compiled model; it keeps metrics that have been built, or have a structure.
        outputs: a structure of several outputs.
    """
    compiled: Any = getattr(model, "_compile_metrics", None)
    if compiled is None or compiled.built:
        return
    for name in ("_user_metrics", "_user_weighted_metrics"):
        metrics = getattr(compiled, name)
        flat = [metrics] if metrics and not keras.tree.is_nested(metrics) else metrics
        if flat and isinstance(flat, list | tuple) and not any(map(keras.tree.is_nested, flat)):
            each = keras.tree.map_structure(lambda _, all_=flat: [*map(_copy, all_)], outputs)
            setattr(compiled, name, each)


def _copy(metric: Any) -> Any:
    is_object = isinstance(metric, keras.metrics.Metric)
    return type(metric).from_config(metric.get_config()) if is_object else metric
