"""Planted causes of recompilation: each is named with the right words, and nothing else is."""

import contextlib
import dataclasses
import os
import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from key_cases import OBJECTS, batch, compiled, key, small_model

from millrace.base.devices import DeviceGroup
from millrace.base.options import (
    Accumulation,
    MetricReduction,
    Offload,
    Reduction,
    Replication,
    TapRequest,
)
from millrace.base.records.compilation import Aspect, ProgramKey
from millrace.compilation.explain.diagnose import FIRST, explain
from millrace.compilation.explain.key import key_of_call
from millrace.programs.plan import Recompute

pytestmark = pytest.mark.quick

FILE = os.path.basename(__file__)
SCALE = 2.0
ANY = "<any>"  # stands for any text


def loss_with(rate):
    def loss(y, prediction):
        return rate * keras.ops.mean(keras.ops.square(y - prediction))

    return loss


def loss_by_default(power):
    def loss(y, prediction, power=power):
        return keras.ops.mean((y - prediction) ** power)

    return loss


class Scaled(keras.layers.Layer):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def call(self, x):
        return x * SCALE * self.factor


@contextlib.contextmanager
def scale_of(value):
    global SCALE
    SCALE, before = value, SCALE
    try:
        yield
    finally:
        SCALE = before


@contextlib.contextmanager
def dtype_policy(name):
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


@contextlib.contextmanager
def flags(text):
    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{before or ''} {text}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = before


def frozen():
    model = small_model()
    model.layers[0].trainable = False
    return compiled(model)


def longer():
    return small_model(layer=keras.layers.Dense(4))


def with_version(package, version):
    found = key()
    fields = tuple(
        dataclasses.replace(field, value=version) if field.name == package else field
        for field in found.fields
    )
    return dataclasses.replace(found, fields=fields)


def other_objects(name, value):
    return tuple((each, value if each == name else old) for each, old in OBJECTS)


def within(context, make=key):
    with context:
        return make()


def line_of(function):
    return f"{FILE}:{function.__code__.co_firstlineno}"


adam = keras.optimizers.Adam
X, Y = batch()
DROP = r"drop_remainder=True"
ONCE = "Set it once, before the first fit"
COMPILE_ONCE = "Call compile\\(\\) once"
AS_ARGUMENT = "pass it as an argument, or keep it in a keras.Variable"

# name: old key, new key, the whole text, what the remedy says
CAUSES = {
    "rows": (
        key,
        lambda: key(given=batch(17), capacity=1),
        "argument x: shape (32, 3) -> (17, 3), batch 1,875 of epoch 1; "
        "argument y: shape (32, 2) -> (17, 2)",
        DROP,
    ),
    "columns": (
        key,
        lambda: key(given=batch(features=5)),
        "argument x: shape (32, 3) -> (32, 5), batch 1,875 of epoch 1",
        "one shape",
    ),
    "shape of y": (
        key,
        lambda: key(given=(X, Y[:, :1])),
        "argument y: shape (32, 2) -> (32, 1), batch 1,875 of epoch 1",
        "one shape",
    ),
    "dtype of x": (
        key,
        lambda: key(given=batch(dtype="float16")),
        "argument x: dtype float32 -> float16, batch 1,875 of epoch 1",
        r"x.astype\('float32'\)",
    ),
    "sample weight": (
        key,
        lambda: key(given=(X, Y, np.ones(32, "float32"))),
        "sample_weight is passed now, batch 1,875 of epoch 1",
        "in every call or in none",
    ),
    "structure": (
        lambda: key(given=([X], Y)),
        lambda: key(given=({"image": X}, Y)),
        "argument x: structure [*] -> {'image': *}, batch 1,875 of epoch 1",
        "one structure",
    ),
    "accumulation": (
        key,
        lambda: key(accumulation=Accumulation(steps=4), capacity=5),
        "gradient_accumulation_steps_per_replica: 1 -> 4",
        ONCE,
    ),
    "reduction": (
        key,
        lambda: key(accumulation=Accumulation(reduction=Reduction.SUM)),
        "gradient_accumulation_reduction_method: auto -> sum",
        ONCE,
    ),
    "accumulator": (
        key,
        lambda: key(accumulation=Accumulation(dtype="float32")),
        "dtype: None -> 'float32'",
        ONCE,
    ),
    "metrics of replicas": (
        key,
        lambda: key(replication=Replication(metrics=MetricReduction.LIST)),
        "replicated_metric_reduction_method: mean -> list",
        ONCE,
    ),
    "recomputation": (
        key,
        lambda: key(recompute=Recompute(whole_stages=True)),
        "recomputation: off -> on; recomputation of whole stages: False -> True",
        ONCE,
    ),
    "offload": (
        key,
        lambda: key(
            offload=Offload(
                optimizer_state=True, activations=False, accumulators=False, weights=False
            )
        ),
        "offload_weight_update_variables: False -> True",
        ONCE,
    ),
    "asynchronous callbacks": (
        key,
        lambda: key(step_logs=True, records=8),
        "asynchronous_callbacks: False -> True",
        ONCE,
    ),
    "taps": (
        key,
        lambda: key(taps=TapRequest(gradients=("*",)), tapped=True),
        "tensor statistics: gradients: () -> ('*',)",
        "in every fit, or in none",
    ),
    "capacity": (
        key,
        lambda: key(capacity=5),
        "steps in a block: 8 -> 5",
        "steps_per_execution",
    ),
    "trainable": (
        small_model,
        frozen,
        "layer '<0>' (Dense): trainable True -> False",
        "Which variables are trained",
    ),
    "units": (small_model, lambda: small_model(5), "layer '<0>' (Dense): units 4 -> 5", "constant"),
    "rate": (
        small_model,
        lambda: small_model(rate=0.5),
        "layer '<1>' (Dropout): rate 0.1 -> 0.5",
        "keep what changes in a variable of the layer",
    ),
    "attribute of a layer": (
        lambda: small_model(layer=Scaled(1.0)),
        lambda: small_model(layer=Scaled(3.0)),
        "layer '<2>' (Scaled): factor 1.0 -> 3.0",
        "constant",
    ),
    "optimizer": (
        small_model,
        lambda: small_model(optimizer="sgd"),
        "optimizer: keras.Adam -> keras.SGD",
        "optimizer.learning_rate = ",
    ),
    "hyperparameter": (
        small_model,
        lambda: small_model(optimizer=adam(beta_1=0.5)),
        "optimizer (Adam): beta_1 0.9 -> 0.5",
        "optimizer.learning_rate = ",
    ),
    "loss": (small_model, lambda: small_model(loss="mae"), "loss: 'mse' -> 'mae'", COMPILE_ONCE),
    "closure": (
        lambda: small_model(loss=loss_with(0.1)),
        lambda: small_model(loss=loss_with(0.2)),
        f"`rate`, closed over by loss() at {line_of(loss_with(0))}: 0.1 -> 0.2",
        AS_ARGUMENT,
    ),
    "default": (
        lambda: small_model(loss=loss_by_default(2)),
        lambda: small_model(loss=loss_by_default(4)),
        f"default of `power` in loss() at {line_of(loss_by_default(0))}: 2 -> 4",
        AS_ARGUMENT,
    ),
    "global": (
        lambda: key(small_model(layer=Scaled())),
        lambda: within(scale_of(3.0), lambda: key(small_model(layer=Scaled()))),
        f"`SCALE`, a global that Scaled.call() reads at {line_of(Scaled.call)}: 2.0 -> 3.0",
        AS_ARGUMENT,
    ),
    "constant": (
        lambda: small_model(loss=lambda y, p: keras.ops.mean(y - p) * 2.0),
        lambda: small_model(loss=lambda y, p: keras.ops.mean(y - p) * 3.0),
        f"a constant in lambda{ANY} at {FILE}:{ANY}: 2.0 -> 3.0",
        "on purpose",
    ),
    "instruction": (
        lambda: small_model(loss=lambda y, p: keras.ops.mean(y - p)),
        lambda: small_model(loss=lambda y, p: keras.ops.mean(y + p)),
        f"the code of lambda{ANY} at {FILE}:{ANY} was changed",
        "on purpose",
    ),
    "metrics": (
        lambda: small_model(metrics=["mae"]),
        lambda: small_model(metrics=["mae", "mse"]),
        "metrics: ['mae'] -> ['mae', 'mse']",
        COMPILE_ONCE,
    ),
    "a layer more": (small_model, longer, "layer '<2>' (Dense) is new", ""),
    "dtype policy": (
        key,
        lambda: within(dtype_policy("mixed_bfloat16")),
        f"model: dtype float32 -> mixed_bfloat16; {ANY}",
        "set_dtype_policy",
    ),
    "precision": (
        key,
        lambda: within(jax.default_matmul_precision("highest")),
        "jax_default_matmul_precision: None -> highest",
        "Set it once",
    ),
    "debugging": (
        key,
        lambda: within(jax.debug_nans(True)),
        "jax_debug_nans: False -> True",
        "Set it once",
    ),
    "device": (
        key,
        lambda: key(group=DeviceGroup((jax.devices()[1],))),
        "devices: 0 -> 1",
        "same devices",
    ),
    "flag": (
        key,
        lambda: within(flags("--xla_cpu_enable_fast_math=true")),
        "XLA_FLAGS: none -> --xla_cpu_enable_fast_math=true",
        "None is needed",
    ),
    "version": (
        key,
        lambda: with_version("jax", "0.99"),
        f"jax: {jax.__version__} -> 0.99",
        "None is needed",
    ),
    "strategy": (
        key,
        lambda: key(identity=other_objects("strategy", "number 2")),
        "another Strategy than before",
        "Use one Strategy",
    ),
    "model object": (
        key,
        lambda: key(identity=other_objects("model object", "number 2")),
        "another model object than before",
        "set_weights",
    ),
    "compile": (
        key,
        lambda: key(identity=other_objects("compile() calls", "2")),
        "compile() was called again",
        COMPILE_ONCE,
    ),
}


def made(found):
    """Returns the key, and the layers of the model if that was made."""
    if isinstance(found, ProgramKey):
        return found, []
    return key(found), [layer.name for layer in found.layers]


@pytest.mark.parametrize("name", CAUSES)
def test_a_planted_cause_is_named(name):
    old, new, text, remedy = CAUSES[name]
    known, _ = made(old())
    found, layers = made(new())
    cause = explain(found, [known], "batch 1,875 of epoch 1")
    for number, layer in enumerate(layers):
        text = text.replace(f"<{number}>", layer)
    pattern = ".*".join(map(re.escape, text.split(ANY)))
    assert re.fullmatch(pattern, cause.text), cause.text
    assert re.search(remedy, cause.remedy), cause.remedy
    assert cause.aspects


def test_no_cause_where_nothing_changed():
    first, second = key(), key()
    assert explain(first, []).text == FIRST == "first compilation"
    assert explain(first, []).aspects == ()
    cause = explain(second, [first])
    assert cause.text == "no field of its key differs from that of a program compiled before"
    assert cause.aspects == ()
    unknown = dataclasses.replace(second, is_complete=False)
    assert "does not describe everything" in explain(unknown, [first]).remedy


def test_another_model_is_called_that():
    x = keras.Input((4, 3))
    hidden = keras.layers.Conv1D(2, 1)(keras.layers.LayerNormalization()(x))
    other = compiled(keras.Model(x, hidden), "sgd", "mae")
    cause = explain(key(other), [key()])
    assert cause.text == "another model"
    assert Aspect.MODEL in cause.aspects


def test_the_nearest_key_is_of_the_same_model():
    mine, other = key(), key(given=batch(17), identity=other_objects("model object", "number 2"))
    cause = explain(key(given=batch(17)), [mine, other])
    assert cause.text.startswith("argument x: shape (32, 3) -> (17, 3)")
    older = key(given=batch(64))
    cause = explain(key(given=batch(17)), [older, mine])
    assert cause.text.startswith("argument x: shape (32, 3)"), "of equally near ones the newest"
    cause = explain(key(given=batch(64), accumulation=Accumulation(steps=2)), [older, mine])
    assert cause.text == "gradient_accumulation_steps_per_replica: 1 -> 2"


def test_long_lists_are_shortened():
    new = key(
        given=batch(17),
        accumulation=Accumulation(steps=4, reduction=Reduction.SUM, batch_serialization=2),
    )
    text = explain(new, [key()]).text
    assert text.endswith("; and 2 more")
    assert text.count(";") == 3


def call_key(*args, function=None, static=(), number="1", **kwargs):
    function = function or jax.jit(lambda x, k=1: x * k)
    return key_of_call(
        "f", function, args, kwargs, static=static, identity=[("function object", number)]
    )


ONES = np.ones(3, "float32")
CALLS = {
    "weak type": (
        lambda: call_key(np.float32(2)),
        lambda: call_key(2.0),
        "argument x: weak type no -> yes, of a Python number",
        "np.float32",
    ),
    "dtype": (
        lambda: call_key(ONES),
        lambda: call_key(np.arange(3)),
        "argument x: dtype float32 -> int32",
        "one dtype",
    ),
    "committed": (
        lambda: call_key(jnp.ones(3)),
        lambda: call_key(jax.device_put(jnp.ones(3), jax.devices()[0])),
        "argument x: placement free -> cpu:0, memory ",
        "jax.device_put",
    ),
    "static": (
        lambda: call_key(ONES, 1, static=(1,)),
        lambda: call_key(ONES, 2, static=(1,)),
        "static argument k: 1 -> 2",
        "pass it as an array instead",
    ),
    "structure": (
        lambda: call_key({"a": ONES}),
        lambda: call_key({"a": ONES, "b": ONES}),
        "argument x: structure ({'a': *}) -> ({'a': *, 'b': *})",
        "one structure",
    ),
    "by keyword": (
        lambda: call_key(ONES, 1),
        lambda: call_key(ONES, k=1),
        "arguments passed by keyword: none -> k",
        "in one way",
    ),
    "new lambda": (
        lambda: call_key(ONES, function=jax.jit(lambda x: x + 1)),
        lambda: call_key(ONES, function=jax.jit(lambda x: x + 1), number="2"),
        "another function object with the same code",
        "outside of the loop",
    ),
    "closure": (
        lambda: call_key(ONES, ONES, function=jax.jit(loss_with(0.1))),
        lambda: call_key(ONES, ONES, function=jax.jit(loss_with(0.2))),
        f"`rate`, closed over by loss() at {line_of(loss_with(0))}: 0.1 -> 0.2",
        AS_ARGUMENT,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_planted_cause_of_a_call_is_named(name):
    old, new, text, remedy = CALLS[name]
    cause = explain(new(), [old()])
    assert cause.text.startswith(text)
    assert remedy in cause.remedy


def test_calls_that_share_a_program_have_one_key():
    known = call_key(ONES)
    for equal in (np.ones(3), jnp.ones(3), jnp.ones(3) * 5):
        assert explain(call_key(equal), [known]).aspects == ()
    assert explain(call_key(2.0), [call_key(3.0)]).aspects == ()
