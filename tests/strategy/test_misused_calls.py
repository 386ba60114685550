"""Calls of new users that no model is trained by: what each is given, and what it says to it."""

import jax
import keras
import numpy as np
import pytest

import millrace
from millrace.errors import (
    LoopError,
    ModelError,
    OptionError,
    PlanError,
    ScheduleError,
)

X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
CALLBACK, STATISTICS = millrace.callbacks.OutfeedCallback, millrace.callbacks.TensorStatistics
IDENTITY = jax.jit(lambda x: x)


def stage(x):
    return x


def made(kind, *args, **options):
    return lambda strategy, model: kind(*args, **options)


def strategy_in_place_of_its_scope(strategy, model):
    with strategy:
        pass


def run_of(fn, *args):
    return lambda strategy, model: strategy.run(fn, *args)


def pipeline(**options):
    stages, options = [stage, stage], {"device_mapping": [0, 0], **options}
    return lambda strategy, model: millrace.pipeline(
        stages, 2, **{"strategy": strategy, "inputs": [1.0], **options}
    )


def fit_with_a_schedule(schedule):
    def call(strategy, model):
        model.set_pipeline_stage_assignment([0, 1])
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=2,
            device_mapping=[0, 0],
            pipeline_schedule=schedule,
        )
        model.fit(X, Y, batch_size=2, verbose=0)

    return call


def gradients_of(fn, variables):
    return lambda strategy, model: millrace.value_and_grad(fn, variables(model))


def summary(**options):
    return lambda strategy, model: model.print_pipeline_stage_assignment_summary(**options)


MISUSES = {
    "report a number": (
        made(millrace.Strategy, report_dir=3),
        OptionError,
        ["report_dir must be", "3 of type"],
    ),
    "report bytes": (
        made(millrace.Strategy, report_dir=b"runs"),
        OptionError,
        ["b'runs' of type bytes"],
    ),
    "export to a number": (
        lambda strategy, model: strategy.export_executables(3),
        OptionError,
        ["directory must be the path", "Received: 3 of type int"],
    ),
    "load from None": (
        lambda strategy, model: strategy.load_executables(None),
        OptionError,
        ["Received: None of type NoneType"],
    ),
    "run with a number": (run_of(IDENTITY, 3), OptionError, ["args of run()", "Set args=(3,)."]),
    "run with an array": (run_of(IDENTITY, X), OptionError, ["type ndarray", "(the array,)"]),
    "run with text": (run_of(IDENTITY, "abc"), OptionError, ["Set args=('abc',)."]),
    "run with None": (run_of(IDENTITY, None), OptionError, ["Set args=()."]),
    "run with two arguments": (run_of(IDENTITY, [1], 2), OptionError, ["kwargs of run()", "2 of"]),
    "strategy as a scope": (
        strategy_in_place_of_its_scope,
        PlanError,
        ["`with strategy:`", "`with strategy.scope():`"],
    ),
    "compile nothing": (made(millrace.compile, None), OptionError, ["None of type NoneType", "@"]),
    "compile text": (made(millrace.compile, "train"), OptionError, ["'train' of type str"]),
    "stage of text": (made(millrace.PipelineStage, "1"), OptionError, ["PipelineStage('1')"]),
    "stage negative": (made(millrace.PipelineStage, -1), OptionError, ["PipelineStage(-1)", "0"]),
    "gradients by a number": (
        gradients_of(print, lambda model: 3),
        OptionError,
        ["Received: 3 of type int", "variables=[variable]"],
    ),
    "gradients by a model": (
        gradients_of(print, lambda model: model),
        OptionError,
        ["type Sequential", "variables=model.trainable_variables"],
    ),
    "gradients of a number": (
        gradients_of(1.0, lambda model: model.trainable_variables),
        LoopError,
        ["1.0 of type float", "returns the loss"],
    ),
    "detach no model": (
        lambda strategy, model: strategy.detach(None),
        ModelError,
        ["detach() takes a keras.Model", "NoneType"],
    ),
    "report of the data first": (
        lambda strategy, model: strategy.memory_report((X, Y), model),
        ModelError,
        ["Received: an object of type tuple", "strategy.attach(model)"],
    ),
    "summary to a number": (summary(print_fn=3), OptionError, ["Received: 3", "print_fn=print"]),
    "summary of wide text": (summary(line_length="80"), OptionError, ["line_length", "'80'"]),
    "callback without a queue": (made(CALLBACK, None), OptionError, ["Received: None", "Outfeed"]),
    "statistics to a number": (made(STATISTICS, "*", console=3), OptionError, ["print_every=0"]),
    "pipeline of no strategy": (pipeline(strategy=3), OptionError, ["Received: 3", "Strategy()"]),
    "pipeline of an array": (pipeline(infeed=X), OptionError, ["ndarray", "InfeedQueue(dataset)"]),
    "pipeline of no optimizer": (
        pipeline(optimizer_function="sgd"),
        OptionError,
        ["Received: 'sgd'", "lambda loss: (optimizer, loss)"],
    ),
    "schedule of no arguments": (
        fit_with_a_schedule(lambda: "0F0 0B0"),
        ScheduleError,
        ["does not take two numbers", "schedule(num_stages, num_micro_batches)"],
    ),
    "timeout of text": (
        made(millrace.distributed.initialize, initialization_timeout="5m"),
        OptionError,
        ["initialization_timeout must be", "'5m' of type str"],
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_the_message_has_the_value_and_the_right_call(strategy, misuse):
    call, error, fragments = MISUSES[misuse]
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(error) as caught:
        call(strategy, model)
    message = str(caught.value)
    assert [part for part in fragments if part not in message] == [], message
    assert strategy.compile_log == ()


@pytest.mark.parametrize("method", ["fit", "compile", "set_pipelining_options", "precompile"])
def test_a_method_of_models_is_no_method_of_the_strategy(strategy, method):
    with pytest.raises(
        AttributeError, match=rf"method of the models of a strategy: model\.{method}"
    ):
        getattr(strategy, method)
    with pytest.raises(AttributeError, match=r"has no attribute 'no_such_thing'$"):
        strategy.no_such_thing  # noqa: B018


def test_the_number_of_a_stage_may_be_of_numpy(strategy):
    assert millrace.PipelineStage(np.int64(1)).stage == 1
