import json

import keras
import numpy as np
import pytest
from keras import layers, ops

from millrace.errors import ModelError, OptionError, PlanError
from millrace.run.pipelines.assignment.assignment import (
    check_unchanged,
    default_assignment,
    from_json,
    get_assignment,
    set_assignment,
    to_json,
)
from millrace.run.pipelines.assignment.lists import (
    NestedPipelineStageAssignment,
    PipelineStageAssignment,
)
from millrace.run.pipelines.assignment.marks import PipelineStage, stages_allowed

pytestmark = pytest.mark.quick


def sequential(count=4):
    return keras.Sequential([layers.Dense(2, name=f"d{i}") for i in range(count)])


def functional():
    """Five layers, one of them called twice: six calls."""
    x = keras.Input((4,), name="x")
    shared = layers.Dense(4, name="shared")
    y = layers.Dense(4, name="first")(x)
    y = shared(y)
    z = layers.Dense(4, name="middle")(y)
    z = shared(z)
    z = layers.Add(name="add")([y, z])
    return keras.Model(x, layers.Dense(1, name="last")(z), name="net")


def nested():
    inner_in = keras.Input((4,))
    inner_out = layers.Dense(4, name="b")(layers.Dense(4, name="a")(inner_in))
    inner = keras.Model(inner_in, inner_out, name="inner")
    x = keras.Input((4,))
    y = inner(inner(layers.Dense(4, name="first")(x)))
    return keras.Model(x, layers.Dense(1, name="last")(y), name="net")


class Subclassed(keras.Model):
    def __init__(self, raw_tail=False):
        super().__init__(name="sub")
        self.a = layers.Dense(4, name="a")
        self.b = layers.Dense(4, name="b")
        self.raw_tail = raw_tail

    def call(self, x):
        with PipelineStage(0):
            x = self.a(x)
        with PipelineStage(1):
            x = self.b(x)
        if self.raw_tail:
            with PipelineStage(2):
                x = ops.tanh(x)
        return x


class Plain(keras.Model):
    def __init__(self):
        super().__init__(name="plain")
        self.a = layers.Dense(4, name="a")
        self.b = layers.Dense(4, name="b")

    def call(self, x):
        return self.b(self.a(x))


def assigned(model, stages):
    given = get_assignment(model, None)
    flat = [leaf for item in given for leaf in getattr(item, "pipeline_stage_assignments", [item])]
    for item, stage in zip(flat, stages, strict=True):
        item.pipeline_stage = stage
    return given


def stages_of(model, stages):
    return set_assignment(model, assigned(model, stages)).stages


def test_a_sequential_takes_numbers_before_it_is_built():
    assignment = set_assignment(sequential(), [0, 0, 1, 1])
    assert (assignment.stages, assignment.num_stages) == ((0, 0, 1, 1), 2)
    assert stages_of(sequential(), [0, 1, 1, 2]) == (0, 1, 1, 2)


def test_a_sequential_takes_objects_that_the_user_made():
    model = sequential(2)
    given = [PipelineStageAssignment(x, pipeline_stage=i) for i, x in enumerate(model.layers)]
    assert set_assignment(model, given).stages == (0, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0, 0, 1, 1), r"must be a list. Received: tuple. .*get_pipeline_stage_assignment"),
        ([0, 1], r"makes 4 layer calls.*Received: a list of 2. Give one element per call"),
        ([0, 0, 1.0, 1], r"holds 1\.0, of type float.*either all whole numbers or all objects"),
        ([0, 0, "1", 1], r"either all whole numbers or all objects"),
        ([1, 1, 1, 1], r"first layer, 'd0', is in stage 1. The first stage is 0"),
        ([0, 2, 2, 2], r"'d1' is in stage 2, after 'd0' in stage 0. Set 0, .* or 1, the next"),
        ([0, 1, 0, 1], r"'d2' is in stage 0, after 'd1' in stage 1. Set 1, .* or 2, the next"),
    ],
)
def test_a_list_that_does_not_fit_a_sequential_is_refused(given, message):
    with pytest.raises(OptionError, match=message):
        set_assignment(sequential(), given)


def test_an_object_of_another_layer_is_refused_with_both_names():
    model = sequential()
    given = assigned(model, [0, 0, 1, 1])
    with pytest.raises(OptionError, match=r"for layer 'd3' is where that of 'd0' belongs"):
        set_assignment(model, given[::-1])


def test_a_layer_without_a_stage_is_named():
    with pytest.raises(OptionError, match=r"'d2' \(node index 0\) has no pipeline stage. Set"):
        stages_of(sequential(), [0, 0, None, 1])
    with pytest.raises(OptionError, match=r"'shared' \(node index 1\) has no pipeline stage"):
        stages_of(functional(), [0, 0, 0, None, 1, 1])


def test_a_stage_that_is_no_whole_number_is_refused():
    with pytest.raises(OptionError, match=r"'d2' .* stage 1.0, of type float. Set a whole"):
        stages_of(sequential(), [0, 0, 1.0, 1])


def test_a_number_for_a_nested_model_is_for_all_inside():
    inner = sequential(2)
    inner.name = "inner"
    model = keras.Sequential([layers.Dense(2), inner, layers.Dense(2)])
    assert set_assignment(model, [0, 1, 1]).stages == (0, 1, 1, 1)


def test_a_nested_sequential_may_begin_and_end_at_any_stage():
    inner = sequential(2)
    inner.name = "inner"
    model = keras.Sequential([layers.Dense(2, name="x"), inner, layers.Dense(2, name="y")])
    assert stages_of(model, [0, 1, 2, 2]) == (0, 1, 2, 2)
    with pytest.raises(OptionError, match=r"'y' is in stage 1, after '.*' in stage 2. Set 2"):
        stages_of(model, [0, 1, 2, 1])


def test_a_functional_lists_each_call_in_execution_order():
    given = get_assignment(functional(), None)
    assert [(x.layer.name, x.node_index, x.pipeline_stage) for x in given] == [
        ("first", 0, None),
        ("shared", 0, None),
        ("middle", 0, None),
        ("shared", 1, None),
        ("add", 0, None),
        ("last", 0, None),
    ]
    assert [[layer.name for layer in x.inbound_layers] for x in given] == [
        ["x"],
        ["first"],
        ["shared"],
        ["middle"],
        ["shared"],
        ["add"],
    ]


def test_what_was_set_is_read_back():
    model = functional()
    assignment = set_assignment(model, assigned(model, [0, 0, 1, 1, 1, 2]))
    given = get_assignment(model, assignment)
    assert [x.pipeline_stage for x in given] == [0, 0, 1, 1, 1, 2]
    assert set_assignment(model, given) == assignment


def test_the_objects_of_a_functional_may_come_in_any_order():
    model = functional()
    given = assigned(model, [0, 0, 1, 1, 1, 2])
    assert set_assignment(model, given[::-1]).stages == (0, 0, 1, 1, 1, 2)


def test_objects_say_what_they_are_and_only_the_stage_can_be_set():
    item = get_assignment(functional(), None)[3]
    assert str(item) == (
        "PipelineStageAssignment(layer='shared', node_index=1, pipeline_stage=None)"
    )
    for name in ("layer", "node_index", "inbound_layers"):
        with pytest.raises(AttributeError):
            setattr(item, name, None)
    whole = get_assignment(nested(), None)[1]
    assert str(whole).startswith("NestedPipelineStageAssignment(nested_model='inner', node_index=0")
    with pytest.raises(AttributeError):
        whole.nested_model = None


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([0, 0, 2, 2, 2, 3], r"Found: \[0, 2, 3\]; missing: \[1\]. Number .* from 0 to 2"),
        ([-1, 0, 0, 0, 0, 0], r"Found: \[-1, 0\].*from 0 to 1"),
        ([0, 1, 0, 1, 1, 1], r"'middle' .* stage 0 .* value of 'shared', .* later stage 1. Move"),
    ],
)
def test_stages_that_do_not_fit_a_functional_are_refused(stages, message):
    with pytest.raises(OptionError, match=message):
        stages_of(functional(), stages)


def test_a_list_that_does_not_fit_a_functional_is_refused():
    model = functional()
    given = assigned(model, [0, 0, 0, 0, 1, 1])
    with pytest.raises(OptionError, match=r"6 layer calls, excluding input layers.*list of 5"):
        set_assignment(model, given[1:])
    with pytest.raises(OptionError, match=r"holds 0, of type int.*: set pipeline_stage of each"):
        set_assignment(model, [0] * 6)
    with pytest.raises(OptionError, match=r"layer 'first' \(node index 0\) twice. Keep one"):
        set_assignment(model, [given[0], *given[:5]])
    with pytest.raises(OptionError, match=r"no object for the call of layer 'first'.*another mod"):
        set_assignment(model, [assigned(functional(), [0] * 6)[0], *given[1:]])


def test_a_model_without_calls_has_nothing_to_assign():
    with pytest.raises(OptionError, match=r"no layer calls .* Add layers first"):
        set_assignment(keras.Sequential(), [])


def test_each_call_of_a_nested_model_has_stages_of_its_own():
    model = nested()
    given = get_assignment(model, None)
    assert [type(x) for x in given[:2]] == [PipelineStageAssignment, NestedPipelineStageAssignment]
    assert [(x.nested_model.name, x.node_index) for x in given[1:3]] == [("inner", 0), ("inner", 1)]
    assert stages_of(model, [0, 0, 1, 1, 2, 2]) == (0, 0, 1, 1, 2, 2)


def test_the_wrong_class_for_a_call_is_refused_with_what_it_needs():
    model = nested()
    given = assigned(model, [0, 0, 1, 1, 2, 2])
    given[1] = PipelineStageAssignment(given[1].nested_model, 0, 0)
    with pytest.raises(
        OptionError,
        match=r"'inner' \(node index 0\) .* by a PipelineStageAss.* needs a NestedPipelineStageAss",
    ):
        set_assignment(model, given)


def test_a_subclassed_model_has_a_list_once_it_is_built():
    model = Plain()
    with pytest.raises(ModelError, match=r"'plain' \(Plain\) is not built.*model.build"):
        get_assignment(model, None)
    with pytest.raises(ModelError, match=r"is not built"):
        set_assignment(model, [])
    model(np.ones((2, 4)))
    assert [x.pipeline_stage for x in get_assignment(model, None)] == [None, None]
    assert stages_of(model, [0, 1]) == (0, 1)
    assert default_assignment(model) is None


@pytest.mark.parametrize("raw_tail", [False, True])
def test_stages_in_call_stay_with_the_trace_and_are_listed(raw_tail):
    model = Subclassed(raw_tail)
    model(np.ones((2, 4)))
    assignment = default_assignment(model)
    assert assignment.stages is None
    assert assignment.num_stages == 2 + raw_tail
    assert [x.pipeline_stage for x in get_assignment(model, assignment)] == [0, 1]


def test_models_without_scopes_have_no_default():
    for model in (sequential(), functional(), nested(), keras.Sequential()):
        assert default_assignment(model) is None


def test_the_scope_of_a_call_wins_over_that_of_its_layer():
    with stages_allowed():
        x = keras.Input((4,))
        with PipelineStage(0):
            early, late = layers.Dense(4), layers.Dense(4)
        y = early(x)
        with PipelineStage(1):
            y = late(y)
    assert default_assignment(keras.Model(x, y)).stages == (0, 1)


def test_a_sequential_takes_the_stages_in_which_its_layers_were_made():
    with stages_allowed():
        model = keras.Sequential([keras.Input((4,))])
        for stage in (0, 0, 1):
            with PipelineStage(stage):
                model.add(layers.Dense(4))
    assert default_assignment(model).stages == (0, 0, 1)


def test_calls_of_a_nested_model_inherit_the_stage_around_it():
    with stages_allowed():
        x = keras.Input((2,))
        block = sequential(2)
        with PipelineStage(0):
            y = block(x)
        with PipelineStage(1):
            y = block(y)
    assert default_assignment(keras.Model(x, y)).stages == (0, 0, 1, 1)


def test_stages_inside_a_nested_model_win_over_the_one_around_it():
    with stages_allowed():
        inner_in = keras.Input((4,))
        with PipelineStage(0):
            y = layers.Dense(4)(inner_in)
        with PipelineStage(1):
            y = layers.Dense(4)(y)
        inner = keras.Model(inner_in, y)
        x = keras.Input((4,))
        with PipelineStage(1):
            y = layers.Dense(4)(inner(x))
    assert default_assignment(keras.Model(x, y)).stages == (0, 1, 1)


def test_a_call_outside_of_all_scopes_is_named():
    with stages_allowed():
        x = keras.Input((4,))
        with PipelineStage(0):
            y = layers.Dense(4)(x)
        model = keras.Model(x, layers.Dense(4, name="forgotten")(y))
    with pytest.raises(OptionError, match=r"'forgotten' \(node index 0\) is in no.*Move it into"):
        default_assignment(model)


def test_scopes_that_flow_backwards_are_refused():
    with stages_allowed():
        x = keras.Input((4,))
        with PipelineStage(1):
            y = layers.Dense(4, name="early")(x)
        with PipelineStage(0):
            y = layers.Dense(4, name="late")(y)
    with pytest.raises(OptionError, match=r"'late' .* in stage 0 .* 'early', .* later stage 1"):
        default_assignment(keras.Model(x, y))


def test_a_sequential_that_changed_must_be_set_again():
    model = sequential()
    assignment = set_assignment(model, [0, 0, 1, 1])
    check_unchanged(assignment, model)
    model.build((None, 2))
    check_unchanged(assignment, model)
    model.pop()
    model.add(layers.Dense(3, name="new"))
    with pytest.raises(
        PlanError,
        match=r"4 layer calls and now makes 4 \(new: \['new'\]; gone: \['d3'\]\). Call set_pipe",
    ):
        check_unchanged(assignment, model)


@pytest.mark.parametrize(
    ("make", "stages"),
    [
        (sequential, [0, 0, 1, 1]),
        (functional, [0, 0, 1, 1, 1, 2]),
        (nested, [0, 0, 1, 1, 2, 2]),
    ],
)
def test_an_assignment_is_saved_as_plain_data(make, stages):
    model = make()
    assignment = set_assignment(model, assigned(model, stages))
    data = json.loads(json.dumps(to_json(assignment, model)))
    copy = keras.models.clone_model(model)
    assert from_json(data, copy) == assignment


def test_the_saved_form_is_triples_of_path_node_index_and_stage():
    model = nested()
    data = to_json(set_assignment(model, assigned(model, [0, 0, 1, 1, 2, 2])), model)
    assert data == {
        "num_stages": 3,
        "calls": [
            ["first", 0, 0],
            ["inner/a", 0, 0],
            ["inner/b", 0, 1],
            ["inner#1/a", 0, 1],
            ["inner#1/b", 0, 2],
            ["last", 0, 2],
        ],
    }


def test_the_stages_of_a_trace_are_saved_as_their_number():
    model = Subclassed()
    model(np.ones((2, 4)))
    assignment = default_assignment(model)
    data = to_json(assignment, model)
    assert data == {"num_stages": 2, "calls": None}
    assert from_json(data, model) == assignment


def unnamed(scale=lambda x: x * 2.0, last="last"):
    """An operation and a nested model whose names Keras numbers."""
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="a"), layers.Dense(4)])
    x = keras.Input((4,))
    y = inner(inner(scale(layers.Dense(4)(x))))
    return keras.Model(x, layers.Dense(1, name=last)(y), name="net")


def test_automatic_names_may_have_other_numbers():
    model, copy = unnamed(), unnamed()
    stages = [0, 1, 1, 1, 1, 2, 2]
    data = to_json(set_assignment(model, assigned(model, stages)), model)
    names = [call[0] for call in data["calls"]]
    assert names != [call[0] for call in to_json(from_json(data, copy), copy)["calls"]]
    assert from_json(data, copy).stages == tuple(stages)


@pytest.mark.parametrize(
    "other",
    [
        lambda: unnamed(lambda x: x + 2.0),  # another operation in the same place
        lambda: unnamed(lambda x: x * 2.0 * 2.0),
        lambda: unnamed(last="last_1"),  # a name that the user gave
    ],
)
def test_other_calls_are_refused_whatever_their_numbers(other):
    model = unnamed()
    data = to_json(set_assignment(model, assigned(model, [0, 1, 1, 1, 1, 2, 2])), model)
    with pytest.raises(OptionError, match="another model than 'net'"):
        from_json(data, other())


def test_saved_stages_of_another_model_are_refused():
    model = sequential()
    data = to_json(set_assignment(model, [0, 0, 1, 1]), model)
    with pytest.raises(
        OptionError, match=r"another model.*layer 'd3' \(node index 0\). Remove millrace.json"
    ):
        from_json(data, sequential(3))
    model.pop()
    with pytest.raises(PlanError):
        to_json(set_assignment(sequential(), [0, 0, 1, 1]), model)


@pytest.mark.slow
def test_resnet50_is_cut_by_walking_the_list():
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    given = get_assignment(model, None)
    stage = 0
    for item in given:
        item.pipeline_stage = stage
        if item.layer.name.startswith("conv4_block2_add"):
            stage = 1
    assignment = set_assignment(model, given)
    assert assignment.num_stages == 2
    assert assignment.stages.index(1) == assignment.labels.index("conv4_block2_add") + 1
