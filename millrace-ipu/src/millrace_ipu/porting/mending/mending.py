"""Lets programs call Keras as they called Keras 2, while they run."""

from collections.abc import Iterator
from contextlib import contextmanager

from millrace.extend import take_out_all
from millrace_ipu._compat.patch_table import KERAS2_CALLS
from millrace_ipu.porting.mending.callbacks import mend_callbacks
from millrace_ipu.porting.mending.calls import let_classes_take_old_arguments
from millrace_ipu.porting.mending.files import mend_files
from millrace_ipu.porting.mending.layers import mend_layers
from millrace_ipu.porting.mending.models import mend_models
from millrace_ipu.porting.mending.optimizers import mend_optimizers
from millrace_ipu.porting.mending.values import mend_values


@contextmanager
def mending() -> Iterator[None]:
    """Mends the habits of Keras 2 for the time of a `with` block."""
    try:
        mend_optimizers()
        mend_layers()
        mend_models()
        mend_files()
        mend_callbacks()
        mend_values()
        let_classes_take_old_arguments()  # those that the others have left
        yield
    finally:
        take_out_all(KERAS2_CALLS)
