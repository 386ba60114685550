"""The generators of random numbers that all code of a process shares."""

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from millrace._compat.keras_random import global_seed_state, make_global_seed_state
from millrace._compat.keras_steps import stored_value


class _SharedSeed(NamedTuple):
    """The state of a generator of compiled functions, which is made by the first draw."""

    find: Callable[[], keras.Variable | None]
    make: Callable[[], keras.Variable]


_shared = {"keras": _SharedSeed(global_seed_state, make_global_seed_state)}


def share_seed(
    name: str, find: Callable[[], keras.Variable | None], make: Callable[[], keras.Variable]
) -> None:
    """Saves and restores the state of another generator of compiled functions.

    Args:
        name: of the generator, in checkpoints.
        find: returns the variable of its state; None if nothing has drawn from it.
        make: returns the same, as the first draw makes it.
    """
    _shared[name] = _SharedSeed(find, make)


def random_state() -> dict[str, Any]:
    """Returns the states of Python's, NumPy's, Keras's and torch's generators."""
    state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
    for name, variable in shared_seeds().items():
        state[name] = np.array(stored_value(variable))  # also while a program is traced
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = torch.get_rng_state().numpy()
    return state


def set_random_state(
    state: Mapping[str, Any], unless_drawn_since: Mapping[str, Any] | None = None
) -> None:
    """Sets the generators to states that `random_state` has returned.

    Args:
        state: of the generators.
        unless_drawn_since: an earlier state: generators of the host that have drawn since, as data
            has that draws from them, are where they have to be.
    """
    kept = () if unless_drawn_since is None else drawn_since(unless_drawn_since)
    set_seeds(state)
    if "python" not in kept:
        random.setstate(state["python"])
    if "numpy" not in kept:
        np.random.set_state(state["numpy"])
    torch = sys.modules.get("torch")
    if "torch" in state and torch is not None and "torch" not in kept:
        torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))


def drawn_since(before: Mapping[str, Any]) -> list[str]:
    """Returns the names of generators of the host that have drawn since an earlier state."""
    now = random_state()
    drawn = [] if now["python"] == before["python"] else ["python"]
    if now["numpy"][2:] != before["numpy"][2:] or (now["numpy"][1] != before["numpy"][1]).any():
        drawn.append("numpy")
    if "torch" in now and "torch" in before and (now["torch"] != before["torch"]).any():
        drawn.append("torch")
    return drawn


def set_seeds(state: Mapping[str, Any]) -> None:
    """Sets the generators of compiled functions only; one that is made draws from Python's."""
    for name, seed in _shared.items():
        if name in state:
            seed.make().assign(state[name])


def shared_seeds() -> dict[str, keras.Variable]:
    """Returns the states of those generators of compiled functions that there are, by name."""
    found = {name: seed.find() for name, seed in _shared.items()}
    return {name: variable for name, variable in found.items() if variable is not None}
