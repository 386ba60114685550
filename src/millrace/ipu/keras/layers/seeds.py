"""Seeds of IPU programs: a pair of whole numbers.

[a, b]   -> one whole number for a Keras layer
"""

from typing import Any

import numpy as np


def one_number(seed: Any) -> int | None:
    """Returns a seed for Keras: a number as it is, a pair as one number, None as None."""
    if seed is None:
        return None
    flat = np.asarray(seed).ravel()
    if flat.size == 1:
        return int(flat[0])
    return int(
        np.random.SeedSequence([int(part) & 0xFFFFFFFF for part in flat]).generate_state(1)[0] >> 1
    )
