"""The generators of random numbers that all code of a process shares."""

import random
import sys
from typing import Any

import numpy as np

from millrace._compat.keras_random import global_seed_state


def random_state() -> dict[str, Any]:
    """Returns the states of Python's, NumPy's, Keras's and torch's generators."""
    state = {"python": random.getstate(), "numpy": np.random.get_state()}
    if (seed := global_seed_state()) is not None:
        state["keras"] = np.array(seed.value)
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = torch.get_rng_state().numpy()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Sets the generators to states that `random_state` has returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if "keras" in state and (seed := global_seed_state()) is not None:
        seed.assign(state["keras"])
    torch = sys.modules.get("torch")
    if "torch" in state and torch is not None:
        torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))


def same_host_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether Python's and NumPy's generators have drawn nothing between two states."""
    return (
        one["python"] == other["python"]
        and one["numpy"][2:] == other["numpy"][2:]
        and bool((one["numpy"][1] == other["numpy"][1]).all())
    )
