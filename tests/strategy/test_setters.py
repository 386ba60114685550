"""The setters of options, and the one rule for None, over all options of the table."""

import dataclasses
import inspect
import json
import math
import pathlib

import keras
import pytest

from millrace.api.strategy.option_setter import default_text
from millrace.api.strategy.saving import OPTIONS_FILE, load_options, save_options
from millrace.api.strategy.setters import SETTERS
from millrace.base.options import (
    MIB,
    TABLE,
    Accumulation,
    MetricReduction,
    Options,
    Pipelining,
    RecomputationMode,
    Reduction,
    arguments_of,
)
from millrace.base.options.table import RECOMPUTATION
from millrace.errors import OptionError

pytestmark = pytest.mark.quick


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


# A value of each option that is not its default, as users give it and as it is kept.
VALUES = {
    "gradient_accumulation_steps_per_replica": (4, 4),
    "gradient_accumulation_reduction_method": ("SUM", Reduction.SUM),
    "dtype": ("float32", "float32"),
    "synchronized_batch_statistics": (True, True),
    "device_mapping": ([0, 0], (0, 0)),
    "pipeline_schedule": ("gpipe", "gpipe"),
    "gradient_accumulation_dtype": ("float32", "float32"),
    "forward_propagation_stages_compiler_options": ([{}, None], ({}, {})),
    "backward_propagation_stages_compiler_options": ([{}, {}], ({}, {})),
    "weight_update_compiler_options": ({"a": 1}, {"a": 1}),
    "batch_serialization_iterations": (2, 2),
    "replicated_metric_reduction_method": (MetricReduction.LIST, MetricReduction.LIST),
    "replicated_optimizer_state_sharding": (True, True),
    "replicated_weight_sharding": (True, True),
    "micro_batch": ("AUTO", "auto"),
    "recomputation_mode": ("auto", RecomputationMode.AUTO),
    "budget": ("1GB", 10**9),
    "offload_weight_update_variables": (False, False),
    "offload_activations": (False, False),
    "offload_gradient_accumulation_buffers": (False, False),
    "offload_weights": (False, False),
    "prefetch_depth": (5, 5),
    "max_block_bytes": (MIB, MIB),
    "max_resident_bytes": (0, 0),
    "max_wait_seconds": (60, 60.0),
    "asynchronous_callbacks": (True, True),
    "stop_within": (8, 8),
}
CASES = [
    (setter.__name__, argument) for setter in SETTERS for argument in arguments_of(setter.__name__)
]
ALONE = {"stop_within": {"asynchronous": True}, "budget": {}}  # and what goes with it


def in_force(model, setter, argument):
    entry = arguments_of(setter)[argument]
    record = getattr(options(model), entry.record) if entry.record else options(model)
    return getattr(record, entry.field)


def set_one(model, setter, argument):
    value, kept = VALUES[arguments_of(setter)[argument].option.name]
    getattr(model, setter)(**{argument: value}, **ALONE.get(argument, {}))
    assert in_force(model, setter, argument) == kept
    return kept


def test_every_option_of_the_table_has_a_setter():
    settable = {id(entry) for setter, _ in CASES for entry in arguments_of(setter).values()}
    assert {id(entry) for entry in TABLE if entry.saved_as != "at_a_time"} == settable
    assert {entry.option.name for entry in TABLE} == set(VALUES)


@pytest.mark.parametrize(("setter", "argument"), CASES)
def test_an_argument_left_out_or_none_keeps_the_value_in_force(model, setter, argument):
    entry = arguments_of(setter)[argument]
    assert in_force(model, setter, argument) == entry.default
    kept = set_one(model, setter, argument)
    assert kept != entry.default
    before = options(model)
    names = dict.fromkeys(arguments_of(setter))
    getattr(model, setter)(**names)  # all None
    assert options(model) == before
    if setter != RECOMPUTATION:  # where a mode that is left out is "auto"
        getattr(model, setter)()
        assert options(model) == before


@pytest.mark.parametrize(("setter", "argument"), CASES)
def test_auto_is_the_default_again(model, setter, argument):
    entry = arguments_of(setter)[argument]
    if entry.default is not None:
        assert not entry.option.auto
    elif argument not in ("budget", "gradient_accumulation_steps_per_replica"):
        set_one(model, setter, argument)
        getattr(model, setter)(**{argument: "Auto"})
        assert in_force(model, setter, argument) is None


@pytest.mark.parametrize(("setter", "argument"), CASES)
def test_each_option_is_saved_and_loaded(strategy, tmp_path, model, setter, argument):
    kept = set_one(model, setter, argument)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert in_force(loaded, setter, argument) == kept
    assert options(loaded) == options(model)


def test_the_keys_of_the_file(model, tmp_path):
    save_options(model._millrace, tmp_path)
    data = json.loads((tmp_path / OPTIONS_FILE).read_text())
    assert {name: set(part) for name, part in data.items() if isinstance(part, dict)} == {
        "accumulation": {
            *("steps", "reduction", "dtype", "micro_batch", "synchronized_statistics", "at_a_time"),
        },
        "pipelining": {
            *("steps", "reduction", "dtype", "schedule", "device_mapping", "forward_options"),
            *("backward_options", "update_options", "batch_serialization", "schedule_stages"),
        },
        "replication": {"metrics", "shard_optimizer_state", "shard_weights"},
        "recomputation": {"mode", "budget"},
        "offload": {"optimizer_state", "activations", "accumulators", "weights"},
        "feed": {"prefetch_depth", "max_block_bytes", "max_resident_bytes", "max_wait_seconds"},
    }
    others = {name for name, part in data.items() if not isinstance(part, dict)}
    assert others == {"asynchronous_callbacks", "stop_within", "stages"}


def test_a_file_of_an_earlier_version(model, tmp_path):
    data = {"accumulation": {"steps": 4, "at_a_time": 2}, "pipelining": {"schedule": "1f1b"}}
    (tmp_path / OPTIONS_FILE).write_text(json.dumps(data))
    load_options(model._millrace, tmp_path)
    assert options(model) == Options(
        accumulation=Accumulation(steps=4, batch_serialization=2),
        pipelining=Pipelining(schedule="1f1b"),
    )


def test_callbacks_for_no_steps_end_stop_within(model):
    model.set_asynchronous_callbacks(True, stop_within=8)
    model.set_asynchronous_callbacks(stop_within=4)
    assert options(model).stop_within == 4
    model.set_asynchronous_callbacks(False)
    assert options(model) == Options()


def as_markdown():
    lines = []
    for each in SETTERS:
        lines += [f"## {each.__name__}", "", "| option | default | meaning |", "|---|---|---|"]
        for name, entry in arguments_of(each.__name__).items():
            lines.append(f"| `{name}` | {default_text(entry)} | {entry.option.doc} |")
        lines.append("")
    return "\n".join(lines)


def test_the_page_lists_every_option():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "options.md").read_text()
    assert as_markdown() in page, f"docs/options.md must have these tables:\n{as_markdown()}"


def test_the_docstring_of_a_setter_has_its_options():
    for setter in SETTERS:
        for argument, entry in arguments_of(setter.__name__).items():
            text = inspect.getdoc(setter) or ""
            assert f"\n    {argument}: {entry.option.doc[:20]}" in text


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
        OptionError, match=r"one of \['auto', 'mean', 'sum', 'running_mean'.*'\]. Received: "
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
        ("max_wait_seconds", 0, "max_wait_seconds must be a number of seconds above 0"),
        ("max_wait_seconds", "long", "Set max_wait_seconds=600 for ten minutes"),
        ("max_block_bytes", math.nan, "Received: nan"),
    ],
)
def test_feed_bounds(model, option, value, message):
    with pytest.raises(OptionError, match=message):
        model.set_infeed_queue_options(**{option: value})


def test_asynchronous_is_true_or_false(model):
    with pytest.raises(OptionError, match=r"asynchronous must be True or False\. Received: 1"):
        model.set_asynchronous_callbacks(1)


@pytest.mark.parametrize("set_options", SETTERS, ids=lambda each: each.__name__)
def test_help_shows_summary_arguments_and_errors(set_options):
    text = inspect.getdoc(set_options)
    summary, _, rest = text.partition("\n\n")
    assert summary.endswith(".")
    assert not summary.startswith("Args")
    arguments, raises, errors = rest.partition("\nRaises:\n")
    assert raises
    assert "OptionError" in errors
    for name in arguments_of(set_options.__name__):
        assert f"\n    {name}: " in arguments
    assert text.count("Args:") == 1
    assert "argument left out, or None, keeps the value in force." in arguments
