"""Mistakes of new users, a row each: the error, the value that was given, and what to do."""

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import DataError, DeviceError, ModelError, OptionError, PlanError

X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
WATCH, STATISTICS = millrace.callbacks.NaNWatch, millrace.callbacks.TensorStatistics
STEPS = "gradient_accumulation_steps_per_replica"


def options_of(method, **options):
    return lambda strategy, model: getattr(model, method)(**options)


def accumulating(value):
    return options_of("set_gradient_accumulation_options", **{STEPS: value})


def strategy_of(**options):
    return lambda strategy, model: millrace.Strategy(**options)


def made(kind, *args, **options):
    return lambda strategy, model: kind(*args, **options)


def stages(value):
    return lambda strategy, model: model.set_pipeline_stage_assignment(value)


def fit(**options):
    return lambda strategy, model: model.fit(X, Y, verbose=0, **options)


def listed_twice(strategy, model):
    watch = STATISTICS("*")
    model.fit(X, Y, verbose=0, callbacks=[watch, watch])


def scope_in_a_scope(strategy, model):
    with strategy.scope(), strategy.scope():
        pass


def stage_outside_of_a_scope(strategy, model):
    with millrace.PipelineStage(0):
        pass


MISTAKES = {
    "no devices": (strategy_of(devices=0), OptionError, ["at least 1", "Received: 0"]),
    "negative devices": (strategy_of(devices=-1), OptionError, ["Received: -1"]),
    "devices a number as text": (strategy_of(devices="4"), OptionError, ["'4'", "'cpu:8'"]),
    "devices True": (strategy_of(devices=True), OptionError, ["devices=True", "a number"]),
    "devices of no platform": (strategy_of(devices="gpu"), DeviceError, ["gpu", "Set devices to"]),
    "too many devices": (strategy_of(devices=99), DeviceError, ["99", "devices='cpu:99'"]),
    "devices empty": (strategy_of(devices=[]), OptionError, ["devices=[]"]),
    "devices of names": (strategy_of(devices=["cpu"]), OptionError, ["devices=['cpu']"]),
    "policy unknown": (strategy_of(on_recompile="fail"), OptionError, ["'fail'", "'error'"]),
    "policy None": (strategy_of(on_recompile=None), OptionError, ["None", "'log'"]),
    "cache a number": (
        strategy_of(cache_dir=3),
        OptionError,
        ["Received: 3", "path of a directory"],
    ),
    "accumulate 0": (accumulating(0), OptionError, ["Received: 0", f"Set {STEPS}=1 or more"]),
    "accumulate -1": (accumulating(-1), OptionError, ["Received: -1", f"Set {STEPS}=1 or more"]),
    "accumulate text": (accumulating("4"), OptionError, ["'4' of type str", "whole number"]),
    "accumulate True": (accumulating(True), OptionError, ["True of type bool"]),
    "accumulate a float": (accumulating(2.5), OptionError, ["2.5 of type float"]),
    "accumulate a whole float": (accumulating(2.0), OptionError, [f"Set {STEPS}=2."]),
    "accumulate a list": (accumulating([4]), OptionError, ["[4] of type list"]),
    "reduction unknown": (
        options_of(
            "set_gradient_accumulation_options", gradient_accumulation_reduction_method="avg"
        ),
        OptionError,
        ["'avg'", "'mean'"],
    ),
    "accumulator of whole numbers": (
        options_of("set_gradient_accumulation_options", dtype="int32"),
        OptionError,
        ["'int32' cannot hold gradients", "'float32'"],
    ),
    "prefetch nothing": (
        options_of("set_infeed_queue_options", prefetch_depth=0),
        OptionError,
        ["Received: 0", "Set prefetch_depth=1"],
    ),
    "mode unknown": (
        options_of("set_recomputation_options", mode="all"),
        OptionError,
        ["'all'", "'auto'"],
    ),
    "asynchronous text": (
        options_of("set_asynchronous_callbacks", asynchronous="yes"),
        OptionError,
        ["'yes'", "True or False"],
    ),
    "stop without steps": (
        options_of("set_asynchronous_callbacks", stop_within=1),
        OptionError,
        ["stop_within=1", "asynchronous=True"],
    ),
    "schedule misspelled": (
        options_of("set_pipelining_options", pipeline_schedule="gpip"),
        ValueError,
        ["'gpip'", "Did you mean 'gpipe'?"],
    ),
    "device a text": (
        options_of("set_pipelining_options", device_mapping=[0, "1"]),
        OptionError,
        ["device_mapping[1]", "'1'"],
    ),
    "too few stages": (stages([0]), OptionError, ["2 layer calls", "a list of 1"]),
    "stages backwards": (stages([1, 0]), OptionError, ["in stage 1", "The first stage is 0"]),
    "stages with a gap": (stages([0, 2]), OptionError, ["in stage 2", "or 1, the next"]),
    "stages negative": (stages([0, -1]), OptionError, ["in stage -1", "or 1, the next"]),
    "stages of text": (stages(["0", "1"]), OptionError, ["'0', of type str", "whole numbers"]),
    "stages None": (stages(None), OptionError, ["NoneType", "must be a list"]),
    "watch of no updates": (made(WATCH, last=0), OptionError, ["Received: 0", "Set last=1"]),
    "watch of text": (made(WATCH, last="5"), OptionError, ["'5' of type str"]),
    "statistics of nothing": (made(STATISTICS), OptionError, ["no tensor", "activations='*'"]),
    "statistics at no time": (made(STATISTICS, "*", when="later"), OptionError, ["'later'"]),
    "statistics every 0": (made(STATISTICS, "*", every=0), OptionError, ["Set every=1 or more"]),
    "statistics nowhere": (made(STATISTICS, "*", histograms=True), OptionError, ["tensorboard="]),
    "statistics of no layer": (
        fit(callbacks=[STATISTICS("nope")]),
        OptionError,
        ["'nope'", "a, b"],
    ),
    "callback listed twice": (
        listed_twice,
        OptionError,
        ["TensorStatistics twice", "List it once"],
    ),
    "queue mode unknown": (
        made(millrace.OutfeedQueue, "first"),
        OptionError,
        ["'first'", "'last'"],
    ),
    "queue of nothing": (made(millrace.InfeedQueue, None), DataError, ["None of type NoneType"]),
    "queue of a number": (made(millrace.InfeedQueue, 3), DataError, ["3 of type int"]),
    "repeat text": (made(millrace.repeat, "3", print), OptionError, ["'3'", "whole number"]),
    "repeat backwards": (made(millrace.repeat, -3, print), OptionError, ["Received: -3", "n=0"]),
    "run of a plain function": (
        lambda strategy, model: strategy.run(print, [1]),
        OptionError,
        ["print", "jax.jit(fn)"],
    ),
    "attach no model": (
        lambda strategy, model: strategy.attach(None),
        ModelError,
        ["NoneType", "keras.Sequential"],
    ),
    "load from nowhere": (
        lambda strategy, model: strategy.load_executables("/nonexistent"),
        OptionError,
        ["'/nonexistent'", "export_executables()"],
    ),
    "report of another strategy's model": (
        lambda strategy, model: millrace.Strategy(devices=1).memory_report(model, (X, Y)),
        ModelError,
        ["model of this strategy", "strategy.attach(model)"],
    ),
    "scope in a scope": (scope_in_a_scope, PlanError, ["already active", "Leave the first"]),
    "stage outside of a scope": (
        stage_outside_of_a_scope,
        PlanError,
        ["PipelineStage(0)", "Move it"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_has_the_value_and_what_to_do(strategy, mistake):
    call, error, fragments = MISTAKES[mistake]
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(2, name="a"), keras.layers.Dense(1, name="b")]
        )
    model.compile("sgd", "mse")
    with pytest.raises(error) as caught:
        call(strategy, model)
    message = str(caught.value)
    assert [part for part in fragments if part not in message] == [], message
    assert strategy.compile_log == ()
