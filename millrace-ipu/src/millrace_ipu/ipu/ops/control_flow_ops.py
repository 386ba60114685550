"""A barrier, which keeps XLA from moving operations across it."""

from typing import Any

import jax

from millrace_ipu.ipu.replacements import other_name as _other_name


def barrier(
    tensors: Any, insert_barrier_for_gradients: bool = False, name: str | None = None
) -> Any:
    """Returns the values, all of which are computed before any of them is used.

    Args:
        tensors: a tree of arrays.
        insert_barrier_for_gradients: ignored: gradients have a barrier in any case.
        name: ignored.
    """
    del insert_barrier_for_gradients, name
    return jax.lax.optimization_barrier(tensors)


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
