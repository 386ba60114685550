"""The choice of JAX as Keras's backend, which Keras reads once, when it is imported."""

import contextlib
import os
import sys

from millrace.collector import fewer_collections
from millrace.errors import BackendError

_REMEDY = (
    "Put `import millrace` above `import keras`, or make these the first lines of the program:\n"
    "    import os\n"
    "    os.environ['KERAS_BACKEND'] = 'jax'"
)

if "keras" in sys.modules:
    import keras

    if keras.backend.backend() != "jax":
        raise BackendError(
            f"Keras is already imported with the {keras.backend.backend()!r} backend, and millrace "
            f"runs on JAX. {_REMEDY}"
        )
elif os.environ.setdefault("KERAS_BACKEND", "jax") != "jax":
    raise BackendError(
        f"KERAS_BACKEND={os.environ['KERAS_BACKEND']!r} is set in the environment, and millrace "
        f"runs on JAX. Set KERAS_BACKEND=jax, or unset it."
    )

# Closed at the end of `import millrace`, which may be what imports JAX and Keras.
while_imported = contextlib.ExitStack()
while_imported.enter_context(fewer_collections())
