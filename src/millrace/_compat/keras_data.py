"""Private Keras for data sets of other kinds. Checked on keras 3.13.0 and 3.15.1.

`DataAdapter`     what Keras's loops draw batches from; there is no public base class.
`stacked`         what Keras's own scan of several steps draws.
`let_data_adapt`  Keras knows data sets by a list of types; nothing public adds one to it.
"""

from collections.abc import Iterator
from typing import Any

from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from millrace._compat.patch_table import DATA_ADAPTER
from millrace._compat.patches import replace
from millrace._compat.versions import private

__all__ = ["DataAdapter", "let_data_adapt", "stacked"]


def stacked(batches: Iterator[Any], steps: int | None) -> Iterator[Any]:
    """Returns batches as Keras asks its adapters for them, from 3.16 on several at a time.

    Args:
        batches: of one pass.
        steps: how many are stacked to one; None is none.
    """
    return private("super_batch_iterator")(batches, steps) if steps else batches


def let_data_adapt() -> None:
    """Lets data that has a method `as_data_adapter` say what Keras draws from.

    The method is given the arguments of `fit`: `y`, `sample_weight` and `class_weight`.
    """

    def wrapper(original: Any) -> Any:
        def get_data_adapter(x: Any, *args: Any, **kwargs: Any) -> Any:
            adapt = getattr(x, "as_data_adapter", None)
            if adapt is None:
                return original(x, *args, **kwargs)
            return adapt(
                y=kwargs.get("y"),
                sample_weight=kwargs.get("sample_weight"),
                class_weight=kwargs.get("class_weight"),
            )

        return get_data_adapter

    replace(DATA_ADAPTER, wrapper)
