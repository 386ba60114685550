"""Private Keras: the construction of models. Checked on keras 3.13.0, 3.15.1 and 3.16.0.dev.

`after_construction`    calls a function with every model; all reach `keras.Model.__init__`.
`raise_own_errors`      lets our errors out of `load_model`.
`build_for`             makes the variables that fit would make for a batch.
`checked_build`         shows a function the batch from which fit builds a model.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from millrace._compat.patch_table import LOADING_FAILURE, MODEL_INIT
from millrace._compat.patches import replace
from millrace._compat.versions import keras_is
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.errors import MillraceError

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
