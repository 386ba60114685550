"""The calls of a subclassed model, observed while it runs on shapes alone."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import keras

from millrace._compat.keras_calls import around_calls
from millrace._compat.keras_graph import (
    Functional,
    are_layers_built,
    input_structure,
    run_symbolically,
    takes_training,
)
from millrace.errors import ModelError
from millrace.run.pipelines.assignment.marks import current_stage

# Shapes and tensors as a model takes them: one, or a structure of several.
InputShapes: TypeAlias = "Sequence[int | None] | Sequence[InputShapes] | Mapping[str, InputShapes]"
InputTensors: TypeAlias = "keras.KerasTensor | Sequence[InputTensors] | Mapping[str, InputTensors]"
Arguments = tuple[Sequence[Any], Mapping[str, Any]]  # positional, by name


@dataclass(frozen=True, slots=True, eq=False)
class ObservedCall:
    """A call observed while its model ran."""

    operation: keras.Operation
    node_index: int
    stage: int | None
    inner: list["ObservedCall"] | None  # the calls that it made, where these were observed


def run_on_shapes(model: keras.Model, arguments: Arguments | None) -> list[ObservedCall]:
    """Runs a subclassed model and returns the calls that it makes.

    Args:
        model: a model with a `call` of its own.
        arguments: `keras.KerasTensor`s, positional and by name; None: those of the shapes with
            which the model was built.

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
                run_symbolically(model, *args, **kwargs)  # this builds the layers, by extra calls
            return _observe(model, args, kwargs)
        except Exception as error:
            errors.append(error)
    raise ModelError(
        f"The model '{model.name}' ({type(model).__name__}) does not run on shapes alone: "
        f"{errors[0]} Its calls cannot be found. Call the model on a batch of its data to see "
        "where it fails."
    ) from errors[0]


def _guess_arguments(model: keras.Model) -> list[Arguments]:
    """Returns arguments of the shapes a model was built with, one guess for each likely dtype."""
    if isinstance(model, Functional):  # with a `call` of its own: its inputs are declared
        copy = keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape, x.dtype), input_structure(model)
        )
        return [((copy,), {})]
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


def _observe(
    model: keras.Model, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[ObservedCall]:
    open_lists: list[list[ObservedCall]] = [[]]

    @contextmanager
    def around(_: keras.Model, operation: keras.Operation, node_index: int) -> Iterator[None]:
        inner: list[ObservedCall] = []
        open_lists[-1].append(ObservedCall(operation, node_index, current_stage(), inner))
        open_lists.append(inner)
        try:
            yield
        finally:
            open_lists.pop()

    with around_calls(model, around):
        run_symbolically(model, *args, **kwargs)
    return open_lists[0]


def _tensors(shapes: InputShapes, dtype: str) -> InputTensors:
    """Returns a `keras.KerasTensor` for each shape of a structure of shapes.

    Keras gives the structure back as tracked dicts and lists, which JAX takes for single values.
    """
    if isinstance(shapes, dict):
        return {key: _tensors(shape, dtype) for key, shape in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return keras.KerasTensor(tuple(shapes), dtype)
    tensors = [_tensors(cast(InputShapes, shape), dtype) for shape in shapes]
    return tuple(tensors) if isinstance(shapes, tuple) else tensors
