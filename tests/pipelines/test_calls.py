import threading

import jax
import keras
import numpy as np
import pytest
from keras import layers, ops

from case_marks import slow
from millrace.errors import ModelError
from millrace.run.pipelines.assignment.layer_calls import find_calls, leaves, marked_calls
from millrace.run.pipelines.assignment.marks import PipelineStage, stages_allowed

pytestmark = pytest.mark.quick


def labels(calls):
    return [leaf.label for leaf in leaves(calls)]


def edges(calls):
    return {leaf.label: [p.label for p in leaf.producers] for leaf in leaves(calls)}


def marks_of(model, calls, *inputs, **kwargs):
    """The numbers of the marks in a trace of `model`, in order of their first equation."""
    trainable = [v.value for v in model.trainable_variables]
    state = [v.value for v in model.non_trainable_variables]

    def forward(trainable, state, *inputs):
        return model.stateless_call(trainable, state, *inputs, **kwargs)

    with marked_calls(model, calls):
        jaxpr = jax.make_jaxpr(forward)(trainable, state, *inputs)
    scopes = [
        scope
        for equation in jaxpr.eqns
        for scope in str(equation.source_info.name_stack).split("/")
        if scope.startswith("mr.L")
    ]
    return [int(scope.removeprefix("mr.L")) for scope in dict.fromkeys(scopes)]


class Gpt(keras.Model):
    """Token ids to logits over the vocabulary, with the embedding's weights used twice."""

    def __init__(self, blocks=2):
        super().__init__()
        self.embed = layers.Embedding(11, 8, name="embed")
        self.blocks = [Block(name=f"block{i}") for i in range(blocks)]
        self.norm = layers.LayerNormalization(name="norm")

    def call(self, ids, training=False):
        with PipelineStage(0):
            x = self.embed(ids) + ops.arange(8, dtype="float32")
            x = self.blocks[0](x, training=training)
        with PipelineStage(1):
            for block in self.blocks[1:]:
                x = block(x, training=training)
            x = self.norm(x)
            return ops.matmul(x, ops.transpose(self.embed.embeddings))


class Block(keras.Model):
    def __init__(self, name):
        super().__init__(name=name)
        self.attention = layers.MultiHeadAttention(2, 4, name="attention")
        self.mlp = keras.Sequential(
            [layers.Dense(16, "relu", name="up"), layers.Dense(8, name="down")], name="mlp"
        )
        self.dropout = layers.Dropout(0.5, name="dropout")

    def call(self, x, training=False):
        x = x + self.attention(x, x, use_causal_mask=True)
        x = x + self.dropout(self.mlp(x), training=training)
        return x + self.dropout(x, training=training)


def nested_twice():
    inner_in = keras.Input((4,), name="inner_in")
    inner = keras.Model(inner_in, layers.Dense(4, name="b")(layers.Dense(4, name="a")(inner_in)))
    inner.name = "inner"
    x = keras.Input((4,))
    y = inner(layers.Dense(4, name="first")(x))
    z = inner(y)
    return keras.Model(x, layers.Add(name="add")([y, z]))


def test_a_sequential_has_one_call_per_layer_before_and_after_it_is_built():
    model = keras.Sequential([layers.Dense(4, name="a"), layers.Dense(2, name="b")])
    before = find_calls(model)
    model.build((None, 3))
    after = find_calls(model)
    assert labels(before) == labels(after) == ["a", "b"]
    assert [c.path for c in before] == [c.path for c in after]
    assert edges(before) == edges(after) == {"a": [], "b": ["a"]}
    assert [c.inputs for c in after] == [(), (after[0],)]


def test_a_sequential_with_an_input_layer_leaves_it_out():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, name="a")])
    assert labels(find_calls(model)) == ["a"]


def test_a_functional_has_one_call_per_node_operators_included():
    x = keras.Input((4,))
    shared = layers.Dense(4, name="shared")
    y = shared(x)
    z = shared(y) + y
    model = keras.Model(x, ops.relu(z))
    calls = find_calls(model)
    assert [(type(c.operation).__name__, c.node_index) for c in calls] == [
        ("Dense", 0),
        ("Dense", 1),
        ("Add", 0),
        ("Relu", 0),
    ]
    assert calls[2].inputs == (calls[1], calls[0])


def test_node_indices_count_only_the_calls_of_this_model():
    x = keras.Input((4,))
    shared = layers.Dense(4, name="shared")
    other = shared(x)
    model = keras.Model(x, shared(other))
    y = keras.Input((4,))
    assert labels(find_calls(keras.Model(y, shared(y)))) == ["shared"]
    assert labels(find_calls(keras.Model(x, other))) == ["shared"]
    assert labels(find_calls(model)) == ["shared", "shared#1"]


def test_a_nested_model_called_twice_gives_different_leaves():
    model = nested_twice()
    calls = find_calls(model)
    assert [c.label for c in calls] == ["first", "inner", "inner#1", "add"]
    assert labels(calls) == ["first", "inner/a", "inner/b", "inner#1/a", "inner#1/b", "add"]
    assert edges(calls)["inner#1/a"] == ["inner/b"]
    assert edges(calls)["add"] == ["inner/b", "inner#1/b"]
    assert marks_of(model, calls, np.ones((2, 4), "float32")) == [0, 1, 2, 3, 4, 5]


def test_values_are_followed_through_each_input_and_output_of_a_nested_model():
    early, late = keras.Input((4,), name="early"), keras.Input((4,), name="late")
    y = layers.Dense(4, name="y")(early)
    inner = keras.Model({"early": early, "late": late}, [y, layers.Add(name="z")([y, late])])
    inner.name = "inner"
    x = keras.Input((4,))
    a = layers.Dense(4, name="a")(x)
    b = layers.Dense(4, name="b")(a)
    first, second = inner({"early": a, "late": b})
    model = keras.Model(x, [layers.ReLU(name="c")(first), layers.ReLU(name="d")(second)])
    found = edges(find_calls(model))
    assert found["inner/y"] == ["a"]
    assert found["inner/z"] == ["inner/y", "b"]
    assert (found["c"], found["d"]) == (["inner/y"], ["inner/z"])


def test_several_inputs_and_outputs_in_dicts():
    ids, size = keras.Input((5,), dtype="int32", name="ids"), keras.Input((1,), name="size")
    x = layers.GlobalAveragePooling1D(name="mean")(layers.Embedding(9, 4, name="embed")(ids))
    x = layers.Concatenate(name="join")([x, size])
    model = keras.Model(
        {"ids": ids, "size": size},
        {"p": layers.Dense(1, name="p")(x), "q": layers.Dense(2, name="q")(x)},
    )
    calls = find_calls(model)
    assert labels(calls) == ["embed", "mean", "join", "q", "p"]
    batch = {"ids": np.zeros((2, 5), "int32"), "size": np.ones((2, 1), "float32")}
    assert marks_of(model, calls, batch) == [0, 1, 2, 3, 4]


def test_layers_inside_layers_are_no_calls():
    model = keras.Sequential(
        [
            keras.Input((5, 3)),
            layers.Bidirectional(layers.LSTM(2, return_sequences=True), name="both"),
            layers.TimeDistributed(keras.Sequential([layers.Dense(2)]), name="each"),
        ]
    )
    calls = find_calls(model)
    assert labels(calls) == ["both", "each"]
    assert marks_of(model, calls, np.ones((2, 5, 3), "float32")) == [0, 1]


def gpt_labels():
    inside = ["attention", "mlp/up", "mlp/down", "dropout", "dropout#1"]
    return [f"block{i}/{name}" for i in range(2) for name in inside]


@pytest.mark.parametrize("how", ["called", slow("built")])
def test_a_subclassed_model_is_run_on_shapes(how):
    model = Gpt()
    ids = np.zeros((2, 6), "int32")
    if how == "called":
        model(ids)
    else:
        with pytest.warns(UserWarning, match="does not have a `build"):
            model.build((None, 6))
    calls = find_calls(model)
    assert labels(calls) == ["embed", *gpt_labels(), "norm"]
    assert [c.scope_stage for c in calls] == [0, 0, 1, 1]
    assert all(not layer._inbound_nodes for layer in [model.embed, model.norm])
    for training in (True, False):
        found = marks_of(model, calls, ids, training=training)
        dropped = () if training else (4, 5, 9, 10)  # a dropout that drops nothing adds nothing
        assert found == [k for k in range(12) if k not in dropped]


def test_a_subclassed_model_inside_a_functional_is_opened():
    x = keras.Input((6, 8))
    y = Block(name="block")(layers.Dense(8, name="before")(x))
    model = keras.Model(x, layers.Dense(1, name="after")(y))
    calls = find_calls(model)
    assert [c.label for c in calls] == ["before", "block", "after"]
    assert [len(c.inner) for c in calls] == [0, 4, 0]
    found = edges(calls)
    assert found["block/attention"] == ["before"]
    assert found["after"] == ["block/dropout#1"]
    ones = np.ones((2, 6, 8), "float32")
    assert marks_of(model, calls, ones, training=True) == list(range(len(leaves(calls))))


def test_a_layer_called_twice_counts_anew_in_every_run():
    model = Block(name="block")
    ones = np.ones((2, 6, 8), "float32")
    model(ones)
    calls = find_calls(model)
    with marked_calls(model, calls):
        model(ones)
        first = str(jax.make_jaxpr(lambda x: model(x))(ones).pretty_print(name_stack=True))
    assert "mr.L2" in first
    assert marks_of(model, calls, ones, training=True) == [0, 1, 2, 3, 4]


def test_integers_are_tried_where_floats_do_not_run():
    class Lookup(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = self.add_weight(shape=(9, 4), name="table")
            self.dense = layers.Dense(3, name="dense")

        def call(self, ids):
            return self.dense(ops.take(self.table, ids, axis=0))

    model = Lookup()
    model(np.zeros((2, 5), "int32"))
    assert labels(find_calls(model)) == ["dense"]


def test_a_subclassed_model_of_several_inputs():
    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3, name="dense")

        def call(self, x):
            return self.dense(x["a"]) + self.dense(x["b"])

    model = Pair()
    model({"a": np.ones((2, 4), "float32"), "b": np.ones((2, 4), "float32")})
    assert labels(find_calls(model)) == ["dense", "dense#1"]


def test_a_subclassed_model_must_be_built_first():
    with pytest.raises(ModelError, match=r"'gpt.*' \(Gpt\) is not built yet.*model.build"):
        find_calls(Gpt())


def test_a_model_without_call_is_refused():
    class Empty(keras.Model):
        pass

    with pytest.raises(ModelError, match=r"'empty.*' \(Empty\) does not define call\(\)"):
        find_calls(Empty())


def test_a_model_that_does_not_run_on_shapes_says_why():
    class Broken(keras.Model):
        def get_build_config(self):
            return {"input_shape": (None, 2)}

        def call(self, x):
            raise ValueError("no such luck")

    model = Broken()
    model.built = True
    with pytest.raises(ModelError, match=r"(?s)'broken.*no such luck.*on a batch"):
        find_calls(model)


def test_a_functional_whose_call_is_its_own_is_run():
    class Doubled(keras.Model):
        def call(self, inputs, training=None, mask=None):
            return super().call(inputs, training=training) * 2

    x = keras.Input((4,))
    model = Doubled(x, layers.Dense(3, name="b")(layers.Dense(4, name="a")(x)))
    ones = np.ones((2, 4), "float32")
    model(ones)
    calls = find_calls(model)
    assert labels(calls) == ["a", "b"]
    assert marks_of(model, calls, ones) == [0, 1]


def test_a_sequential_of_nested_inputs_has_no_graph_and_runs_its_list():
    class Sum(layers.Layer):
        def call(self, pair):
            return pair[0] + pair[1]

    model = keras.Sequential([Sum(name="sum"), layers.Dense(3, name="dense")])
    pair = (np.ones((2, 4), "float32"), np.ones((2, 4), "float32"))
    model(pair)
    calls = find_calls(model)
    assert labels(calls) == ["sum", "dense"]
    assert marks_of(model, calls, pair) == [0, 1]


def test_stages_are_recorded_for_calls_and_for_layers():
    with stages_allowed():
        x = keras.Input((4,))
        with PipelineStage(0):
            early = layers.Dense(4, name="early")
        outside = layers.Dense(4, name="outside")
        y = early(x)
        with PipelineStage(1):
            y = outside(early(y))
    calls = find_calls(keras.Model(x, y))
    assert [(c.label, c.scope_stage, c.creation_stage) for c in calls] == [
        ("early", None, 0),
        ("early#1", 1, 0),
        ("outside", 1, None),
    ]


def test_a_sequential_records_where_a_layer_was_made_and_not_where_it_was_called_again():
    with stages_allowed():
        model = keras.Sequential([keras.Input((4,))])
        for stage in range(3):
            with PipelineStage(stage):
                model.add(layers.Dense(4))
    assert [(c.scope_stage, c.creation_stage) for c in find_calls(model)] == [
        (None, 0),
        (None, 1),
        (None, 2),
    ]


def test_marks_are_for_one_thread_and_end_with_the_block():
    model = nested_twice()
    calls = find_calls(model)
    ones = np.ones((2, 4), "float32")

    def scopes():
        return str(jax.make_jaxpr(lambda x: model(x))(ones).pretty_print(name_stack=True))

    elsewhere = []
    with marked_calls(model, calls):
        thread = threading.Thread(target=lambda: elsewhere.append(scopes()))
        thread.start()
        thread.join()
        assert "mr.L0" in scopes()
    assert "mr.L" not in elsewhere[0]
    assert "mr.L" not in scopes()


def test_other_models_called_inside_stay_without_marks():
    model, other = nested_twice(), nested_twice()
    ones = np.ones((2, 4), "float32")
    with marked_calls(model, find_calls(model)):
        assert "mr.L" not in str(
            jax.make_jaxpr(lambda x: other(x))(ones).pretty_print(name_stack=True)
        )


@pytest.mark.slow
def test_resnet50_has_its_176_nodes():
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    calls = find_calls(model)
    assert len(calls) == 176
    image = np.ones((1, 32, 32, 3), "float32")
    found = marks_of(model, calls, image, training=True)
    assert found == list(range(176))
