"""Small models and plans of which keys are made."""

import jax
import keras
import numpy as np

from millrace.base.devices import DeviceGroup
from millrace.base.options import Accumulation, Replication
from millrace.compilation.explain.model_keys import ModelKeys
from millrace.programs.plan import BatchSpec, Mode, Plan

OBJECTS = (("strategy", "number 1"), ("model object", "number 1"), ("compile() calls", "1"))


def batch(rows=32, features=3, dtype="float32"):
    return np.ones((rows, features), dtype), np.ones((rows, 2), "float32")


def plan_for(given, **changes):
    leaves, tree = jax.tree.flatten(given)
    spec = BatchSpec(tree, tuple(v.shape for v in leaves), tuple(v.dtype for v in leaves))
    settings = {
        "mode": Mode.TRAIN,
        "batch": spec,
        "capacity": 8,
        "accumulation": Accumulation(),
        "step_logs": False,
        "records": 1,
        "group": DeviceGroup((jax.devices()[0],)),
        "replication": Replication(),
    }
    return Plan(**(settings | changes))


def small_model(units=4, rate=0.1, optimizer="adam", loss="mse", metrics=None, layer=None):
    layers = [keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(rate)]
    layers += [layer] if layer is not None else []
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])
    return compiled(model, optimizer, loss, metrics)


def compiled(model, optimizer="adam", loss="mse", metrics=None):
    model.compile(optimizer, loss, metrics=metrics)
    model.optimizer.build(model.trainable_variables)
    return model


def key(model=None, given=None, identity=OBJECTS, **changes):
    model = model if model is not None else small_model()
    plan = plan_for(batch() if given is None else given, **changes)
    return ModelKeys(model, identity).of(plan, "run")
