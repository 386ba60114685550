"""Holding recomputation back until backward needs it.

A compiler that sees the same equations twice merges them and keeps their results after all, or runs
all segments again before any backward. So each segment is held back until its cotangents are there:

- by a barrier (`jax.lax.optimization_barrier`, as in `jax.checkpoint`), which XLA's compilers for
  GPU and TPU honour, and the one for CPU without one of its passes (`compiler_options`);
- on CPU by a conditional that is always taken, which no pass can undo. Loops move past barriers
  there: an LSTM of 2048 steps saves nothing with them. But convolutions in a branch take thirty
  times as long, so they get the barrier (`benchmarks/recompute_forms.py` prints the measurements).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from millrace._compat.jaxpr import Graph, primitive_counts
from millrace.pytrees import ArrayTree
from millrace.recomputation.joint_graph import select

T = TypeVar("T", bound=ArrayTree)

# For CPU: keeps barriers in place until equal computations have been merged.
CPU_OPTIONS = {"xla_disable_hlo_passes": "cse_barrier_expander"}


def compiler_options(platform: str) -> dict[str, str]:
    """Returns the XLA options for programs that run segments again."""
    return dict(CPU_OPTIONS) if platform == "cpu" else {}


@dataclass(frozen=True, slots=True)
class Form:
    """The first and the second run of a segment: calls of a function with its arguments."""

    forward: Callable[..., list[jax.Array]]  # run, learned, others -> run(learned, others)
    backward: Callable[..., list[jax.Array]]  # pull, learned, others, cotangents -> gradients


def hold_back(graph: Graph, platform: str) -> Form:
    """Returns the form that keeps a graph from being run again too early."""
    counts = primitive_counts(graph.equations)
    if platform != "cpu" or "conv_general_dilated" in counts:
        return Form(_at_once, _behind_barrier)
    if "scan" in counts or "while" in counts:
        return Form(_in_branch, _in_branch)
    return Form(_at_once, _in_branch)


def _at_once(run: Callable[..., T], *values: ArrayTree) -> T:
    return run(*values)


# For programs without a forward, with which a compiler could merge the segment.
AT_ONCE = Form(_at_once, _at_once)


def _in_branch(run: Callable[..., T], *values: ArrayTree) -> T:
    """Runs a function in a branch that is always taken, without the compiler's knowing it.

    The branch waits for all its values. The zeros in which a loop inside it collects its results
    are not allocated before; outside of a branch they would be, for all loops of a program at once.
    """
    results = jax.eval_shape(run, *values)
    floats = [v for v in jax.tree.leaves(values[-1]) if jnp.issubdtype(v.dtype, jnp.floating)]
    floats = floats or [v for v in jax.tree.leaves(values) if jnp.issubdtype(v.dtype, jnp.floating)]
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in jax.tree.leaves(results)):
        return run(*values)
    total = sum(leaf.ravel()[0].astype(jnp.float32) for leaf in floats if leaf.size)
    always = (total <= jnp.inf) | (total != total)

    def zeros(*values: ArrayTree) -> T:
        del values
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), results)

    return lax.cond(always, run, zeros, *values)


def _behind_barrier(run: Callable[..., T], *values: ArrayTree) -> T:
    """Runs a function on its values once all of them are computed."""
    leaves, tree = jax.tree.flatten(values)
    plain = [not jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in leaves]
    held = iter(lax.optimization_barrier(select(leaves, plain)))
    leaves = [
        next(held) if is_plain else leaf for leaf, is_plain in zip(leaves, plain, strict=True)
    ]
    return run(*jax.tree.unflatten(tree, leaves))
