"""The comparison that the tables of docs/models.md are made with: it finds what differs."""

import against_keras
import cases
import keras
import pytest
from against_keras import Refusal, Subject, compare, reference


def compiled_with(*rates):
    """Arguments of compile, with one rate after the other."""
    rates = list(rates)

    def arguments(**accumulation):
        rate = rates.pop(0) if len(rates) > 1 else rates[0]
        optimizer = keras.optimizers.SGD(rate, momentum=0.9, **accumulation)
        return {"optimizer": optimizer, "loss": "binary_crossentropy", "metrics": ["accuracy"]}

    return arguments


def subject(build=cases.normalized, rates=(0.1,)):
    return Subject("small", build, lambda: cases.table(16), compiled_with(*rates))


@pytest.mark.slow
def test_a_small_model_trains_as_in_plain_keras_in_all_ways():
    found = compare(subject())
    assert list(found) == list(against_keras.WAYS)
    for way, comparison in found.items():
        assert comparison.losses < 1e-6, way
        assert comparison.weights < 1e-6, way
        assert comparison.updates < 1e-5, way
    assert found["one piece"].stages == ()
    assert found["cut"].stages == (1, 4)
    assert found["cut"].cut_at.startswith("batch_normalization")


@pytest.mark.slow
@pytest.mark.parametrize("way", against_keras.WAYS)
def test_a_difference_is_found(way):
    """Of one part in a hundred, in the learning rate of the one that is trained first."""
    (comparison,) = compare(subject(rates=(0.1, 0.101)), [way]).values()
    assert comparison.losses > 1e-5
    assert comparison.weights > 1e-5
    assert comparison.updates == pytest.approx(0.01, rel=0.5)


def test_a_refusal_has_its_reason():
    def single():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, "sigmoid")])

    found = compare(subject(single), ["cut"])["cut"]
    assert isinstance(found, Refusal)
    assert (found.error, "1 layer calls" in found.text) == ("OptionError", True)


def test_a_training_that_ends_in_nan_compares_nothing():
    with pytest.raises(AssertionError, match="NaN or infinity"):
        compare(subject(rates=(float("nan"),)), ["one piece"])


@pytest.mark.slow
def test_a_reference_in_float64_has_both_at_the_distance_of_rounding():
    def arguments(**accumulation):
        optimizer = keras.optimizers.SGD(0.1, **accumulation)
        return {"optimizer": optimizer, "loss": "sparse_categorical_crossentropy"}

    small = Subject("convnet", cases.convnet, lambda: cases.images(16), arguments)
    errors = reference(small, "cut")
    assert 0 < errors.updates < 1e-5
    assert 0 < errors.updates_of_keras < 1e-5
    assert errors.losses < 1e-6
    assert errors.losses_of_keras < 1e-6
    assert keras.config.floatx() == "float32"
