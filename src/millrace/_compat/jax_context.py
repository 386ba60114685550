"""Private JAX: the options that a trace depends on. Checked on jax 0.10.0, 0.10.2 and 0.12.0.1.

`jax.jit` traces anew when one of them changes. Executables that were compiled ahead of time do
not, so whoever keeps them must look. No public call gives them together.
"""

from typing import Any

import jax
from jax._src import config

from millrace._compat.jax import jax_options

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
