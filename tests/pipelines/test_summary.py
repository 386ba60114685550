import keras
import pytest
from keras import layers

from millrace.run.pipelines.assignment.layer_calls import find_calls
from millrace.run.pipelines.assignment.summary import StageCost, summary_lines

pytestmark = pytest.mark.quick


def sequential():
    return keras.Sequential(
        [layers.Dense(4, name="a"), layers.Dense(2, name="a_layer_with_a_long_name")], name="net"
    )


def functional():
    x = keras.Input((4,), name="x")
    shared = layers.Dense(4, name="shared")
    y = shared(shared(x))
    return keras.Model(x, layers.Add(name="add")([y, x]), name="net")


def nested():
    inner = keras.Sequential(
        [keras.Input((4,), name="inside"), layers.Dense(4, name="b"), layers.Dense(4, name="c")],
        name="inner",
    )
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1, name="d")(inner(x)), name="net")


def test_a_sequential_reads_like_the_drawing():
    model = sequential()
    lines = summary_lines(model, find_calls(model), (0, 1), line_length=30)
    assert lines == [
        'Model: "net"',
        "______________________________",
        "Layer (type)   Pipeline Stage ",
        "==============================",
        "a (Dense)      0              ",
        "______________________________",
        "a_layer_with_a 1              ",
        "==============================",
    ]


def test_a_functional_shows_node_indices_and_inputs():
    model = functional()
    lines = summary_lines(model, find_calls(model), (0, 1, 1), line_length=65)
    assert lines == [
        'Model: "net"',
        "_" * 65,
        "Layer (type) (node index) Input Layers              Pipeline Stag",
        "=" * 65,
        "shared (Dense) (0)        x                         0            ",
        "_" * 65,
        "shared (Dense) (1)        shared                    1            ",
        "_" * 65,
        "add (Add) (0)             shared                    1            ",
        "                          x                                      ",
        "=" * 65,
    ]


def test_a_nested_model_has_a_title_and_its_own_rows():
    model = nested()
    lines = summary_lines(model, find_calls(model), (0, 1, 1), line_length=65)
    assert lines[4:12] == [
        'Nested Model: "inner"',
        "-" * 65,
        "b (Dense) (0)             inside                    0            ",
        "_" * 65,
        "c (Dense) (0)             b                         1            ",
        "_" * 65,
        "d (Dense) (0)             inner                     1            ",
        "=" * 65,
    ]


@pytest.mark.parametrize("make", [sequential, functional, nested])
@pytest.mark.parametrize("length", [None, 60, 85, 131])
def test_every_row_has_the_same_length(make, length):
    model = make()
    expected = length or (60 if make is sequential else 89)
    costs = [StageCost(parameters=12_000, flops=3.5e9, share=0.25)] * 3
    lines = summary_lines(model, find_calls(model), None, length, costs)
    assert {len(line) for line in lines if "Model: " not in line} == {expected}


def test_calls_without_a_stage_show_none():
    model = sequential()
    lines = summary_lines(model, find_calls(model), None)
    assert lines[4] == "a (Dense)".ljust(30) + "None".ljust(30)


def test_costs_follow_in_a_table_of_their_own():
    model = sequential()
    costs = [StageCost(20, 1.5e6, 0.75), StageCost(1234567, 5e5, 0.25)]
    lines = summary_lines(model, find_calls(model), (0, 1), costs=costs)
    assert lines[8:] == [
        "_" * 60,
        "Pipeline Stage Parameters     FLOPs          Share          ",
        "=" * 60,
        "0              20             1.5e+06        75.0%          ",
        "_" * 60,
        "1              1,234,567      5e+05          25.0%          ",
        "=" * 60,
    ]
