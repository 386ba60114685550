"""Descriptions of programs, and what is said of their differences."""

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace.compiling.log import all_observers
from millrace.errors import DataError
from millrace.operations.golden import GoldenText, describe, read, stable_names, write
from millrace.operations.golden_difference import differences

BASE = {"units": 16, "optimizer": "sgd", "loss": "mse", "rows": 4}


def made(change="", **options):
    """Trains a small model, in which something may differ, and returns its description."""
    options = BASE | options
    if change == "numbers":
        layers.Dense(1)
    if change == "policy":
        keras.config.set_dtype_policy("mixed_float16")
    strategy = millrace.Strategy(devices=1, cache_dir=None)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,))])
        if change == "layer":
            model.add(layers.Dense(8, activation="tanh"))
        name = "other" if change == "name" else "inner"
        model.add(layers.Dense(options["units"], "relu", name=name))
        if change == "dropout":
            model.add(layers.Dropout(0.5))
        if change == "recomputation":
            model.add(millrace.layers.RecomputationCheckpoint())
        model.add(layers.Dense(3))
    model.compile(options["optimizer"], options["loss"], steps_per_execution=2)
    if change == "accumulation":
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    if change == "recomputation":
        model.set_recomputation_options(mode="auto")
    rows = options["rows"]
    executables = []
    all_observers.append(executables.append)
    try:
        x, y = np.ones((2 * rows, 8), "f"), np.ones((2 * rows, 3), "f")
        model.fit(x, y, batch_size=rows, verbose=0)
    finally:
        all_observers.pop()
    return describe(executables)


@pytest.fixture(scope="module")
def base():
    return made()


def test_what_is_written_can_be_read(base):
    assert read(write(base)) == base
    (program,) = base.programs
    assert program.name == "train_run of sequential"
    assert program.policies == {"float32": 2}
    assert program.rows["inner", "layer", "forward"].products == 2 * 4 * 8 * 16
    assert program.rows["dense", "layer", "backward"].products == 2 * 2 * 4 * 16 * 3
    assert program.arguments["float32[8,16]"] == 1
    assert program.peak_bytes > 4 * (8 * 16 + 16 * 3)
    assert base.environment.startswith("cpu, jax 0.")


@pytest.mark.parametrize(
    ("change", "options", "lines"),
    [
        ("", {}, []),
        ("numbers", {}, []),
        ("name", {}, []),
        ("layer", {}, ["came     layer dense, forward: ", "argument float32[8,8]: 0 -> 1 of"]),
        ("dropout", {}, ["came     layer dropout, forward: ", "uint32[2]: 0 -> 1"]),
        ("policy", {}, ["policy   float32: 2 -> 0 layers", "mixed_float16: 0 -> 2 layers"]),
        ("accumulation", {}, ["came     gradient accumulation: ", "(+100.0%)"]),
        ("recomputation", {}, ["came     layer inner, recomputation: "]),
        ("", {"units": 24}, ["changed  layer inner, forward: FLOPs ", "[8,24]: 0 -> 1 of them"]),
        ("", {"optimizer": "adam"}, ["came     Adam, update: ", "went     SGD, update: "]),
        ("", {"loss": "mae"}, ["changed  loss, backward: FLOPs "]),
        ("", {"rows": 8}, ["layer dense, backward: FLOPs ", "peak     bytes "]),
    ],
)
def test_the_differences_of_a_change(base, change, options, lines):
    found = differences(base, made(change, **options))
    text = "\n".join(found)
    assert bool(found) == bool(lines)
    for line in lines:
        assert line in text
    if lines:
        assert "train_run of sequential" in text
        total = "bytes" if change == "recomputation" else "FLOPs"  # a relu again, another fused
        assert f"in all   {total} " in text
    if change == "layer":  # the last one, which Keras numbers otherwise now, is the same
        assert "changed  layer dense" not in text


def of_other_version(text, old="", new=""):
    written = write(text).replace("jax 0.", "jax 7.")
    assert old in written
    return read(written.replace(old, new))


def test_other_versions_may_fuse_otherwise(base):
    (program,) = base.programs
    row = program.rows["inner", "layer", "forward"]
    peak = f"{program.peak_bytes:,} bytes"
    assert differences(of_other_version(base, peak, "7 bytes"), base) == []
    assert differences(read(write(base).replace(peak, "7 bytes")), base)
    assert differences(of_other_version(base, f"{row.flops:,}", "9"), base) == []
    lines = differences(of_other_version(base, f"{row.products:,}", "9"), base)
    assert "layer inner, forward: FLOPs of products 9 -> 1,024" in lines[1]
    assert "Written under cpu, jax 7." in lines[-1]


def test_programs_come_and_go(base):
    none = GoldenText(base.environment, ())
    assert "train_run of sequential: went" in differences(base, none)[0]
    assert "train_run of sequential: came" in differences(none, base)[0]


@pytest.mark.parametrize(
    "line", ["<<<<<<< HEAD", "  peak", "  argument  f32[]  three", "  a  layer  forward  1  2"]
)
def test_a_file_that_nobody_has_written_so(base, line):
    with pytest.raises(DataError, match=r"Line 7 .*--update-golden"):
        read("\n".join([*write(base).splitlines()[:6], line]))


def test_names_that_keras_has_numbered():
    nested = keras.Sequential([layers.Dense(1), layers.Dense(1)], name="encoder")
    model = keras.Sequential(
        [layers.Conv2D(1, 1), layers.GRU(1), nested, layers.Dense(1, name="dense_of_mine")]
    )
    names = stable_names(model)
    assert names[model.layers[0].name] == "conv2d"
    assert names[model.layers[1].name] == "gru"
    assert [names[each.name] for each in nested.layers] == ["dense", "dense_1"]
    assert not {"encoder", "dense_of_mine"} & set(names)
