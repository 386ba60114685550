"""Private JAX: what a function was given to `jax.jit` with. Checked on 0.10.0, 0.10.2 and 0.12.0.1.

A function that `jax.jit` has made knows which of its arguments are static and which are given
away, in an attribute that no public call reads.
"""

from typing import Any

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
