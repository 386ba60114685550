"""Private Keras: the generator of random numbers that all calls without a seed share.

Checked on keras 3.13.0, 3.15.1 and 3.16.0.dev.
"""

from typing import Any

import keras
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute

from millrace._compat.versions import private


def global_seed_state() -> Any:
    """Returns the variable of Keras's own generator; None if nothing has drawn from it."""
    generator = get_global_attribute(private("GLOBAL_SEED_GENERATOR"))
    return None if generator is None else generator.state


def make_global_seed_state() -> Any:
    """Returns the variable of Keras's own generator, as the first draw from it makes it."""
    if (state := global_seed_state()) is not None:
        return state
    generator = keras.random.SeedGenerator()
    set_global_attribute(private("GLOBAL_SEED_GENERATOR"), generator)
    return generator.state
