"""Descriptions of functions and models, field by field: all that decides their results.

    describe(loss, "loss")        CODE     instructions, constants, closures, globals, defaults
    describe_model(model)         MODEL    layers, connections, optimizer, loss, metrics
                                  CODE     of the user's classes and functions in them
    describe_state(model, mode)   STATE    one field for each variable

Equal descriptions mean equal computations, in any process with the same versions, unless a
description is marked as incomplete. Nothing is traced, and no value of a variable is read: values
are not part of a program, and while a loop runs the variables hold none.

Layers are numbered in the order of the model: `layer 2.1 (Dense)` is the first layer in its second.
Names that Keras numbers are left out, so that two builds of one model are equal; the `where` of a
field has the user's name.
"""

import itertools
import json
import re
from collections.abc import Mapping

import keras

from millrace._compat.keras_build import compile_arguments
from millrace._compat.keras_layers import (
    LayerOrigin,
    bookkeeping,
    connections,
    layers_inside,
    remat_mode,
)
from millrace.base.records.compilation import Aspect, KeyField
from millrace.compilation.explain.attributes import attributes_of
from millrace.compilation.explain.functions import write_class, write_function
from millrace.compilation.explain.value_text import class_name, text_of
from millrace.compilation.explain.walk import Description, Walk
from millrace.programs.plan import Mode
from millrace.programs.steps.state import state_of

_COUNTED = re.compile(r"^variable_\d+$")  # Keras's names for variables without one


def describe(value: object, name: str, aspect: Aspect = Aspect.CODE) -> Description:
    """Describes a function, a class or any other value.

    Args:
        value: any object.
        name: of the field that describes it, such as "function step".
        aspect: of that field.
    """
    walk = Walk()
    walk.add(aspect, name, text_of(walk, value))
    return finished(walk)


def describe_model(
    model: keras.Model, mode: Mode = Mode.TRAIN, dtype: object = None
) -> Description:
    """Describes a model, and the arguments of its `compile()` that a mode uses.

    Args:
        model: built.
        mode: of its programs.
        dtype: of gradient accumulators, which may be a function of the user's.
    """
    return walk_model(model, mode, dtype).description()


def walk_model(model: keras.Model, mode: Mode, dtype: object = None) -> Walk:
    """Returns the walk of `describe_model`, with all that it has found."""
    optimizer = getattr(model, "optimizer", None)
    own = [*model.variables, *model.metrics_variables, *getattr(optimizer, "variables", ())]
    walk = Walk(frozenset(map(id, own)), mode)
    walk.label(model, "model", describe=False)
    _label_layers(walk, model)
    names = _variable_names(model)
    for variable in model.variables:  # attributes refer to them by name: two may be swapped
        if id(variable) in names:
            walk.label(variable, names[id(variable)], describe=False)
    _write_model(walk, model, "model")
    walk.add(Aspect.OPTION, "dtype", text_of(walk, dtype))
    finished(walk)
    return walk


def describe_state(model: keras.Model, mode: Mode) -> tuple[KeyField, ...]:
    """Describes the variables that a program of a mode takes: shape, dtype and role.

    The name of a layer's variable has the number of the layer, since the names of layers differ
    between two builds of one model; `where` has its path.
    """
    names = _variable_names(model)
    fields = []
    for role, variables in state_of(model, mode, lambda variable: variable).items():
        word = role.replace("_", "-")
        for number, variable in enumerate(variables, 1):
            name = names.get(id(variable)) or f"{word} variable {number}"
            text = f"{variable.dtype}[{','.join(map(str, variable.shape))}] {word}"
            fields.append(KeyField(Aspect.STATE, name, text, variable.path))
    return tuple(fields)


def finished(walk: Walk) -> Description:
    """Describes everything in a walk's queue until nothing new turns up, and returns all fields."""
    while walk.queue:
        thing, label = walk.queue.popleft()
        if isinstance(thing, keras.Layer):
            _label_layers(walk, thing, around=f" of {label}")  # found outside of a model
            is_whole = isinstance(thing, keras.Model) and label.startswith("model ")
            (_write_model if is_whole else _write_layer)(walk, thing, label)
        elif isinstance(thing, type):
            write_class(walk, thing, label)
        else:
            write_function(walk, thing, label)
    return walk.description()


def _label_layers(walk: Walk, model: keras.Layer, path: str = "", around: str = "") -> None:
    """Numbers the layers inside a model, before any value refers to one of them."""
    for number, layer in enumerate(layers_inside(model), 1):
        if walk.label_of(layer) is not None:  # shared, or inside itself
            continue
        inner = f"{path}{number}"
        walk.label(layer, f"layer {inner} ({type(layer).__name__}){around}")
        _label_layers(walk, layer, f"{inner}.", around)


def _variable_names(model: keras.Model) -> dict[int, str]:
    """Returns names of the variables of layers, by id; a number tells equal ones apart."""
    walk = Walk()
    walk.label(model, "the model")
    _label_layers(walk, model)
    names: dict[int, str] = {}
    for layer, label in walk.queue:
        inner = {id(v) for part in layers_inside(layer) for v in part.variables}
        for variable in layer.variables:
            if id(variable) not in inner and id(variable) not in names:
                name = _COUNTED.sub("variable", variable.name)
                names[id(variable)] = walk.unique(f"variable {name} of {label}")
    return names


def _write_model(walk: Walk, model: keras.Model, label: str) -> None:
    """Adds the fields of an outermost model, and of its `compile()`."""
    _write_layer(walk, model, label)
    if not getattr(model, "compiled", False):
        return
    suffix = "" if label == "model" else f" of {label}"
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and walk.mode is Mode.TRAIN:
        value = _entries(walk, type(optimizer), attributes_of(optimizer) or {})
        walk.add(Aspect.MODEL, f"optimizer{suffix}", value)
    arguments = compile_arguments(model)
    if walk.mode is not Mode.PREDICT:
        for name in ("loss", "loss_weights", "metrics", "weighted_metrics"):
            walk.add(Aspect.MODEL, f"{name}{suffix}", text_of(walk, arguments.get(name)))
    for name in ("jit_compile", "run_eagerly"):
        walk.add(Aspect.OPTION, f"{name}{suffix}", text_of(walk, arguments.get(name)))


def _write_layer(walk: Walk, layer: keras.Layer, label: str) -> None:
    """Adds the field of a layer, and one of the calls in it if it is a model with a graph."""
    facts = {
        "dtype": layer.dtype_policy,
        "trainable": bool(layer.trainable),
        "autocast": layer.autocast,
        "activity_regularizer": layer.activity_regularizer,
        "supports_masking": layer.supports_masking,
        "remat": remat_mode(layer),
    }
    value = _entries(walk, type(layer), facts | (attributes_of(layer) or {}))
    walk.add(Aspect.MODEL, label, value, layer.name)
    if isinstance(layer, keras.Model):
        _write_connections(walk, layer, label)


def _entries(walk: Walk, kind: type, attributes: Mapping[str, object]) -> str:
    entries = {name: text_of(walk, value) for name, value in attributes.items()}
    return json.dumps({"class": class_name(walk, kind)} | entries)


def _write_connections(walk: Walk, model: keras.Model, label: str) -> None:
    """Adds the calls of a model's graph and their arguments, without the names of layers."""
    calls = connections(model)
    names = {id(operation): walk.label_of(operation) for operation, _, _ in calls}
    counter = itertools.count(1)
    for operation, _, _ in calls:
        if names[id(operation)] is None:
            names[id(operation)] = f"operation {next(counter)} ({type(operation).__name__})"
    inputs = itertools.count(1)

    def origin(value: object) -> str:
        if not isinstance(value, LayerOrigin):
            return text_of(walk, value)
        name = names.get(id(value.operation))
        if name is None:
            name = names[id(value.operation)] = f"input {next(inputs)}"
        return f"{name}#{value.call}.{value.output}"

    entries = {}
    for number, (operation, args, kwargs) in enumerate(calls):
        arguments = keras.tree.map_structure(origin, (args, kwargs))
        options = "" if isinstance(operation, keras.Layer) else f" {_operation(walk, operation)}"
        entries[f"call {number}"] = f"{names[id(operation)]}{options} {json.dumps(arguments)}"
    if entries:
        walk.add(Aspect.MODEL, f"connections in {label}", json.dumps(entries), model.name)


def _operation(walk: Walk, operation: keras.Operation) -> str:
    """Returns the arguments of an operation other than a layer, such as the axis of a sum."""
    hidden = bookkeeping()
    shown = {name: value for name, value in vars(operation).items() if name not in hidden}
    return _entries(walk, type(operation), shown)
