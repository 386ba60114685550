import jax
import jax.numpy as jnp
import keras
import pytest

from millrace.errors import ModelError
from millrace.programs.plan import Mode
from millrace.programs.steps.state import (
    State,
    Values,
    as_lists,
    from_keras,
    from_step,
    state_of,
    to_keras,
    with_dtypes_of,
)


def state(*shapes):
    return from_keras([[jnp.zeros(shape)] for shape in shapes], Mode.TRAIN)


def built():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    return model


def test_keras_does_not_look_into_values():
    values = Values((jnp.zeros(2), jnp.ones(3)))
    assert not isinstance(values, list | tuple | dict | set)
    assert [v.shape for v in values] == [(2,), (3,)]
    assert len(values) == 2
    assert values[1] is list(values)[1]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode.TRAIN, State((1,), (2,), (3,), metric=(4,))),
        (Mode.TEST, State((1,), (2,), metric=(3,))),
        (Mode.PREDICT, State((1,), (2,))),
    ],
    ids=lambda each: getattr(each, "value", ""),
)
def test_the_tuple_of_each_loop_becomes_a_state_and_back(mode, expected):
    parts = tuple([number + 1] for number in range({"train": 4, "test": 3}.get(mode.value, 2)))
    assert from_keras(parts, mode) == expected
    assert as_lists(expected, mode) == parts
    handed_on = to_keras(expected, mode)
    assert tuple(map(list, handed_on)) == parts
    assert from_keras(handed_on, mode) is expected


def test_the_leaves_of_a_state_are_in_the_order_of_keras_and_have_names():
    whole = State((1, 2), (3,), (4,), metric_parts=(5,), metric=(6,))
    leaves = jax.tree_util.tree_flatten_with_path(whole)[0]
    assert [leaf for _, leaf in leaves] == [1, 2, 3, 4, 5, 6]
    assert jax.tree_util.keystr(leaves[1][0]) == ".trainable[1]"
    assert jax.tree_util.keystr(leaves[-1][0]) == ".metric[0]"


def test_what_micro_batches_change_comes_from_another_state():
    old = State((1,), (2,), (3,), (4,), (5,))
    after = State((10,), (20,), (30,), (40,), (50,)).changing()
    assert jax.tree.leaves(after) == [20, 40, 50]
    assert old.with_changing(after) == State((1,), (20,), (3,), (40,), (50,))


def test_a_function_of_each_value_knows_its_role():
    found = State((1,), (2, 3), metric=(4,)).map(lambda role, value: (role, value))
    pairs = [("trainable", 1), ("non_trainable", 2), ("non_trainable", 3), ("metric", 4)]
    assert [pair for part in found for pair in part] == pairs


def test_a_model_has_the_variables_of_each_loop():
    model = built()
    found = {mode: state_of(model, mode, lambda variable: variable.path) for mode in Mode}
    assert found[Mode.TRAIN].trainable == (model.trainable_variables[0].path,)
    assert [len(part) for part in found[Mode.TRAIN]] == [1, 0, 2, 0, 2]
    assert found[Mode.TEST] == found[Mode.TRAIN]._replace(optimizer=())
    assert found[Mode.PREDICT] == found[Mode.TEST]._replace(metric=())


def test_a_settled_state_has_the_dtypes_of_the_old_one():
    old = State((jnp.zeros(2),), (jnp.zeros(3),))
    new = State((jnp.ones(2, jnp.bfloat16),), (jnp.ones(3, jnp.int32),))
    settled = with_dtypes_of(new, old, keras.Sequential())
    assert [v.dtype.name for v in jax.tree.leaves(settled)] == ["float32", "float32"]


def test_what_a_step_must_not_do_to_its_state():
    model = built()
    old = state((2, 1), (3,), (), ())
    with pytest.raises(
        ModelError, match=r"(?i)sgd\S*/iteration': .* its shape from \(\) to \(5,\)"
    ):
        with_dtypes_of(state((2, 1), (3,), (5,), ()), old, model)
    sizes = r"1 trainable \+ 1 non-trainable \+ 1 optimizer \+ 1 metric before"
    with pytest.raises(ModelError, match=rf"received: {sizes}, 3 lists after\."):
        from_step(state((2, 1), (3,), (), ())[:3], old, model, Mode.TRAIN)
    new = old._replace(non_trainable=(), metric=())
    found = r"1 trainable \+ 0 non-trainable \+ 1 optimizer \+ 0 metric after"
    with pytest.raises(ModelError, match=rf"received: {sizes}, {found}\."):
        with_dtypes_of(new, old, model)
