"""Private JAX: the class of arrays, what a trace depends on, and what `jax.jit` was told.

`let_arrays_be_numpy`   programs written for TensorFlow ask a result for `.numpy()`; `jax.Array` is
                  abstract, and nothing public adds a method to what is behind it.

`jax.jit` traces anew when one of them changes. Executables that were compiled ahead of time do
not, so whoever keeps them must look. No public call gives them together.

A function that `jax.jit` has made knows which of its arguments are static and which are given
away, in an attribute that no public call reads.
"""

from typing import Any

import jax
import numpy as np
from jax._src import config

from millrace._compat.jax import jax_options
from millrace._compat.patch_table import ARRAY_NUMPY
from millrace._compat.patches import replace

__all__ = ["let_arrays_be_numpy"]


def let_arrays_be_numpy() -> None:
    """Gives arrays a method `numpy`, unless they have one."""

    def wrapper(original: Any) -> Any:
        def numpy(array: jax.Array) -> np.ndarray:
            """Returns the array in host memory."""
            return np.asarray(array)

        del original
        return numpy

    if not hasattr(ARRAY_NUMPY.owner(), ARRAY_NUMPY.attribute):  # type: ignore[misc]
        replace(ARRAY_NUMPY, wrapper)


# These decide where something runs or how traces nest, not what a program is.
_ELSEWHERE = {
    "axis_env_state",
    "jax_default_device",
    "jax_disable_jit",
    "jax_no_execution",
    "user_context",
}


def trace_options() -> tuple[Any, ...]:
    """Returns all that tracing may depend on, to be compared with an earlier moment. It is fast."""
    flags: Any = jax.config  # which declares its options when it runs
    return (flags.jax_debug_nans, flags.jax_debug_infs, *config.trace_context())


def tracing_options() -> dict[str, str]:
    """Returns the options that decide what a trace gives, by name, as text."""
    return {name: text for name, text in jax_options().items() if name not in _ELSEWHERE}


_SHARDINGS = ("in_shardings", "out_shardings")


def static_arguments(function: Any) -> tuple[int | str, ...]:
    """Returns numbers and names of static arguments; none of what is no function of `jax.jit`."""
    info = getattr(function, "_jit_info", None)
    return (
        *(getattr(info, "static_argnums", None) or ()),
        *(getattr(info, "static_argnames", None) or ()),
    )


def compiler_options(function: Any) -> dict[str, Any]:
    """Returns the options of XLA that `jax.jit` was given."""
    info = getattr(function, "_jit_info", None)
    return dict(getattr(info, "compiler_options_kvs", None) or ())


def jit_options(function: Any) -> dict[str, str]:
    """Returns what else `jax.jit` was given that a program depends on, by name."""
    info = getattr(function, "_jit_info", None)
    donated = getattr(info, "donate_argnums", None)
    options = {"donate_argnums": str(donated)} if donated else {}
    for name in _SHARDINGS:
        leaves = getattr(info, f"{name}_leaves", ())
        if any(type(leaf).__name__ != "UnspecifiedValue" for leaf in leaves):
            options[name] = ", ".join(map(str, leaves))
    return options
