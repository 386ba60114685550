import jax
import jax.numpy as jnp
import keras
import pytest

from millrace.errors import ModelError
from millrace.programs.steps.state import Values, as_lists, as_state, with_dtypes_of


def state(*shapes):
    return as_state([[jnp.zeros(shape)] for shape in shapes])


def test_values_are_a_pytree_that_keras_does_not_look_into():
    values = Values([jnp.zeros(2), jnp.ones(3)])
    assert not isinstance(values, list | tuple | dict | set)
    doubled = jax.tree.map(lambda v: v * 2, values)
    assert isinstance(doubled, Values)
    assert [v.shape for v in doubled] == [(2,), (3,)]
    assert len(values) == 2
    assert values[1] is list(values)[1]


def test_lists_become_a_state_and_back():
    parts = as_state([[1, 2], [3]])
    assert as_lists(parts) == ([1, 2], [3])
    assert as_state(parts)[0] is parts[0]


def test_a_settled_state_has_the_dtypes_of_the_old_one():
    old = state((2,), (3,))
    new = as_state([[jnp.ones(2, jnp.bfloat16)], [jnp.ones(3, jnp.int32)]])
    assert [
        v.dtype.name for part in with_dtypes_of(new, old, keras.Sequential()) for v in part
    ] == [
        "float32",
        "float32",
    ]


def test_what_a_step_must_not_do_to_its_state():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    old = state((2, 1), (3,), (), ())
    with pytest.raises(
        ModelError, match=r"(?i)sgd\S*/iteration': .* its shape from \(\) to \(5,\)"
    ):
        with_dtypes_of(state((2, 1), (3,), (5,), ()), old, model)
    with pytest.raises(ModelError, match=r"1 trainable .* 1 metric before, 3 lists after"):
        with_dtypes_of(state((2, 1), (3,), ()), old, model)
