"""What decides what a model computes: layers, how they are connected, optimizer, loss, metrics.

Layers are numbered as the model holds them: `layer 2.1 (Dense)` is the first one in its second.
Names that Keras counts up are no part of any value, so that two builds of one model are equal; the
name that the user knows is where the field is from. Values of variables are not read: while a loop
runs there are none, and they are no part of a program.
"""

import itertools
import json
from typing import Any

import keras

from millrace._compat.keras_build import compile_arguments
from millrace._compat.keras_layers import (
    Origin,
    bookkeeping,
    connections,
    layers_inside,
    remat_mode,
)
from millrace.explain.names import class_name
from millrace.explain.objects import attributes_of
from millrace.explain.values import text_of
from millrace.explain.walk import Walk
from millrace.plan import Mode
from millrace.records.compilation import Aspect

_ARGUMENTS = ("loss", "loss_weights", "metrics", "weighted_metrics")
_OPTIONS = ("jit_compile", "run_eagerly")


def label_layers(walk: Walk, model: Any, path: str = "", around: str = "") -> None:
    """Numbers the layers inside a model, before any value refers to one of them."""
    for number, layer in enumerate(layers_inside(model), 1):
        if walk.label_of(layer) is not None:  # shared, or inside itself
            continue
        place = f"{path}{number}"
        walk.label(layer, f"layer {place} ({type(layer).__name__}){around}")
        label_layers(walk, layer, f"{place}.", around)


def write_model(walk: Walk, model: Any, label: str) -> None:
    """Adds the fields of a model that is not inside of another one: how it was compiled, too."""
    write_layer(walk, model, label)
    if not getattr(model, "compiled", False):
        return
    suffix = "" if label == "model" else f" of {label}"
    if model.optimizer is not None and walk.mode is Mode.TRAIN:
        value = _entries(walk, type(model.optimizer), attributes_of(model.optimizer) or {})
        walk.add(Aspect.MODEL, f"optimizer{suffix}", value)
    given = compile_arguments(model)
    for name in _ARGUMENTS if walk.mode is not Mode.PREDICT else ():
        walk.add(Aspect.MODEL, f"{name}{suffix}", text_of(walk, given.get(name)))
    for name in _OPTIONS:
        walk.add(Aspect.OPTION, f"{name}{suffix}", text_of(walk, given.get(name)))


def write_layer(walk: Walk, layer: Any, label: str) -> None:
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
    _write_connections(walk, layer, label)


def _entries(walk: Walk, kind: type, attributes: dict[str, Any]) -> str:
    entries = {name: text_of(walk, value) for name, value in attributes.items()}
    return json.dumps({"class": class_name(walk, kind)} | entries)


def _write_connections(walk: Walk, model: Any, label: str) -> None:
    """Adds what is called with what in a model's graph, without the names of its layers."""
    if not isinstance(model, keras.Model):
        return
    calls = connections(model)
    names = {id(operation): walk.label_of(operation) for operation, _, _ in calls}
    counter = itertools.count(1)
    for operation, _, _ in calls:
        if names[id(operation)] is None:
            names[id(operation)] = f"operation {next(counter)} ({type(operation).__name__})"
    inputs = itertools.count(1)

    def origin(value: Any) -> Any:
        if not isinstance(value, Origin):
            return text_of(walk, value)
        name = names.get(id(value.operation))
        if name is None:
            name = names[id(value.operation)] = f"input {next(inputs)}"
        return f"{name}#{value.call}.{value.output}"

    entries = {}
    for number, (operation, args, kwargs) in enumerate(calls):
        given = keras.tree.map_structure(origin, (args, kwargs))
        made = "" if isinstance(operation, keras.Layer) else f" {_operation(walk, operation)}"
        entries[f"call {number}"] = f"{names[id(operation)]}{made} {json.dumps(given)}"
    if entries:
        walk.add(Aspect.MODEL, f"connections in {label}", json.dumps(entries), model.name)


def _operation(walk: Walk, operation: Any) -> str:
    """What an operation that is no layer was made with: the axis of a sum."""
    hidden = bookkeeping()
    shown = {name: value for name, value in vars(operation).items() if name not in hidden}
    return _entries(walk, type(operation), shown)
