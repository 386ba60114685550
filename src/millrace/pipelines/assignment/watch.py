"""The calls of a subclassed model: nothing but a run shows them, and shapes are enough for one."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras

from millrace._compat.keras_calls import around_calls
from millrace._compat.keras_graph import (
    are_layers_built,
    graph_of,
    has_own_call,
    input_structure,
    run_symbolically,
    takes_training,
)
from millrace.errors import ModelError
from millrace.pipelines.assignment.marks import current_stage

Arguments = tuple[Sequence[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """A call that was seen."""

    operation: Any
    node_index: int
    stage: int | None
    inside: list["Ran"] | None  # the calls that it made, where these were seen


def run_on_shapes(model: Any, arguments: Arguments | None) -> list[Ran]:
    """Runs a subclassed model and returns the calls that it makes.

    Args:
        model: a model with a `call` of its own.
        arguments: `keras.KerasTensor`s, positional and by name. None takes the shapes with which
            the model was built.

    Raises:
        ModelError: if it has no `call`, is not built, or does not run.
    """
    if type(model).call is keras.Model.call:
        raise ModelError(
            f"The model '{model.name}' ({type(model).__name__}) does not define call(), so it "
            "calls no layers. Define call(self, inputs), or build it as keras.Sequential([...])."
        )
    if arguments is None and not model.built:
        raise ModelError(
            f"The model '{model.name}' ({type(model).__name__}) is not built yet, and its calls "
            "are found by running it. Call model.build(input_shape), or the model once on a "
            "batch, first."
        )
    errors = []
    for args, kwargs in [arguments] if arguments else _guess_arguments(model):
        if takes_training(model):
            kwargs = {**kwargs, "training": True}  # as `fit` runs it; graphs overwrite it, too
        try:
            if not are_layers_built(model):
                run_symbolically(model, *args, **kwargs)  # which builds them, by calls of its own
            return _watch(model, args, kwargs)
        except Exception as error:
            errors.append(error)
    raise ModelError(
        f"The model '{model.name}' ({type(model).__name__}) does not run on shapes alone: "
        f"{errors[0]} Its calls cannot be found. Call the model on a batch of its data to see "
        "where it fails."
    ) from errors[0]


def built_arguments(model: Any) -> Arguments:
    """Returns what a built model is called with, as `keras.KerasTensor`s."""
    graph = graph_of(model)
    if graph is not None:
        return (input_structure(graph),), {}
    if has_own_call(model):
        run_on_shapes(model, None)  # raises where it cannot be called
    for args, kwargs in _guess_arguments(model):
        if takes_training(model):
            kwargs = {**kwargs, "training": True}
        with contextlib.suppress(Exception):
            run_symbolically(model, *args, **kwargs)
            return args, kwargs
    raise ModelError(
        f"The shapes of the data of {model.name!r} are not known. Begin it with keras.Input(shape)."
    )


def _guess_arguments(model: Any) -> list[Arguments]:
    """Returns arguments of the shapes that a model was built with; types were not recorded."""
    config = model.get_build_config() or {}
    shapes = config.get("shapes_dict") or {}
    guesses: list[Arguments] = []
    for dtype in (model.compute_dtype, "int32"):
        if "input_shape" in config:
            guesses.append(((_tensors(config["input_shape"], dtype),), {}))
        else:
            named = {k.removesuffix("_shape"): _tensors(v, dtype) for k, v in shapes.items()}
            guesses.append(((), named))
    return guesses


def _watch(model: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Ran]:
    open_lists: list[list[Ran]] = [[]]

    @contextmanager
    def around(_: Any, operation: Any, node_index: int) -> Iterator[None]:
        inside: list[Ran] = []
        open_lists[-1].append(Ran(operation, node_index, current_stage(), inside))
        open_lists.append(inside)
        try:
            yield
        finally:
            open_lists.pop()

    with around_calls(model, around):
        run_symbolically(model, *args, **kwargs)
    return open_lists[0]


def _tensors(shapes: Any, dtype: str) -> Any:
    """Returns a `keras.KerasTensor` for each shape of a structure of shapes.

    Keras gives the structure back as tracked dicts and lists, which JAX takes for single values.
    """
    if isinstance(shapes, dict):
        return {key: _tensors(shape, dtype) for key, shape in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return keras.KerasTensor(tuple(shapes), dtype)
    tensors = [_tensors(shape, dtype) for shape in shapes]
    return tuple(tensors) if isinstance(shapes, tuple) else tensors
