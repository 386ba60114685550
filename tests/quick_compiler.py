"""A compiler that spends no time on speed, for tests that are not about bits or speed.

Two thirds of the time of the tests was XLA making small programs fast that run a dozen steps. The
programs, and how they are fused, stay what they are, and so, within 0.05%, does the memory that
they need; only what becomes of them as machine code is plainer. `pytest --compiler=shipped` runs
every test with the compiler that users have, and tests that are marked `shipped_compiler` or
`exhaustive` always have it.
"""

import os
import sys
from typing import Any

import jax
from jax.extend import backend

# As numbers of a train step of two dense layers: 0.51 s of processor time with none of these, 0.34
# with the first, 0.20 with the first two, 0.11 with all.
OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,  # gone in jax 0.12
    "xla_cpu_parallel_codegen_split_count": 1,
}


class QuickCompiler:
    """Puts options into everything that JAX compiles in this process, while it is on."""

    def __init__(self):
        self.is_on = False
        self._module = sys.modules[backend.get_compile_options.__module__]
        self._original = self._module.get_compile_options
        self._options = ()

    def install(self):
        """Stands between JAX and its options. Leaves out those that this XLA does not know."""
        self._options = tuple((name, value) for name, value in OPTIONS.items() if _is_known(name))
        self._module.get_compile_options = self._get_compile_options

    def environment(self) -> dict[str, str]:
        """Returns the environment of a program that a test starts: it compiles in the same way."""
        if not self.is_on:
            return dict(os.environ)
        options = (f"--{name}={str(value).lower()}" for name, value in self._options)
        return {**os.environ, "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *options])}

    def _get_compile_options(self, *args: Any, **kwargs: Any) -> Any:
        options = self._original(*args, **kwargs)
        if self.is_on:  # what a program asks for itself comes last, and wins
            options.env_option_overrides = [*self._options, *options.env_option_overrides]
        return options


def _is_known(name: str) -> bool:
    try:
        jax.jit(lambda x: x).lower(0).compile(compiler_options={name: OPTIONS[name]})
    except jax.errors.JaxRuntimeError:
        return False
    return True


compiler = QuickCompiler()  # of this process
