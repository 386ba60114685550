"""Errors, devices, name scopes and trees of TensorFlow; devices have no effect here."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax

from millrace.errors import DataError, OptionError, PlanError, UnsupportedError

errors = SimpleNamespace(
    FailedPreconditionError=PlanError,
    InvalidArgumentError=OptionError,
    OutOfRangeError=DataError,
    UnimplementedError=UnsupportedError,
)


def get_logger() -> logging.Logger:
    """Returns the logger that says what happens, which is millrace's."""
    return logging.getLogger("millrace")


@contextlib.contextmanager
def device(name: Any) -> Iterator[None]:
    """Has no effect: strategies and scopes of `ipu` choose the devices."""
    del name
    yield


@contextlib.contextmanager
def name_scope(name: str, *_: Any, **__: Any) -> Iterator[str]:
    """Puts a name on the operations within."""
    with jax.named_scope(name):
        yield name


def _map_structure(function: Callable[..., Any], *trees: Any, **_: Any) -> Any:
    return jax.tree.map(function, *trees)


nest = SimpleNamespace(
    flatten=jax.tree.leaves,
    map_structure=_map_structure,
    assert_same_structure=lambda first, second, **_: jax.tree.map(lambda *_: None, first, second),
    pack_sequence_as=lambda tree, flat, **_: jax.tree.unflatten(jax.tree.structure(tree), flat),
)
