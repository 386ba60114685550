import dataclasses
import math

import keras
import pytest

from millrace.errors import OptionError
from millrace.options import MIB, Options, Reduction


@pytest.fixture
def model(strategy):
    return strategy.attach(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))


def options(model):
    return model._millrace.setup.options


def test_options_are_frozen_and_replaced_whole(model):
    before = options(model)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    assert before == Options()
    assert options(model).accumulation.steps == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.accumulation.steps = 2


def test_none_keeps_steps_and_method_and_dtype_is_set_anew(model):
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=4,
        gradient_accumulation_reduction_method="SUM",
        dtype="float32",
    )
    model.set_gradient_accumulation_options()
    accumulation = options(model).accumulation
    assert (accumulation.steps, accumulation.reduction) == (4, Reduction.SUM)
    assert accumulation.dtype is None


def test_feed_options_are_replaced_by_every_call(model):
    model.set_infeed_queue_options(prefetch_depth=5, max_block_bytes=MIB)
    assert options(model).feed.prefetch_depth == 5
    model.set_infeed_queue_options(max_resident_bytes=0)
    assert options(model).feed == dataclasses.replace(Options().feed, max_resident_bytes=0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "at least 1. Received: 0. Set gradient_accumulation_steps_per_replica=1"),
        (-3, "Received: -3"),
        (math.nan, "whole number of at least 1. Received: nan of type float"),
        (math.inf, "Received: inf"),
        (4.0, r"Received: 4.0 of type float. Set gradient_accumulation_steps_per_replica=4"),
        (True, "Received: True of type bool"),
        ("4", "Received: '4' of type str"),
    ],
)
def test_steps_that_are_no_number_of_steps(model, value, message):
    with pytest.raises(OptionError, match=message):
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=value)


@pytest.mark.parametrize("value", ["average", 3, math.nan])
def test_an_unknown_reduction_lists_the_names(model, value):
    with pytest.raises(
        OptionError, match=r"one of \['mean', 'sum', 'running_mean'.*'\]. Received: "
    ):
        model.set_gradient_accumulation_options(gradient_accumulation_reduction_method=value)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("float33", "dtype='float33' is not a dtype .for variable .*kernel"),
        ("int32", "dtype='int32' cannot hold gradients"),
        (lambda variable: "int8", "cannot hold gradients"),
    ],
)
def test_an_accumulator_needs_a_floating_dtype(model, dtype, message):
    with pytest.raises(OptionError, match=message):
        model.set_gradient_accumulation_options(dtype=dtype)


@pytest.mark.parametrize(
    ("setter", "option", "message"),
    [
        (
            "set_gradient_accumulation_options",
            "gradient_accumulation_step_per_replica",
            "Did you mean gradient_accumulation_steps_per_replica?",
        ),
        (
            "set_gradient_accumulation_options",
            "num_mini_batches",
            "set gradient_accumulation_steps_per_replica instead",
        ),
        ("set_gradient_accumulation_options", "opt", "the one given to compile"),
        (
            "set_gradient_accumulation_options",
            "experimental_normalize_gradients",
            "reduction_method='mean' for True",
        ),
        ("set_infeed_queue_options", "prefetch", "Did you mean prefetch_depth?"),
        ("set_infeed_queue_options", "dataset", "follows from the data given to fit"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(model, setter, option, message):
    with pytest.raises(OptionError, match=message):
        getattr(model, setter)(**{option: 2})


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("prefetch_depth", 0, "prefetch_depth must be at least 1. Received: 0"),
        ("max_block_bytes", 0, "max_block_bytes must be at least 1"),
        ("max_resident_bytes", -1, "max_resident_bytes must be at least 0"),
        ("max_block_bytes", math.nan, "Received: nan"),
    ],
)
def test_feed_bounds(model, option, value, message):
    with pytest.raises(OptionError, match=message):
        model.set_infeed_queue_options(**{option: value})


def test_asynchronous_is_true_or_false(model):
    with pytest.raises(OptionError, match=r"asynchronous must be True or False\. Received: 1"):
        model.set_asynchronous_callbacks(1)
