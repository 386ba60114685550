"""Private JAX: whether something is traced, the options of a trace, and what `jax.jit` was told.

`jax.jit` traces anew when one of these options changes. Executables that were compiled ahead of
time do not, so whoever keeps them must look, and no public call gives the options together. Checked
on jax 0.10.0, 0.10.2 and 0.12.0.1.
"""

import enum
import re
from typing import Any

import jax
from jax._src import config
from jax._src.config import config_ext, trace_context
from jax._src.core import AxisEnv, Tracer, get_opaque_trace_state, trace_state_clean


def trace_state() -> Any:
    """Returns what is equal for two moments within one trace, and differs between traces.

    A value of an inner trace cannot be used in an outer one, and no public call says which of
    them is current.
    """
    return get_opaque_trace_state()


def is_traced(value: Any) -> bool:
    """Whether a value is one of a trace, and has no numbers yet.

    `jax.core.Tracer` is public, and type checkers do not see the module.
    """
    return isinstance(value, Tracer)


def is_tracing() -> bool:
    """Whether operations of this thread become part of a program, or are differentiated.

    No public call tells: a value made within `jax.grad` looks like any other.
    """
    return not trace_state_clean()


def trace_options() -> tuple[Any, ...]:
    """Returns all that tracing may depend on, to be compared with an earlier moment. It is fast."""
    flags: Any = jax.config  # which declares its options when it runs
    return (flags.jax_debug_nans, flags.jax_debug_infs, *config.trace_context())


def tracing_options() -> dict[str, str]:
    """Returns the options that decide what a trace gives, by name, as text."""
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

    The names are those by which JAX tells its own traces apart, contexts included; 0.10.0 has no
    list of them, so there it is a list of ours.
    """
    names = getattr(config_ext, "trace_context_names", None)
    if names is None:
        found = {name: getattr(jax.config, name, None) for name in _TRACE_OPTIONS}
    else:
        found = dict(zip(names(), trace_context(), strict=True))
    found.update({name: getattr(jax.config, name, None) for name in _COMPILE_OPTIONS})
    return {name: _option_text(value) for name, value in found.items()}


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


def _option_text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, AxisEnv):  # the axes that a trace is inside of
        value = dict(value.axis_sizes.items())
    return re.sub(r"( object)? at 0x[0-9a-f]+", "", str(value))


# What `jax.jit` notes on a function that it returns, with a path of this machine; whatever copies
# the attributes of that function has them, too.
JIT_NOTES = ("_fun", "_jit_info")


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


_SHARDINGS = ("in_shardings", "out_shardings")
