import keras
import pytest

from millrace_ipu import ipu


@pytest.fixture
def strategy(system):
    system(2)
    return ipu.ipu_strategy.IPUStrategy()


def cell_rows(lines):
    """Returns the rows between the header and the end of a table."""
    return [line for line in lines[4:-1] if line.strip("_")]


def printed(model, *args, **kwargs):
    lines = []
    model.print_pipeline_stage_assignment_summary(*args, print_fn=lines.append, **kwargs)
    return lines


def functional(strategy, name="a_name_that_is_longer_than_its_column"):
    with strategy.scope():
        left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
        with ipu.keras.PipelineStage(0):
            x = keras.layers.Concatenate(name="join")([left, right])
        with ipu.keras.PipelineStage(1):
            x = keras.layers.Dense(1, name=name)(x)
        return keras.Model([left, right], x, name="two")


def test_f18_functional_of_85(strategy):
    lines = printed(functional(strategy), 85)
    # Columns end at int(.4 * 85) = 34, int(.8 * 85) = 68 and 85.
    assert lines == [
        'Model: "two"',
        "_" * 85,
        "Layer (type) (node index)".ljust(34)
        + "Input Layers".ljust(34)
        + "Pipeline Stage".ljust(17),
        "=" * 85,
        "join (Concatenate) (0)".ljust(34) + "left".ljust(34) + "0".ljust(17),
        " " * 34 + "right".ljust(34) + " " * 17,
        "_" * 85,
        "a_name_that_is_longer_than_its_co" + " " + "join".ljust(34) + "1".ljust(17),
        "=" * 85,
    ]


def test_f18_sequential_of_65(strategy, capsys):
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(2, name="first"), keras.layers.Dense(1, name="x" * 40)], name="row"
        )
    lines = printed(model, line_length=65)
    # Columns end at int(.5 * 65) = 32 and 65.
    assert lines == [
        'Model: "row"',
        "_" * 65,
        "Layer (type)".ljust(32) + "Pipeline Stage".ljust(33),
        "=" * 65,
        "first (Dense)".ljust(32) + "None".ljust(33),
        "_" * 65,
        "x" * 31 + " " + "None".ljust(33),
        "=" * 65,
    ]
    model.set_pipeline_stage_assignment([0, 1])
    capsys.readouterr()
    model.print_pipeline_stage_assignment_summary()
    rows = capsys.readouterr().out.splitlines()
    assert {len(row) for row in rows[1:]} == {60}
    assert [row[30:].strip() for row in cell_rows(rows)] == ["0", "1"]


def test_f18_widths_that_are_not_given(strategy):
    lines = printed(functional(strategy))
    assert {len(line) for line in lines[1:]} == {89}
    assert lines[2].index("Input Layers") == int(0.4 * 89)
    assert lines[2].index("Pipeline Stage") == int(0.8 * 89)


def test_f18_a_built_model_with_stages_has_no_second_table(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), *(keras.layers.Dense(2) for _ in "ab")])
    model.set_pipeline_stage_assignment([0, 1])
    assert len(printed(model)) == 8


def test_f18_a_nested_model_has_a_line_and_its_rows(strategy):
    with strategy.scope():
        x = keras.Input((2,))
        inner = keras.Model(x, keras.layers.Dense(2, name="inside")(x), name="inner")
        model = keras.Sequential([keras.Input((2,)), inner], name="outer")
    lines = printed(model)
    assert lines[4:6] == ['Nested Model: "inner"', "-" * 60]
    assert lines[6] == "inside (Dense)".ljust(30) + "None".ljust(30)
