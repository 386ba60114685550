"""The tables of habits, of names of Keras 2, and of TensorFlow's private modules."""

import pytest

from millrace_ipu.porting.keras2 import HABITS, Edit, habits_of
from millrace_ipu.porting.keras2_names import (
    BETTER,
    GONE,
    MODULES,
    NAMES,
    advice,
    new_name,
)
from millrace_ipu.porting.private_paths import PACKAGES, packages_of, public_name
from millrace_ipu.porting.replacements import exists


def test_new_names_exist_and_old_ones_do_not():
    new = [*NAMES.values(), *MODULES.values()]
    assert [name for name in new if name.startswith("keras.") and not exists(name)] == []
    assert [name for name in (*NAMES, *GONE, *BETTER) if exists(name)] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("keras.layers.experimental.preprocessing.Rescaling", "keras.layers.Rescaling"),
        ("keras.layers.core.Dense", "keras.layers.Dense"),
        ("keras.utils.np_utils.to_categorical", "keras.utils.to_categorical"),
        ("keras.optimizers.legacy.Adam", "keras.optimizers.Adam"),
        ("keras.optimizer_v2.optimizer_v2.OptimizerV2", "keras.optimizers.Optimizer"),
        ("keras.backend.mean", "keras.ops.mean"),
        ("keras.layers.experimental.SyncBatchNormalization", "keras.layers.BatchNormalization"),
        ("keras.experimental.CosineDecay", "keras.optimizers.schedules.CosineDecay"),
        ("keras.layers.Dense", None),
        ("keras.backend.learning_phase", None),
    ],
)
def test_new_name(old, new):
    assert new_name(old) == new
    assert new is None or exists(new)


def test_advice_for_names_that_are_gone():
    assert advice("keras.backend.learning_phase") == "the argument `training` of call()"
    assert advice("keras.preprocessing.text.Tokenizer") == "keras.layers.TextVectorization"
    assert advice("keras.layers.Dense") is None


def test_habits_of_functions_modules_and_methods():
    assert [h.to for h in habits_of("keras.optimizers.SGD") if h.argument == "lr"] == [
        "learning_rate"
    ]
    assert {h.argument for h in habits_of(".fit")} >= {"workers", "nb_epoch"}
    assert not list(habits_of("keras.ops.mean"))
    assert not list(habits_of(".fitting"))


def test_edits_have_what_they_need():
    needs = (Edit.RENAME, Edit.SUFFIX, Edit.ARGUMENT, Edit.KEYWORDS, Edit.EXPRESSION)
    assert [h for h in HABITS if (h.edit in needs) != bool(h.to)] == []
    assert [h for h in HABITS if not h.instead] == []


@pytest.mark.parametrize(
    ("private", "public"),
    [
        ("data.ops.dataset_ops.Dataset", "data.Dataset"),
        ("data.ops.dataset_ops.DatasetV2", "data.Dataset"),
        ("framework.ops.convert_to_tensor", "convert_to_tensor"),
        ("framework.dtypes.float32", "float32"),
        ("framework.constant_op.constant", "constant"),
        ("ops.math_ops.reduce_mean", "math.reduce_mean"),
        ("ops.array_ops.reshape", "reshape"),
        ("ops.array_ops", None),
        ("training.gradient_descent.GradientDescentOptimizer", None),
        ("util.nest.flatten", "nest.flatten"),
        ("ops.random_ops.random_uniform", "random.uniform"),
    ],
)
def test_public_names(private, public):
    name = public_name(f"tensorflow.python.{private}", exists)
    assert name is not None
    if public is not None:
        assert name == f"tensorflow.{public}"
        assert exists(name)


def test_unlisted_modules_have_none():
    assert public_name("tensorflow.python.nowhere.name", exists) is None
    assert public_name("tensorflow.data.Dataset", exists) is None
    assert packages_of("tensorflow.python.framework.ops") == PACKAGES["framework.ops"]
