"""The choice of JAX as Keras's backend, which Keras reads once, when it is imported."""

import contextlib
import importlib.util
import os
import sys

from millrace.base.collector import fewer_collections
from millrace.errors import BackendError, VersionError

_REMEDY = (
    "Put `import millrace` above `import keras`, or make these the first lines of the program:\n"
    "    import os\n"
    "    os.environ['KERAS_BACKEND'] = 'jax'"
)

for _name in ("numpy", "jax", "keras", "rich"):
    _found = importlib.util.find_spec(_name)
    if _found is not None and _found.submodule_search_locations is None:
        raise VersionError(
            f"{_found.origin} is imported in place of the package {_name}, which millrace needs. "
            "Give this file another name."
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
