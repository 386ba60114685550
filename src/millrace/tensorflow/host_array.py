"""Arrays in host memory with what programs ask of an eager tensor: `.numpy()`."""

from typing import Any

import jax
import numpy as np


class HostArray(np.ndarray):
    """A NumPy array that also has `.numpy()`."""

    def numpy(self) -> np.ndarray:
        """Returns the array as NumPy's own class."""
        return self.view(np.ndarray)


def host_array(value: Any) -> Any:
    """Returns a tree of arrays in host memory as `HostArray`s, without copies."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).view(HostArray), value)
