"""Look-ups of rows; embeddings in the memory of the host are not here."""

from typing import Any

import keras

from millrace_ipu.ipu.replacements import other_name as _other_name


def embedding_lookup(
    params: Any,
    ids: Any,
    name: str | None = None,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
    **_: object,
) -> Any:
    """Returns rows of a table.

    Args:
        params: the table, `[rows, ...]`.
        ids: row numbers, of any shape.
        name: ignored.
        serialization_factor: ignored: XLA splits look-ups itself.
        indices_are_sorted: ignored.
    """
    del name, serialization_factor, indices_are_sorted
    return keras.ops.take(params, ids, axis=0)


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
