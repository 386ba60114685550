"""Scopes of `ipu.scopes` in which nothing is done in another way.

outside_compilation_scope()       part of the program all the same; -> jax.pure_callback
stochastic_rounding               of no effect: devices round to nearest
partials_type                     of no effect; -> jax_default_matmul_precision
frontend_attribute                of no effect
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from keras.backend import standardize_dtype

from millrace.errors import OptionError, PlanError
from millrace.ipu.inert import inert
from millrace.ipu.later import is_within_a_program

_is_outside: ContextVar[bool] = ContextVar("outside_compilation", default=False)


@contextmanager
def outside_compilation_scope(name: str = "outside") -> Iterator[None]:
    """Surrounds what would run on the host; it becomes part of the program, with equal results.

    Raises:
        PlanError: outside of a program, and within another such scope.
    """
    if not is_within_a_program() or _is_outside.get():
        raise PlanError(
            "outside_compilation_scope() is for operations of a compiled function, and not within "
            "another one. Call it in a function that ipu_compiler.compile() or strategy.run() "
            "compiles."
        )
    inert(
        "outside_compilation_scope",
        "Operations in it are compiled with the others. Python code that needs values goes into "
        "jax.pure_callback().",
    )
    token = _is_outside.set(True)
    try:
        with jax.named_scope(name):
            yield
    finally:
        _is_outside.reset(token)


@contextmanager
def stochastic_rounding(override: Any = True) -> Iterator[None]:
    """Does nothing: devices round to nearest."""
    inert("stochastic_rounding", "Devices round to nearest: keep weights in float32.")
    yield


@contextmanager
def partials_type(override: Any) -> Iterator[None]:
    """Does nothing but check that it is float16 or float32."""
    if override is None or standardize_dtype(override) not in ("float16", "float32"):
        raise OptionError(
            f"partials_type() takes float16 or float32. Received: {override!r}. Leave it out for "
            "what the device does best."
        )
    inert("partials_type", "Set jax_default_matmul_precision for products of higher precision.")
    yield


@contextmanager
def frontend_attribute(
    attribute_name: str, attribute_value: str, restore_to: Any = None
) -> Iterator[None]:
    """Does nothing."""
    inert("frontend_attribute", f"Nothing reads {attribute_name!r}: leave it out.")
    yield
