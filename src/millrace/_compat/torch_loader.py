"""Loaders of torch whose position can be saved: those with a `state_dict`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from millrace.base.pytrees import ArrayTree

_TENSOR = "millrace tensor"


def has_state(owner: object) -> bool:
    """Whether an object has methods that get and set its state."""
    return hasattr(owner, "get_state") and hasattr(owner, "set_state")


def parts_of_loader(loader: Any) -> tuple[list[Any], list[Any]]:
    """Returns the generators and the samplers of a loader of torch; none for any other data."""
    if not hasattr(loader, "batch_sampler"):
        return [], []
    batches = loader.batch_sampler
    samplers = [loader.sampler, batches, getattr(batches, "sampler", None)]
    samplers = list({id(each): each for each in samplers if each is not None}.values())
    owners = (getattr(each, "generator", None) for each in (loader, *samplers))
    generators = {id(each): each for each in owners if has_state(each)}
    return list(generators.values()), samplers


class LoaderBatches(Iterator[ArrayTree]):
    """The batches of a loader of torch with a state, which is that of its newest iterator.

    A pass makes one when its first batch is drawn: until then the state is that of another pass.
    """

    def __init__(self, batches: Iterator[ArrayTree], loader: Any):
        self._batches, self._loader, self._is_begun = batches, loader, False
        self._generators = parts_of_loader(loader)[0]
        self._saved: list[Any] | None = None  # states of generators, which a new iterator changes

    def __next__(self) -> ArrayTree:
        batch = next(self._batches)
        self._is_begun = True
        saved, self._saved = self._saved, None
        for generator, state in zip(self._generators, saved or [], strict=False):
            generator.set_state(state)
        return batch

    def read_state(self) -> Any:
        if not self._is_begun:
            return None
        generators = [each.get_state() for each in self._generators]
        return _without_tensors({"loader": self._loader.state_dict(), "generators": generators})

    def write_state(self, state: Any) -> None:
        state = _with_tensors(state)
        self._loader.load_state_dict(state["loader"])
        self._saved = state["generators"]


def _without_tensors(state: Any) -> Any:
    """Returns a state of torch with arrays for tensors."""
    if isinstance(state, dict):
        return {key: _without_tensors(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_without_tensors(value) for value in state)
    return {_TENSOR: state.numpy()} if type(state).__name__ == "Tensor" else state


def _with_tensors(state: Any) -> Any:
    """Returns a state that `_without_tensors` has returned as it was."""
    if isinstance(state, dict):
        if _TENSOR in state:
            import torch  # type: ignore[import-not-found]

            return torch.from_numpy(np.array(state[_TENSOR]))
        return {key: _with_tensors(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_with_tensors(value) for value in state)
    return state
