"""Two forms of recomputed segments on CPU: in a conditional, or behind a barrier.

No claim: it gives the reason why `recomputation/hold_back.py` uses the conditional for everything
but convolutions. The peer is JAX's own `jax.checkpoint`.

    layers     convolutions                 LSTM
    keep all   fast, much memory            fast, much memory
    condition  less memory, very slow       less memory
    barrier    less memory                  as much memory as keep all
"""

from collections.abc import Callable
from typing import Any

import millrace  # noqa: F401  # isort: skip  (picks the JAX backend, before Keras does)
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import harness
from millrace.recomputation.hold_back import (
    Form,
    _at_once,
    _behind_barrier,
    _in_branch,
    compiler_options,
)
from millrace.recomputation.recompute import again

Segment = Callable[[Any, Any], Any]


def main() -> None:
    """Prints time and temporary memory of each form, for both kinds of layers."""
    options = harness.arguments(__doc__, rounds=5)
    harness.header("Forms of recomputation on CPU")
    lines = []
    for name, parts in {"convolutions": convolutions, "lstm": lstm}.items():
        if options.only in name:
            lines += measure(name, *parts(small=options.small), rounds=options.rounds)
    print()
    for line in lines:
        print(line)


def measure(name: str, segment: Segment, weights: Any, x: Any, rounds: int) -> list[str]:
    """Compiles the gradient of a chain of segments in each form, and times them in turn."""
    forms: dict[str, Callable[[Segment], Segment]] = {
        "keep all": lambda segment: segment,
        "jax.checkpoint": jax.checkpoint,
        "conditional": lambda segment: wrapped(segment, Form(_in_branch, _in_branch)),
        "barrier": lambda segment: wrapped(segment, Form(_at_once, _behind_barrier)),
    }
    cases, sizes = {}, {}
    for form, wrap in forms.items():

        def loss(weights: Any, x: Any, wrap: Any = wrap) -> Any:
            for k, own in enumerate(weights):
                x = (segment if k == len(weights) - 1 else wrap(segment))(own, x)
            return sum(jnp.mean(leaf**2) for leaf in jax.tree.leaves(x))

        given = compiler_options("cpu") if form == "barrier" else None
        compiled = jax.jit(jax.grad(loss)).lower(weights, x).compile(given)
        sizes[form] = compiled.memory_analysis().temp_size_in_bytes
        cases[form] = lambda compiled=compiled: jax.block_until_ready(compiled(weights, x))
    times = harness.paired(cases, rounds)
    print(name)
    for form, values in times.items():
        harness.row(f"{form} ({sizes[form] / 2**20:.0f} MiB)", values, 1)
    lines = []
    for form in ("conditional", "barrier"):
        share = sizes[form] / sizes["jax.checkpoint"]
        lines.append(f"{name}: memory of {form} / jax.checkpoint = {share:.2f}x")
        title = f"{name}: time of {form} / jax.checkpoint"
        lines.append(harness.ratio(title, times[form], times["jax.checkpoint"])[1])
    return lines


def wrapped(segment: Segment, form: Any) -> Segment:
    """Returns a segment that backward recomputes, held back by `form`."""

    def run(weights: Any, x: Any) -> Any:
        leaves, tree = jax.tree.flatten((weights, x))
        inside: Any = None

        def flat(*values: Any) -> list[Any]:
            nonlocal inside
            made, inside = jax.tree.flatten(segment(*jax.tree.unflatten(tree, values)))
            return made

        count = len(jax.tree.leaves(jax.eval_shape(segment, weights, x)))
        made = again(flat, [True] * len(leaves), [True] * count, form)(*leaves)
        return jax.tree.unflatten(inside, made)

    return run


def convolutions(small: bool) -> tuple[Segment, Any, Any]:
    """Six segments of four convolutions each, on 32 channels."""
    random, side = np.random.default_rng(0), 8 if small else 32

    def segment(kernels: Any, x: Any) -> Any:
        for kernel in kernels:
            product = lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(product) + x
        return x

    def kernel() -> Any:
        return jnp.asarray(random.normal(size=(3, 3, 32, 32)) * 0.05, jnp.float32)

    weights = [[kernel() for _ in range(4)] for _ in range(6)]
    return segment, weights, jnp.asarray(random.normal(size=(16, side, side, 32)), jnp.float32)


def lstm(small: bool) -> tuple[Segment, Any, Any]:
    """Eight segments of an LSTM of 256 units, which share their weights."""
    random, turns = np.random.default_rng(0), 8 if small else 64
    kernel = jnp.asarray(random.normal(size=(256, 1024)) * 0.05, jnp.float32)

    def segment(kernel: Any, carry: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(h @ kernel, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        return lax.scan(step, carry, None, length=turns)[0]

    state = jnp.asarray(random.normal(size=(64, 256)), jnp.float32)
    return segment, [kernel] * 8, (state, state)


if __name__ == "__main__":
    main()
