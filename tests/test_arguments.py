"""Arguments that a call does not take: the name that was meant, or the list of what there is."""

import inspect

import keras
import pytest

import millrace
from millrace.base.arguments import checked, names_meant
from millrace.errors import OptionError

ACCUMULATION = "gradient_accumulation_steps_per_replica"
WATCH, STATISTICS = millrace.callbacks.NaNWatch, millrace.callbacks.TensorStatistics


@pytest.mark.parametrize(
    ("setter", "name", "meant"),
    [
        ("set_pipelining_options", "micro_batches", ACCUMULATION),
        ("set_pipelining_options", "num_microbatches", ACCUMULATION),
        ("set_pipelining_options", "schedule", "pipeline_schedule"),
        ("set_pipelining_options", "devices", "device_mapping"),
        ("set_gradient_accumulation_options", "gradient_accumulation_steps", ACCUMULATION),
        ("set_gradient_accumulation_options", "steps", ACCUMULATION),
        ("set_gradient_accumulation_options", "accumulation_steps", ACCUMULATION),
        ("set_gradient_accumulation_options", "gradient_acumulation_steps", ACCUMULATION),
        ("set_recomputation_options", "memory", "budget"),
        ("set_recomputation_options", "max_memory", "budget"),
        ("set_infeed_queue_options", "prefetch", "prefetch_depth"),
        ("set_replication_options", "metrics", "replicated_metric_reduction_method"),
        ("set_asynchronous_callbacks", "stop_after", "stop_within"),
    ],
)
def test_an_option_by_another_word_for_it(strategy, setter, name, meant):
    model = strategy.attach(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(OptionError, match=rf"{setter}\(\) has no option '{name}'") as caught:
        getattr(model, setter)(**{name: 4})
    assert f"Did you mean {meant}?" in str(caught.value)


@pytest.mark.parametrize("name", ["zzz", "warmup", "learning_rate", "verbose"])
def test_no_guess_for_a_name_that_is_far_from_all(strategy, name):
    model = strategy.attach(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(OptionError, match=r"It has: mode, budget\.") as caught:
        model.set_recomputation_options(**{name: 4})
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (millrace.Strategy, {"device": 2}, "Strategy() has no option 'device'. Did you mean dev"),
        (millrace.Strategy, {"replicas": 2}, "Did you mean devices?"),
        (WATCH, {"layers": "a*"}, "NaNWatch() has no option 'layers'. Did you mean gradients? It"),
        (
            STATISTICS,
            {"layers": "*"},
            "TensorStatistics() has no option 'layers'. Did you mean act",
        ),
        (millrace.OutfeedQueue, {"size": 3}, "Did you mean max_bytes? It has: mode, max_bytes."),
        (millrace.MaybeOutfeedQueue, {"filter": "a"}, "Did you mean filters?"),
        (millrace.InfeedQueue, {"data": [1]}, "InfeedQueue() has no option 'data'. Did you mean d"),
        (millrace.repeat, {"steps": 3, "body": abs}, "repeat() has no option 'steps'. Did you mea"),
        (millrace.while_loop, {"cond": abs}, "Did you mean condition?"),
        (millrace.compile, {"function": abs}, "compile() has no option 'function'. Did you mean f"),
        (millrace.callbacks.OutfeedCallback, {"queue": 1}, "Did you mean outfeed_queue?"),
        (millrace.dataset_benchmark, {"data": 1}, "Did you mean dataset?"),
        (millrace.PipelineStage, {"number": 1}, "It has: stage."),
    ],
)
def test_every_public_call_names_what_was_meant(call, arguments, message):
    with pytest.raises(OptionError) as caught:
        call(**arguments)
    assert message in str(caught.value)


def test_values_that_have_to_be_given_by_name(strategy):
    model = strategy.attach(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(OptionError) as caught:
        model.set_gradient_accumulation_options(4)
    assert str(caught.value) == (
        "set_gradient_accumulation_options() takes no arguments by position. Received one more: "
        f"4. Give it by its name, such as {ACCUMULATION}=."
    )
    with pytest.raises(OptionError, match=r"Strategy\(\) takes 1 argument by position.*cache_dir="):
        millrace.Strategy(1, "cache")
    with pytest.raises(OptionError, match=r"Received one more: 'nan'\. Leave it out\."):
        millrace.repeat(1, abs, None, None, "nan")


def test_an_argument_that_is_missing_is_what_python_says(strategy):
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dataset'"):
        millrace.InfeedQueue()


def test_a_part_of_several_names_suggests_them_all():
    assert names_meant("bins", ["bins_of_a", "bins_of_b", "c"]) == ["bins_of_a", "bins_of_b"]


def test_a_checked_function_keeps_its_signature_and_its_own_errors():
    @checked
    def fails(a: int, *, b: int = 2) -> int:
        raise TypeError(f"of the function itself: {a}, {b}")

    assert str(inspect.signature(fails)) == "(a: int, *, b: int = 2) -> int"
    with pytest.raises(TypeError, match="of the function itself: 1, 2"):
        fails(1)
