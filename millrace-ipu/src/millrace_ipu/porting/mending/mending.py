"""Lets programs call Keras as they called Keras 2, while they run."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.extend import take_out_all
from millrace_ipu._compat.patch_table import KERAS2_CALLS
from millrace_ipu.porting.mending.calls import put_in_all

for _name in ("callbacks", "layers", "models", "optimizers", "values"):
    importlib.import_module(f"{__package__}.{_name}")  # registers its wrappers


@contextmanager
def mending() -> Iterator[None]:
    """Mends the habits of Keras 2 for the time of a `with` block."""
    try:
        put_in_all()
        yield
    finally:
        take_out_all(KERAS2_CALLS)
