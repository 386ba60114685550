"""Options that a setter does not take: the name that was meant, or the list of what there is."""

import keras
import pytest

import millrace
from millrace.base.arguments import names_meant
from millrace.errors import OptionError

ACCUMULATION = "gradient_accumulation_steps_per_replica"


@pytest.mark.parametrize(
    ("setter", "name", "meant"),
    [
        ("set_gradient_accumulation_options", "gradient_accumulation_steps", ACCUMULATION),
        ("set_gradient_accumulation_options", "gradient_acumulation_steps", ACCUMULATION),
        ("set_infeed_queue_options", "prefetch", "prefetch_depth"),
        ("set_recomputation_options", "budgets", "budget"),
    ],
)
def test_an_option_that_is_misspelled(strategy, setter, name, meant):
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


def test_other_calls_leave_it_to_python(strategy):
    model = strategy.attach(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'device'"):
        millrace.Strategy(device=2)
    with pytest.raises(TypeError, match="too many positional arguments"):
        model.set_gradient_accumulation_options(4)


def test_the_begin_of_several_names_suggests_them_all():
    assert names_meant("bins", ["bins_of_a", "bins_of_b", "c"]) == ["bins_of_a", "bins_of_b"]
