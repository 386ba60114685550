"""Operations on arrays of the host, between the processes of a run.

Every process calls the same operation at the same point. Programs that run on devices have
`ipu.cross_replica_ops` instead. With one process each is the identity.
"""

import enum
from typing import Any

import numpy as np
from jax.experimental import multihost_utils

from millrace.errors import OptionError, UnsupportedError
from millrace.extend import is_traced, process_count


class ReduceOp(enum.Enum):
    """How the arrays of the processes become one."""

    SUM = "SUM"
    MEAN = "MEAN"


Sum, Average = ReduceOp.SUM, ReduceOp.MEAN


def allreduce(
    tensor: Any,
    op: ReduceOp | str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> Any:
    """Returns the mean, or the sum, of the arrays of all processes, as a NumPy array.

    Args:
        tensor: an array, of the same shape and dtype in all.
        op: `Average`, the default, or `Sum`.
        prescale_factor: a factor for the arrays.
        postscale_factor: a factor for the result.
        name: ignored.
    """
    name_of_op = str(getattr(op, "value", op) or "MEAN").upper()
    if name_of_op not in ReduceOp.__members__:
        raise OptionError(f"A reduction is Sum or Average. Received: {op!r}. Set op=Average.")
    is_mean, dtype = ReduceOp[name_of_op] is ReduceOp.MEAN, np.asarray(tensor).dtype
    total = (_gathered(tensor) * np.asarray(prescale_factor, "float64")).sum(0)
    result = np.asarray((total / process_count() if is_mean else total) * postscale_factor)
    return result if is_mean and dtype.kind in "iub" else result.astype(dtype)


def all_reduce(value: Any, reduce_op: ReduceOp | str, tensor_name: str | None = None) -> Any:
    """Returns the sum, or the mean, of the arrays of all processes; see `allreduce`."""
    return allreduce(value, reduce_op)


def broadcast(
    tensor: Any, root_rank: int = 0, name: str | None = None, tensor_name: str | None = None
) -> Any:
    """Returns the array of one process, as a NumPy array.

    Args:
        tensor: an array, of the same shape and dtype in all.
        root_rank: the number of that process.
        name: ignored.
        tensor_name: ignored.
    """
    return _gathered(tensor)[root_rank]


def allgather(tensor: Any, name: str | None = None) -> Any:
    """Returns the arrays of all processes, joined along the first axis, as a NumPy array.

    Args:
        tensor: an array; the lengths of its first axis may differ between processes.
        name: ignored.
    """
    own = _on_host(tensor)
    lengths = _gathered(np.asarray(len(own)))
    padded = np.zeros((int(lengths.max()), *own.shape[1:]), own.dtype)
    padded[: len(own)] = own
    parts = _gathered(padded)
    return np.concatenate([part[:length] for part, length in zip(parts, lengths, strict=True)])


def _on_host(tensor: Any) -> np.ndarray:
    if is_traced(tensor):
        raise UnsupportedError(
            "This operation is between processes, on the host, and was called in a compiled "
            "function. Call ipu.cross_replica_ops.cross_replica_sum() or cross_replica_mean() "
            "there, or this one outside."
        )
    return np.asarray(getattr(tensor, "value", tensor))


def _gathered(tensor: Any) -> np.ndarray:
    """Returns the arrays of all processes, `[processes, ...]`."""
    own = _on_host(tensor)
    if process_count() == 1:
        return own[np.newaxis]
    # As bytes: JAX would make float64 and int64 arrays of 32 bits.
    raw = np.frombuffer(np.ascontiguousarray(own).tobytes(), "uint8")
    parts = np.asarray(multihost_utils.process_allgather(raw))
    return np.stack([np.frombuffer(part.tobytes(), own.dtype).reshape(own.shape) for part in parts])
