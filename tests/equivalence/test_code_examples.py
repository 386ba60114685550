"""Models of the code examples on keras.io train under a strategy as they do in plain Keras.

docs/models.md has the figures of all with the compiler that users have. Adam's tiny epsilon makes
updates of gradients that are rounding alone, such as those of the bias of attention keys; with
EPSILON weights are held as near as losses.
"""

import pytest
from against_keras import Comparison, Refusal, compare
from code_examples.catalogue import EXAMPLES
from code_examples.example import Example

NEAR = 1e-6
EPSILON = {"epsilon": 1e-4}


def check(example: Example, ways: tuple[str, ...]) -> None:
    refused = example.make().refused
    for way, found in compare(example.subject(), ways).items():
        if way in refused:
            assert isinstance(found, Refusal)
            assert refused[way] in found.text
        else:
            assert isinstance(found, Comparison), found
            assert found.losses <= NEAR, way
            assert found.weights <= NEAR, way


@pytest.mark.parametrize("name", EXAMPLES)
def test_trains_as_plain_keras(name):
    check(EXAMPLES[name], ("one piece", "accumulated", "cut"))
