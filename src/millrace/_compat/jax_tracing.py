"""Private JAX: whether a value is traced, the options of a trace, and those of `jax.jit`.

`jax.jit` traces anew when one of these options changes. Executables that were compiled ahead of
time are not compiled anew, so their owner must compare the options, which no public call returns
together. Checked on jax 0.10.0, 0.10.2 and 0.12.0.1.
"""

import enum
import re
from typing import Any

import jax
from jax._src import config
from jax._src.config import config_ext, trace_context
from jax._src.core import AxisEnv, Tracer, get_opaque_trace_state, trace_state_clean


def trace_state() -> object:
    """Returns an object that is equal at all times within one trace, and differs between traces.

    A value of an inner trace cannot be used in an outer one, and no public call says which of
    them is current.
    """
    return get_opaque_trace_state()


def is_traced(value: object) -> bool:
    """Whether a value is part of a trace, and has no numbers yet.

    `jax.core.Tracer` is public, and type checkers do not see the module.
    """
    return isinstance(value, Tracer)


def is_tracing() -> bool:
    """Whether operations of this thread become part of a program, or are differentiated.

    No public call tells: a value made within `jax.grad` looks like any other.
    """
    return not trace_state_clean()


def trace_options() -> tuple[Any, ...]:
    """Returns all options that tracing may depend on, for comparison with earlier ones; fast."""
    flags: Any = jax.config  # which declares its options when it runs
    return (flags.jax_debug_nans, flags.jax_debug_infs, *config.trace_context())


def tracing_options() -> dict[str, str]:
    """Returns the options that decide the result of a trace, by name, as text."""
    return {name: text for name, text in jax_options().items() if name not in _ELSEWHERE}


# These decide where something runs or how traces nest, not what a program is.
_ELSEWHERE = {
    "axis_env_state",
    "jax_default_device",
    "jax_disable_jit",
    "jax_no_execution",
    "user_context",
}


def jax_options() -> dict[str, str]:
    """Returns the options of JAX that tracing and compiling depend on, as text.

    The names are those by which JAX tells its own traces apart, contexts included. JAX 0.10.0 has
    no list of them; there a list in this module takes its place.
    """
    names = getattr(config_ext, "trace_context_names", None)
    if names is None:
        options = {name: getattr(jax.config, name, None) for name in _TRACE_OPTIONS}
    else:
        options = dict(zip(names(), trace_context(), strict=True))
    options.update({name: getattr(jax.config, name, None) for name in _COMPILE_OPTIONS})
    return {name: _option_text(value) for name, value in options.items()}


_TRACE_OPTIONS = (
    "jax_allow_f16_reductions",
    "jax_custom_vjp3",
    "jax_default_device",
    "jax_default_matmul_precision",
    "jax_disable_jit",
    "jax_embedded_constants_max_bytes",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_random_seed_offset",
    "jax_softmax_custom_jvp",
    "jax_threefry_gpu_kernel_lowering",
    "jax_threefry_partitionable",
    "jax_use_direct_linearize",
    "jax_use_shardy_partitioner",
    "jax_use_simplified_jaxpr_constants",
)


_COMPILE_OPTIONS = (
    "jax_debug_infs",
    "jax_debug_nans",
    "jax_default_prng_impl",
    "jax_disable_most_optimizations",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_optimization_level",
)


def _option_text(value: object) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, AxisEnv):  # the axes that a trace is inside of
        value = dict(value.axis_sizes.items())
    return re.sub(r"( object)? at 0x[0-9a-f]+", "", str(value))


# Attributes that `jax.jit` puts on the functions that it returns, with a path of this machine. A
# wrapper that copies the attributes of such a function has them, too.
JIT_NOTES = ("_fun", "_jit_info")


def static_arguments(function: object) -> tuple[int | str, ...]:
    """Returns numbers and names of the static arguments of a function of `jax.jit`, else none."""
    info = getattr(function, "_jit_info", None)
    return (
        *(getattr(info, "static_argnums", None) or ()),
        *(getattr(info, "static_argnames", None) or ()),
    )


def compiler_options(function: object) -> dict[str, Any]:
    """Returns the `compiler_options` of a function of `jax.jit`."""
    info = getattr(function, "_jit_info", None)
    return dict(getattr(info, "compiler_options_kvs", None) or ())


def jit_options(function: object) -> dict[str, str]:
    """Returns the other options of `jax.jit` on which a program depends, by name."""
    info = getattr(function, "_jit_info", None)
    donated = getattr(info, "donate_argnums", None)
    options = {"donate_argnums": str(donated)} if donated else {}
    for name in _SHARDINGS:
        leaves = getattr(info, f"{name}_leaves", ())
        if any(type(leaf).__name__ != "UnspecifiedValue" for leaf in leaves):
            options[name] = ", ".join(map(str, leaves))
    return options


_SHARDINGS = ("in_shardings", "out_shardings")
