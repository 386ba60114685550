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


def set_random_state(
    state: dict[str, Any], unless_drawn_since: dict[str, Any] | None = None
) -> None:
    """Sets the generators to states that `random_state` has returned.

    Args:
        state: of the generators.
        unless_drawn_since: an earlier state: generators of the host that have drawn since, as data
            has that draws from them, are where they have to be.
    """
    kept = () if unless_drawn_since is None else _drawn_since(unless_drawn_since)
    if "python" not in kept:
        random.setstate(state["python"])
    if "numpy" not in kept:
        np.random.set_state(state["numpy"])
    if "keras" in state and (seed := global_seed_state()) is not None:
        seed.assign(state["keras"])
    torch = sys.modules.get("torch")
    if "torch" in state and torch is not None and "torch" not in kept:
        torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))


def _drawn_since(before: dict[str, Any]) -> list[str]:
    """Returns the names of generators of the host that have drawn since an earlier state."""
    now = random_state()
    drawn = [] if now["python"] == before["python"] else ["python"]
    if now["numpy"][2:] != before["numpy"][2:] or (now["numpy"][1] != before["numpy"][1]).any():
        drawn.append("numpy")
    if "torch" in now and "torch" in before and (now["torch"] != before["torch"]).any():
        drawn.append("torch")
    return drawn
