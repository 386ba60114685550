"""Keeping what is run again from being run too early.

A compiler sees the same equations twice, merges them, and keeps their results after all, or runs
all segments again before any backward. Each is held back until its cotangents are there:

- by a barrier (`jax.lax.optimization_barrier`, as in `jax.checkpoint`), which XLA's compilers for
  GPU and TPU honour, and that for CPU once a pass of it is left out (`compiler_options`);
- on CPU by a conditional that is always taken, which no pass can undo. Loops move past barriers
  there: an LSTM of 2048 steps saves nothing with them. But convolutions in a branch take thirty
  times as long, so they have the barrier (`benchmarks/recompute_forms.py` prints all of it).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from millrace._compat.jaxpr import Graph, primitive_counts
from millrace.recomputation.joint_graph import chosen

# For CPU: lets barriers stand until equal computations have been merged.
CPU_OPTIONS = {"xla_disable_hlo_passes": "cse_barrier_expander"}


def compiler_options(platform: str) -> dict[str, str]:
    """Returns the options of XLA for programs that run segments again."""
    return dict(CPU_OPTIONS) if platform == "cpu" else {}


@dataclass(frozen=True, slots=True)
class Form:
    """How a segment is run, and run again."""

    forward: Callable[..., Any]  # run, learned, others -> what `run` returns of them
    backward: Callable[..., Any]  # pull, learned, others, cotangents -> what `pull` returns


def hold_back(graph: Graph, platform: str) -> Form:
    """Returns how a graph is kept from being run again too early."""
    counts = primitive_counts(graph.equations)
    if platform != "cpu" or "conv_general_dilated" in counts:
        return Form(_at_once, _behind_barrier)
    if "scan" in counts or "while" in counts:
        return Form(_in_branch, _in_branch)
    return Form(_at_once, _in_branch)


def _at_once(run: Callable[..., Any], *values: Any) -> Any:
    return run(*values)


# In a program that has no forward, nothing can be merged with it.
AT_ONCE = Form(_at_once, _at_once)


def _in_branch(run: Callable[..., Any], *values: Any) -> Any:
    """Runs a function in a branch that is always taken, which the compiler does not know.

    It waits for all its values. What a loop within begins with, zeros for all that it will return,
    is not made before; outside of a branch it would be, for all loops of a program at once.
    """
    made = jax.eval_shape(run, *values)
    floats = [v for v in jax.tree.leaves(values[-1]) if jnp.issubdtype(v.dtype, jnp.floating)]
    floats = floats or [v for v in jax.tree.leaves(values) if jnp.issubdtype(v.dtype, jnp.floating)]
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in jax.tree.leaves(made)):
        return run(*values)
    total = sum(leaf.ravel()[0].astype(jnp.float32) for leaf in floats if leaf.size)
    always = (total <= jnp.inf) | (total != total)

    def zeros(*values: Any) -> Any:
        del values
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), made)

    return lax.cond(always, run, zeros, *values)


def _behind_barrier(run: Callable[..., Any], *values: Any) -> Any:
    """Runs a function on values that are there no earlier than the last of them."""
    leaves, tree = jax.tree.flatten(values)
    plain = [not jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in leaves]
    held = iter(lax.optimization_barrier(chosen(leaves, plain)))
    leaves = [
        next(held) if is_plain else leaf for leaf, is_plain in zip(leaves, plain, strict=True)
    ]
    return run(*jax.tree.unflatten(tree, leaves))
