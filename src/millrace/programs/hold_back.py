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
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from millrace._compat.jaxpr import Graph, primitive_counts
from millrace.programs.joint import chosen

# Runs `pull(learned, others, cotangents)` when the last of these are there.
Form = Callable[[Callable[..., Any], Any, Any, Any], Any]

# For CPU: lets barriers stand until equal computations have been merged.
CPU_OPTIONS = {"xla_disable_hlo_passes": "cse_barrier_expander"}


def compiler_options(platform: str) -> dict[str, str]:
    """Returns the options of XLA for programs that run segments again."""
    return dict(CPU_OPTIONS) if platform == "cpu" else {}


def hold_back(graph: Graph, platform: str) -> Form:
    """Returns how a graph is kept from being run again too early."""
    convolves = "conv_general_dilated" in primitive_counts(graph.equations)
    return in_conditional if platform == "cpu" and not convolves else behind_barrier


def in_conditional(pull: Callable[..., Any], learned: Any, others: Any, cotangents: Any) -> Any:
    """Runs `pull` in a branch that is always taken, which the compiler does not know."""
    total = sum(leaf.ravel()[0].astype(jnp.float32) for leaf in cotangents)
    always = (total <= jnp.inf) | (total != total)

    def zeros(learned: Any, others: Any, cotangents: Any) -> Any:
        del others, cotangents
        return jax.tree.map(jnp.zeros_like, learned)

    return lax.cond(always, pull, zeros, learned, others, cotangents)


def behind_barrier(pull: Callable[..., Any], learned: Any, others: Any, cotangents: Any) -> Any:
    """Runs `pull` on values that are there no earlier than the cotangents."""
    leaves, tree = jax.tree.flatten((learned, others, cotangents))
    plain = [not jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in leaves]
    held = iter(lax.optimization_barrier(chosen(leaves, plain)))
    leaves = [
        next(held) if is_plain else leaf for leaf, is_plain in zip(leaves, plain, strict=True)
    ]
    return pull(*jax.tree.unflatten(tree, leaves))


def at_once(pull: Callable[..., Any], learned: Any, others: Any, cotangents: Any) -> Any:
    """Runs `pull` as it is: in a program that has no forward, nothing can be merged with it."""
    return pull(learned, others, cotangents)
