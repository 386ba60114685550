import datetime as dt
import enum
import functools
import importlib.metadata
import io
import os
import pathlib
import re
import runpy
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import keras
import key_cases
import numpy as np
import pytest
import rich
from key_cases import batch, compiled, small_model

from millrace.base.options import Accumulation
from millrace.base.records.compilation import Aspect
from millrace.compilation.explain import value_text as values_module
from millrace.compilation.explain import walk as walk_module
from millrace.compilation.explain.fingerprint import describe, describe_model, describe_state
from millrace.compilation.explain.key import key_of_call
from millrace.programs.plan import Mode

pytestmark = pytest.mark.quick

SCALE = 2.0
TEST = "test_values_are_written_as_their_user_would"


def make_loss(rate):
    def loss(y, prediction, power=3):
        """A sentence that is no part of a program."""
        return rate * SCALE * jnp.mean((y - prediction) ** power) * 0.5

    return loss


def values(description):
    return {field.name: field.value for field in description.fields}


def of(function):
    return values(describe(function, "function"))


def test_a_function_reads_like_the_drawing():
    fields = of(make_loss(0.1))
    assert re.fullmatch("[0-9a-f]{12}", fields.pop("instructions of loss()"))
    constants = fields.pop("constants of loss()")
    assert "0.5" in constants
    assert "sentence" not in constants
    assert fields == {
        "function": "loss()",
        "default of `power` in loss()": "3",
        "`rate`, closed over by loss()": "0.1",
        "`SCALE`, a global that loss() reads": "2.0",
        "`jnp`, a global that loss() reads": "module jax.numpy",
    }
    where = {field.where for field in describe(make_loss(0.1), "f").fields if field.where}
    line = make_loss(0.1).__code__.co_firstlineno
    assert where == {f"test_fingerprint.py:{line}"}


class Color(enum.IntEnum):
    RED = 1


class Slotted:
    __slots__ = ("depth",)

    def __init__(self):
        self.depth = 3


class Node:
    def __init__(self):
        self.me = self

    def step(self, x):
        return x


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (True, "True"),
        ("a", "'a'"),
        ((1, [2.0]), "(1, [2.0])"),
        ({"b": {3, 1}}, "{'b': {1, 3}}"),
        (np.float32(0.5), "float32[] 0.5"),
        (np.arange(3), "int64[3] [0, 1, 2]"),
        (Color.RED, "Color.RED"),
        (np.dtype("float32"), "dtype float32"),
        (jnp.float32, "jax.numpy.float32"),
        (keras.activations.relu, "keras.relu()"),
        (max, "builtins.max()"),
        (Slotted(), "Slotted(depth=3)"),
        (types.SimpleNamespace(rate=0.1), "types.SimpleNamespace(rate=0.1)"),
        (functools.partial(make_loss, rate=2), "partial(make_loss(), rate=2)"),
        (keras.Variable(np.ones(3, "f")), "variable float32[3]"),
        (keras.random.SeedGenerator(), "SeedGenerator"),
        (keras.initializers.RandomNormal(), "keras.RandomNormal(seed=None, mean=0.0, stddev=0.05)"),
        (keras.regularizers.L2(0.5), "keras.L2(l2=0.5)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_written_as_their_user_would(value, text):
    found = of(lambda: value)[f"`value`, closed over by lambda in {TEST}()"]
    assert found == text


def test_long_values_are_told_apart_by_what_is_in_them():
    def text(value):
        (found,) = (v for k, v in of(lambda: value).items() if k.startswith("`value`"))
        return found

    assert text(np.arange(100)) == text(np.arange(100)) != text(np.arange(100)[::-1])
    assert text("a" * 1000) == text("a" * 1000) != text("a" * 999 + "b")
    assert len(text("a" * 1000)) < 100
    assert text(jnp.arange(100.0)) == text(jnp.arange(100.0)) != text(jnp.arange(1, 101.0))


def test_an_array_that_takes_the_dtype_of_others_is_not_one_that_does_not():
    weak, strong = jnp.asarray(0.5), jnp.asarray(0.5, "float32")
    assert (jnp.bfloat16(1) * weak).dtype != (jnp.bfloat16(1) * strong).dtype
    assert "float32[] weak 0.5" in of(lambda: weak).values()
    assert "float32[] 0.5" in of(lambda: strong).values()


def test_equal_sets_have_one_text():
    sets = set([0, 8]), set([8, 0])  # noqa: C405, in the order in which they were filled
    assert list(sets[0]) != list(sets[1])
    found = [of(functools.partial(max, each)) for each in sets]
    assert found == [{"function": "partial(builtins.max(), {0, 8})"}] * 2


def test_functions_of_one_name_are_all_described():
    first, second = make_loss(0.1), make_loss(0.2)
    fields = of(lambda: first() + second())
    assert {name: value for name, value in fields.items() if name.startswith("`rate`")} == {
        "`rate`, closed over by loss()": "0.1",
        "`rate`, closed over by loss() (2)": "0.2",
    }


def test_what_a_function_calls_is_described_and_cycles_end():
    node = Node()
    fields = of(lambda x: node.step(helper(x)))
    assert "instructions of helper()" in fields
    assert "instructions of Node.step()" in fields
    assert any("Node(me=<Node number 0 around this>)" in value for value in fields.values())


def helper(x):
    return helper(x) if x else SCALE


def test_functions_in_decorators_are_found():
    for wrap in (jax.jit, jax.vmap, functools.partial, jax.checkpoint, functools.cache):
        assert "instructions of helper()" in of(wrap(helper)), wrap


def test_only_the_attribute_that_is_read_counts():
    fields = of(lambda: SETTINGS.rate)
    assert {k: v for k, v in fields.items() if "global" in k} == {
        "`SETTINGS.rate`, a global that lambda in test_only_the_attribute_that_is_read_counts() "
        "reads": "0.1"
    }


class Settings:
    def __init__(self):
        self.rate = 0.1
        self.runs = 0


SETTINGS = Settings()


def test_what_is_nested_too_deep_is_left_out():
    deep = []
    for _ in range(3000):
        deep = [deep]
    assert describe(lambda: deep, "function").gaps == ("values nested 50 deep",)


def test_neither_secrets_of_the_environment_nor_paths_are_in_a_field():
    environment, function = os.environ, jax.custom_jvp(jax.jit(helper))
    description = describe(lambda x: (environment, function), "function")
    text = " ".join(field.value for field in description.fields)
    assert "PATH" not in text
    assert os.getcwd() not in text
    assert not description.is_complete


@pytest.mark.parametrize("hidden", [lambda: io.StringIO("a"), lambda: iter([]), lambda: object()])
def test_says_what_it_cannot_see(hidden):
    value = hidden()
    description = describe(lambda: value, "function")
    assert not description.is_complete
    assert type(value).__name__ in description.gaps[0]


def test_is_complete_otherwise():
    assert describe(make_loss(0.1), "function").is_complete
    assert describe_model(small_model()).is_complete


def given_away():
    array = jnp.ones(3)
    array.delete()
    return lambda: array


def traced():
    seen = []
    jax.jit(lambda x: seen.append(describe(lambda: x, "f")) or x)(1.0)
    return seen[0]


def imports_a_module_of_the_user():
    def outer():
        import key_cases

        return key_cases.batch()

    return outer


def imports_in_an_inner_function():
    def outer():
        def inner():
            import time

            return time.time()

        return inner()

    return outer


@pytest.mark.parametrize(
    ("make", "gap"),
    [
        (given_away, "an array float32[3] that cannot be read"),
        (traced, "a value float32[] of a program that is being traced"),
        (imports_in_an_inner_function, "time, which outer() reads"),
        (imports_a_module_of_the_user, "module key_cases, which outer() reads"),
        (lambda: lambda: dt.datetime.now(), "dt.datetime.now, which lambda"),
        (lambda: lambda: id(0), "id(), which lambda"),
        (lambda: lambda: np.random.rand(), "np.random, which lambda"),
        (lambda: lambda: key_cases, "module key_cases, which lambda"),
        (lambda: lambda: np.arange(20), ""),
    ],
)
def test_a_gap_says_where_it_is(make, gap):
    found = make()
    gaps = getattr(found, "gaps", None) or describe(found, "f").gaps
    assert [text[: len(gap)] for text in gaps] == ([gap] if gap else [])


@pytest.mark.parametrize(
    ("module", "limit", "value"),
    [(values_module, "MAX_BYTES", np.arange(20)), (walk_module, "MAX_VALUES", [[], []])],
)
def test_what_is_too_large_is_a_gap(monkeypatch, module, limit, value):
    assert describe(lambda: value, "f").is_complete
    monkeypatch.setattr(module, limit, 2)
    assert not describe(lambda: value, "f").is_complete


def test_the_version_of_a_package_is_part_of_what_uses_it(monkeypatch):
    def inner():
        import rich

        return rich.print

    def version(function):
        description = describe(function, "f")
        fields = [field for field in description.fields if field.aspect is Aspect.VERSION]
        return [(field.name, field.value) for field in fields], description.is_complete

    uses = (rich.print, lambda: rich.print, inner)
    expected = [("rich", importlib.metadata.version("rich"))]
    assert [version(each) for each in uses] == [(expected, True)] * 3
    monkeypatch.setattr(walk_module, "version_of", lambda package: None)
    assert [version(each) for each in uses] == [([], False)] * 3


def test_a_module_has_the_version_of_the_package_that_it_is_in(monkeypatch):
    found = {"a_module_of_rich": ["rich"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: found)
    version = importlib.metadata.version("rich")
    assert walk_module.version_of("a_module_of_rich") == f"rich {version}"
    assert walk_module.version_of("no_such_package") is None


def test_the_value_of_a_variable_of_another_model_is_a_constant():
    def loss(variable):
        return lambda y, p: keras.ops.mean(y - p) * variable

    def description(value):
        return values(describe_model(small_model(loss=loss(keras.Variable(value)))))

    assert description(1.0) == description(1.0) != description(2.0)


def test_functions_of_one_name_do_not_hide_each_other_in_a_key():
    def static(*rates):
        given = tuple(make_loss(rate) for rate in rates)
        return key_of_call("f", lambda a, b: a, given, {}, static=(0, 1))

    assert static(0.1, 0.2).digest != static(0.3, 0.2).digest

    def with_dtype(rate):
        model = small_model(loss=make_loss(0.1))
        return key_cases.key(model, accumulation=Accumulation(dtype=make_loss(rate)))

    assert with_dtype(0.2).digest != with_dtype(0.3).digest


@keras.saving.register_keras_serializable()
class Scaled(keras.layers.Layer):
    def __init__(self, factor=2.0):  # without get_config, which Keras then cannot make
        super().__init__()
        self.factor = factor
        self.inner = keras.layers.Dense(3, activation=lambda x: x * 2)
        self.table = np.arange(20)

    def call(self, x):
        return self.inner(x) * self.factor * SCALE


def test_two_builds_of_a_model_are_equal():
    def model():
        x = keras.Input((3,))
        shared = keras.layers.Dense(3)
        h = shared(Scaled()(shared(x))) + keras.ops.sum(x, axis=1, keepdims=True)
        y = keras.layers.Dense(2, name=None)(keras.Sequential([keras.layers.Dense(4)])(h))
        return compiled(keras.Model(x, y), metrics=["mae", keras.metrics.AUC()])

    first, second = model(), model()
    assert values(describe_model(first)) == values(describe_model(second))
    names = {field.where for field in describe_model(second).fields}
    assert second.layers[-1].name in names
    states = [{(f.name, f.value) for f in describe_state(m, Mode.TRAIN)} for m in (first, second)]
    assert states[0] == states[1]
    variables = first.variables + first.optimizer.variables[2:]
    assert len(describe_state(first, Mode.TRAIN)) >= len(variables)


def test_connections_are_part_of_a_model():
    def model(swapped):
        x = keras.Input((3,))
        y = keras.layers.Dense(3)(x)
        return keras.Model(x, keras.ops.subtract(*((x, y) if swapped else (y, x))))

    one, other = values(describe_model(model(False))), values(describe_model(model(True)))
    assert [name for name in one if one[name] != other[name]] == ["connections in model"]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Scaled(), Scaled(3.0)]
        self.runs = 0

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def train_step(self, *args):
        return super().train_step(*args)


def test_a_subclassed_model_is_its_code_and_its_layers():
    model = Subclassed()
    model.compile("sgd", "mse")
    model(np.ones((2, 3)))
    fields = values(describe_model(model))
    assert '"factor": "3.0"' in fields["layer 2 (Scaled)"]
    assert '"units": "3"' in fields["layer 2.1 (Dense)"]
    assert '"activation": "lambda in Scaled.__init__()"' in fields["layer 1.1 (Dense)"]
    assert fields["`SCALE`, a global that Scaled.call() reads"] == "2.0"
    assert "instructions of Subclassed.train_step()" in fields


def test_training_does_not_change_a_model():
    model = small_model(layer=Scaled(), metrics=["mae"])
    x, y = batch()
    model.fit(x, y, verbose=0)
    before = values(describe_model(model)), describe_state(model, Mode.TRAIN)
    during = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: during.append(
            (values(describe_model(model)), describe_state(model, Mode.TRAIN))
        )
    )
    model.fit(x, y, epochs=2, verbose=0, callbacks=[look])
    model.optimizer.learning_rate = 0.5
    model.set_weights([w * 2 for w in model.get_weights()])
    after = values(describe_model(model)), describe_state(model, Mode.TRAIN)
    assert before == after
    assert during == [before, before]


def test_learning_rate_schedules_are_part_of_an_optimizer():
    def model(rate):
        schedule = keras.optimizers.schedules.ExponentialDecay(rate, 10, 0.5)
        return values(describe_model(small_model(optimizer=keras.optimizers.SGD(schedule))))

    assert model(0.1)["optimizer"] == model(0.1)["optimizer"] != model(0.2)["optimizer"]
    assert "initial_learning_rate=0.1" in model(0.1)["optimizer"]


OPTIMIZERS = {
    "Adadelta": {},
    "Adafactor": {},
    "Adam": {"use_ema": True},
    "AdamW": {"clipnorm": 1.0},
    "Ftrl": {},
    "Lamb": {},
    "Lion": {},
    "LossScaleOptimizer": {"inner_optimizer": keras.optimizers.SGD},
    "Nadam": {},
    "RMSprop": {"centered": True},
    "SGD": {"momentum": 0.9, "gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_stay_what_they_are_while_they_work(name):
    def made():
        given = {k: v() if isinstance(v, type) else v for k, v in OPTIMIZERS[name].items()}
        return getattr(keras.optimizers, name)(**given)

    model, other = small_model(optimizer=made()), small_model(optimizer=made())
    before = describe_model(model)
    optimizer, weights = model.optimizer, [v.value for v in model.trainable_variables]
    optimizer.stateless_apply([v.value for v in optimizer.variables], weights, weights)
    assert values(before) == values(describe_model(model)) == values(describe_model(other))
    assert before.is_complete
    assert not re.search("[0-9]{9}", values(before)["optimizer"])


def test_variables_without_weight_decay_are_known_by_their_place():
    def optimizer(*names):
        made = keras.optimizers.AdamW()
        made.exclude_from_weight_decay(var_names=names)
        return values(describe_model(small_model(optimizer=made)))["optimizer"]

    assert '"exclude_from_weight_decay": "[1, 3]"' in optimizer("bias", "other")
    assert optimizer("bias", "other") == optimizer("other", "bias") != optimizer("kernel")


def test_a_mode_has_only_what_it_uses():
    model = small_model()
    names = {mode: values(describe_model(model, mode)).keys() for mode in Mode}
    assert "optimizer" in names[Mode.TRAIN]
    assert "optimizer" not in names[Mode.TEST] | names[Mode.PREDICT]
    assert "loss" in names[Mode.TEST]
    assert "loss" not in names[Mode.PREDICT]
    roles = {field.value.split()[-1] for field in describe_state(model, Mode.PREDICT)}
    assert roles == {"trainable", "non-trainable"}


LAYERS = [
    lambda: keras.layers.BatchNormalization(),
    lambda: keras.layers.Bidirectional(keras.layers.LSTM(2, dropout=0.1)),
    lambda: keras.layers.Conv1D(2, 1, kernel_regularizer="l2"),
    lambda: keras.layers.GaussianNoise(0.1),
    lambda: keras.layers.Lambda(lambda x: x * SCALE),
    lambda: keras.layers.LayerNormalization(),
    lambda: keras.layers.GRU(2, recurrent_dropout=0.1),
    lambda: keras.layers.SpectralNormalization(keras.layers.Conv1D(2, 1)),
    lambda: keras.layers.TimeDistributed(keras.layers.Dense(2)),
    lambda: keras.layers.Normalization(mean=0.5, variance=2.0),
]


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_layers_of_keras_are_described_completely_and_alike(layer):
    def description():
        return describe_model(keras.Sequential([keras.Input((4, 3)), LAYERS[layer]()]))

    one, other = description(), description()
    assert values(one) == values(other)
    assert one.is_complete, one.gaps
    assert not [v for v in values(one).values() if re.search(r"0x[0-9a-f]{6}", v)]


def test_attention_has_its_heads():
    x = keras.Input((4, 3))
    model = keras.Model(x, keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    fields = values(describe_model(model))
    assert '"num_heads": "2"' in fields["layer 1 (MultiHeadAttention)"]
    assert "use_causal_mask" in fields["connections in model"]


@pytest.mark.slow
def test_keys_are_equal_in_all_processes(capsys):
    script = pathlib.Path(__file__).parent / "keys_script.py"
    runpy.run_path(str(script), run_name="__main__")
    here = capsys.readouterr().out
    there = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert there == here
    assert there.endswith("True True\n")


def test_every_field_has_an_aspect_of_its_own():
    aspects = {field.aspect for field in describe_model(small_model(layer=Scaled())).fields}
    assert aspects == {Aspect.MODEL, Aspect.CODE, Aspect.OPTION}
