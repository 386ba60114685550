"""What decides what a function or a model computes, field by field.

    describe_function(loss, "loss")   CODE     instructions, constants, closures, globals, defaults
    describe_model(model)             MODEL    layers, connections, optimizer, loss, metrics
                                      CODE     of the user's classes and functions in them
    describe_state(model, mode)       STATE    one field for each variable

Equal descriptions mean equal computations, in any process with the same versions, unless a
description says that it is not complete. Nothing is traced, and no value of a variable is read.
"""

import re
from typing import Any

import keras

from millrace._compat.keras_layers import layers_inside
from millrace.explain.code import write_class, write_function
from millrace.explain.layers import label_layers, write_layer, write_model
from millrace.explain.values import text_of
from millrace.explain.walk import Description, Walk
from millrace.plan import ROLES, Mode
from millrace.records.compilation import Aspect, KeyField

_COUNTED = re.compile(r"^variable_\d+$")  # names that Keras gives to those without one


def describe_function(function: Any, name: str) -> Description:
    """Describes a function, a method, a partial, a callable object or a class.

    Args:
        function: whatever can be called.
        name: of it in the field that says what it is: "function step", say.
    """
    walk = Walk()
    walk.add(Aspect.CODE, name, text_of(walk, function))
    _drain(walk)
    return walk.description()


def describe_value(value: Any, name: str, aspect: Aspect = Aspect.CODE) -> Description:
    """Describes any value: of a static argument, say, or of an option."""
    walk = Walk()
    walk.add(aspect, name, text_of(walk, value))
    _drain(walk)
    return walk.description()


def describe_model(model: Any, mode: Mode = Mode.TRAIN) -> Description:
    """Describes a model, with those things that it was compiled with that a mode uses."""
    optimizer = getattr(model, "optimizer", None)
    own = [*model.variables, *model.metrics_variables, *getattr(optimizer, "variables", ())]
    walk = Walk(frozenset(map(id, own)), mode)
    walk.label(model, "model", describe=False)
    label_layers(walk, model)
    _label_variables(walk, model)
    write_model(walk, model, "model")
    _drain(walk)
    return walk.description()


def describe_state(model: Any, mode: Mode) -> tuple[KeyField, ...]:
    """Describes the variables that a program of a mode is given: shape, dtype and role.

    A layer's variable is called by the number of the layer, for names differ between two builds of
    one model; its path is where the field is from.
    """
    names = _variable_names(model)
    variables = {
        "trainable": lambda: model.trainable_variables,
        "non_trainable": lambda: model.non_trainable_variables,
        "optimizer": lambda: model.optimizer.variables,
        "metric": lambda: model.metrics_variables,
    }
    fields = []
    for role in ROLES[mode]:
        word = role.replace("_", "-")
        for number, variable in enumerate(variables[role](), 1):
            name = names.get(id(variable)) or f"{word} variable {number}"
            text = f"{variable.dtype}[{','.join(map(str, variable.shape))}] {word}"
            fields.append(KeyField(Aspect.STATE, name, text, variable.path))
    return tuple(fields)


def _label_variables(walk: Walk, model: Any) -> None:
    """Lets attributes of the user's layers say which variable they are: two may be exchanged."""
    names = _variable_names(model)
    for variable in model.variables:
        if id(variable) in names:
            walk.label(variable, names[id(variable)], describe=False)


def _variable_names(model: Any) -> dict[int, str]:
    walk = Walk()
    walk.label(model, "the model")
    label_layers(walk, model)
    names: dict[int, str] = {}
    for layer, label in walk.queue:
        inner = {id(v) for part in layers_inside(layer) for v in part.variables}
        for variable in layer.variables:
            if id(variable) not in inner:
                name = _COUNTED.sub("variable", variable.name)
                names.setdefault(id(variable), f"variable {name} of {label}")
    return _distinct(names)


def _distinct(names: dict[int, str]) -> dict[int, str]:
    """Returns names of which no two are equal: a layer's two seed generators are."""
    count: dict[str, int] = {}
    distinct = {}
    for variable, name in names.items():
        count[name] = count.get(name, 0) + 1
        distinct[variable] = name if count[name] == 1 else f"{name} ({count[name]})"
    return distinct


def _drain(walk: Walk) -> None:
    """Describes what has got a label, until nothing new turns up."""
    while walk.queue:
        found, label = walk.queue.popleft()
        if isinstance(found, keras.Layer):
            label_layers(walk, found, around=f" of {label}")  # of those that were met alone
            is_whole = isinstance(found, keras.Model) and label.startswith("model ")
            (write_model if is_whole else write_layer)(walk, found, label)
        elif isinstance(found, type):
            write_class(walk, found, label)
        else:
            write_function(walk, found, label)
