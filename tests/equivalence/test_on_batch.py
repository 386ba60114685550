"""`train_on_batch` and its kind, and what evaluate and predict return."""

import contextlib

import cases
import jax
import keras
import numpy as np
import pytest
from keras import layers

from case_marks import slow
from millrace.run.compiled_loop.executables import Executables

BINARY = cases.Case("binary", cases.normalized)
NAMED = cases.Case("named", cases.named_functional, cases.named, compile=cases.two_outputs())


def pair(case, strategy, steps_per_execution=3, **changes):
    """A stock model and an attached one, from the same seeds."""
    return (
        cases.compiled(case, **changes),
        cases.compiled(case, strategy, steps_per_execution, **changes),
    )


def assert_same_state(model, reference):
    cases.assert_same_variables(cases.variables_of(model), cases.variables_of(reference))


@pytest.mark.parametrize(
    "weights",
    [
        {},
        slow({"sample_weight": np.arange(4, dtype="float32")}),
        {"class_weight": {0: 1.0, 1: 3.0}},
    ],
    ids=["unweighted", "sample-weight", "class-weight"],
)
def test_train_on_batch(strategy, weights):
    reference, model = pair(BINARY, strategy, weighted_metrics=["mae"])
    x, y = BINARY.data(4).values()
    for return_dict in (False, True, True):
        expected = reference.train_on_batch(x, y, return_dict=return_dict, **weights)
        found = model.train_on_batch(x, y, return_dict=return_dict, **weights)
        assert type(found) is type(expected)
        cases.assert_close(found, expected)
    assert_same_state(model, reference)
    assert int(model.optimizer.iterations) == 3


def test_calls_see_what_is_changed_between_them(strategy):
    reference, model = pair(BINARY, strategy, steps_per_execution=1)
    x, y = BINARY.data(4).values()

    def call(each):
        predicted = each.predict_on_batch(x)
        return [each.train_on_batch(x, y), each.test_on_batch(x, y), *predicted.ravel().tolist()]

    def halve_weights(each):
        each.set_weights([value / 2 for value in each.get_weights()])

    def learn_faster(each):
        each.optimizer.learning_rate = 0.25

    def freeze(each):
        each.layers[0].trainable = False
        each.compile("sgd", "mse")

    def fit(each):
        each.fit(x, y, batch_size=2, shuffle=False, verbose=0)

    for change in (lambda each: None, halve_weights, learn_faster, freeze, fit):
        change(reference)
        change(model)
        for _ in range(2):
            cases.assert_close(call(model), call(reference), name=change.__name__)
    assert_same_state(model, reference)


def test_batches_of_doubles(strategy):
    reference, model = pair(BINARY, strategy, 1)
    x, y = (leaf.astype("float64") for leaf in BINARY.data(4).values())
    for _ in range(3):
        cases.assert_close(model.train_on_batch(x, y), reference.train_on_batch(x, y))


def test_a_method_of_the_user_is_called(strategy):
    class Counted(keras.Sequential):
        calls = 0

        def train_on_batch(self, *args, **kwargs):
            self.calls += 1
            return super().train_on_batch(*args, **kwargs)

    with strategy.scope():
        model = Counted([keras.Input((6,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    for _ in range(3):
        model.train_on_batch(np.ones((4, 6)), np.ones((4, 1)))
    assert model.calls == 3


def test_the_batch_of_a_call_may_be_filled_again(strategy):
    reference, model = pair(BINARY, strategy, 1)
    x, y = BINARY.data(8).values()
    buffer = np.empty_like(x[:4])
    for begin in (0, 4, 0, 4):
        buffer[:] = x[begin : begin + 4]
        found = model.train_on_batch(buffer, y[begin : begin + 4])
        cases.assert_close(
            found, reference.train_on_batch(x[begin : begin + 4], y[begin : begin + 4])
        )
    assert_same_state(model, reference)


def test_models_that_alternate_are_switches(strategy):
    x, y = BINARY.data(4).values()
    first, second = (pair(BINARY, strategy, 1)[1] for _ in range(2))
    second.name = "second"
    for _ in range(3):
        first.train_on_batch(x, y)
        second.train_on_batch(x, y)
    assert strategy.statistics().switches == 5


def test_a_program_for_other_options_of_jax_is_not_taken_after_an_error(strategy, monkeypatch):
    _, model = pair(BINARY, strategy, steps_per_execution=1)
    x, y = BINARY.data(4).values()
    for _ in range(3):
        model.train_on_batch(x, y)

    def fails(*arguments):
        raise OSError("no memory for the compiler")

    before = len(strategy.compile_log)
    with jax.default_matmul_precision("highest"):
        with monkeypatch.context() as patch:
            patch.setattr(Executables, "of_call", fails)
            with pytest.raises(OSError, match="no memory"):
                model.train_on_batch(x, y)
        model.train_on_batch(x, y)
    assert len(strategy.compile_log) == before + 1


def test_test_on_batch(strategy):
    reference, model = pair(BINARY, strategy)
    x, y = BINARY.data(4).values()
    weights = np.arange(4, dtype="float32")
    for arguments in ({}, {"return_dict": True}, {"sample_weight": weights}):
        expected = reference.test_on_batch(x, y, **arguments)
        found = model.test_on_batch(x, y, **arguments)
        assert type(found) is type(expected)
        cases.assert_close(found, expected)
    assert_same_state(model, reference)


def test_predict_on_batch(strategy):
    reference, model = pair(NAMED, strategy)
    x = NAMED.data(4)["x"]
    found = model.predict_on_batch(x)
    assert all(isinstance(value, np.ndarray) for value in found.values())
    cases.assert_close(found, reference.predict_on_batch(x))


@pytest.mark.slow
def test_batches_of_several_sizes_and_structures(strategy):
    reference, model = pair(NAMED, strategy)
    data = NAMED.data(9)
    for rows in (4, 2, 9, 4, 1):
        batch = cases.first(data, rows)
        cases.assert_close(
            model.train_on_batch(*batch, return_dict=True),
            reference.train_on_batch(*batch, return_dict=True),
        )
    assert_same_state(model, reference)


@pytest.mark.slow
def test_on_batch_methods_between_fits(strategy):
    reference, model = pair(BINARY, strategy)
    data = BINARY.data(8)
    for m in (reference, model):
        keras.utils.set_random_seed(1)
        m.fit(**data, batch_size=4, verbose=0)
        m.train_on_batch(*cases.first(data, 3))
        m.test_on_batch(*cases.first(data, 4))
        m.predict_on_batch(data["x"])
        m.fit(**data, batch_size=4, verbose=0)
    assert_same_state(model, reference)


@pytest.mark.slow
def test_the_first_call_may_be_any_of_them(strategy):
    """A deferred model is built by whatever comes first."""
    case = cases.Case("deferred", cases.deferred)
    x, y = case.data(6).values()
    calls = {
        "train_on_batch": lambda model: model.train_on_batch(x, y),
        "test_on_batch": lambda model: model.test_on_batch(x, y),
        "predict_on_batch": lambda model: model.predict_on_batch(x),
        "evaluate": lambda model: model.evaluate(x, y, batch_size=4, verbose=0),
        "predict": lambda model: model.predict(x, batch_size=4, verbose=0),
        "call": lambda model: model(x),
    }
    for name, call in calls.items():
        reference, model = pair(case, strategy)
        cases.assert_close(call(model), call(reference), name=name)


@pytest.mark.parametrize("rows", [9, 8, 3])
def test_evaluate_returns_a_list_or_a_dict(strategy, rows):
    reference, model = pair(BINARY, strategy, weighted_metrics=["mae"])
    data = {**BINARY.data(rows), "sample_weight": np.linspace(0, 1, rows, dtype="float32")}
    for return_dict in (False, True):
        arguments = {"batch_size": 4, "return_dict": return_dict, "verbose": 0}
        found = model.evaluate(**data, **arguments)
        expected = reference.evaluate(**data, **arguments)
        assert type(found) is type(expected)
        cases.assert_close(found, expected)


def test_evaluate_and_predict_some_steps(strategy):
    reference, model = pair(BINARY, strategy)
    data = BINARY.data(22)
    arguments = {"batch_size": 4, "steps": 4, "verbose": 0}
    cases.assert_close(model.evaluate(**data, **arguments), reference.evaluate(**data, **arguments))
    found = model.predict(data["x"], **arguments)
    assert found.shape == (16, 1)
    cases.assert_close(found, reference.predict(data["x"], **arguments))


@pytest.mark.parametrize(
    ("rows", "steps_per_execution"), [(22, 1), (22, 2), (22, 100), (20, 2), (3, 2)]
)
def test_predict_dict_outputs(strategy, rows, steps_per_execution):
    reference, model = pair(NAMED, strategy, steps_per_execution)
    x = NAMED.data(rows)["x"]
    found = model.predict(x, batch_size=4, verbose=0)
    assert {name: value.shape for name, value in found.items()} == {
        "amount": (rows, 1), "kind": (rows, 3)
    }  # fmt: skip
    assert all(isinstance(value, np.ndarray) for value in found.values())
    cases.assert_close(found, reference.predict(x, batch_size=4, verbose=0))


def test_predict_without_compile_and_with_list_outputs(strategy):
    def build():
        inputs = keras.Input((6,))
        hidden = layers.Dense(4)(inputs)
        # The third output has no axis besides that of rows.
        return keras.Model(inputs, [hidden, layers.Dense(2)(hidden), keras.ops.sum(hidden, 1)])

    keras.utils.set_random_seed(1)
    reference = build()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = build()
    x = cases.table(10)["x"]
    found = model.predict(x, batch_size=4, verbose=0)
    assert [value.shape for value in found] == [(10, 4), (10, 2), (10,)]
    cases.assert_close(found, reference.predict(x, batch_size=4, verbose=0))


@pytest.mark.parametrize("rows", [3, 20, 22])
@pytest.mark.parametrize(("shape", "kept"), [((-1, 2), 2), ((1, -1, 4), None)])
def test_predict_outputs_of_another_number_of_rows(strategy, rows, shape, kept):
    """Keras concatenates what the batches give: two rows for each, or one for the batch."""

    def build():
        inputs = keras.Input((6,))
        hidden = keras.ops.reshape(layers.Dense(4)(inputs), shape)
        return keras.Model(inputs, hidden if kept else keras.ops.mean(hidden, 1))

    keras.utils.set_random_seed(1)
    reference = build()
    keras.utils.set_random_seed(1)
    model = strategy.attach(build())
    model.compile("sgd", "mse", steps_per_execution=3)
    x = cases.table(rows)["x"]
    found = model.predict(x, batch_size=4, verbose=0)
    assert len(found) == (rows * kept if kept else -(-rows // 4))
    cases.assert_close(found, reference.predict(x, batch_size=4, verbose=0))


@pytest.mark.slow
def test_predict_carries_state_that_a_model_assigns(strategy):
    class Counts(keras.Model):
        def __init__(self):
            super().__init__()
            self.rows = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, inputs):
            self.rows.assign_add(keras.ops.cast(keras.ops.shape(inputs)[0], "float32"))
            return inputs + self.rows

    reference, model = Counts(), strategy.attach(Counts())
    x = np.zeros((10, 2), "float32")
    for m in (reference, model):
        m.compile(loss="mse", steps_per_execution=3 if m is model else 1)
        m.evaluate(x, x, batch_size=4, verbose=0)
    cases.assert_close(
        model.predict(x, batch_size=4, verbose=0), reference.predict(x, batch_size=4, verbose=0)
    )
    assert float(model.rows) == float(reference.rows)


@pytest.mark.slow
def test_on_batch_methods_with_asynchronous_callbacks(strategy):
    reference, model = pair(NAMED, strategy)
    model.set_asynchronous_callbacks(True)
    x, y = NAMED.data(4).values()
    for name in ("train_on_batch", "test_on_batch"):
        for return_dict in (True, False):
            found = getattr(model, name)(x, y, return_dict=return_dict)
            expected = getattr(reference, name)(x, y, return_dict=return_dict)
            assert type(found) is type(expected)
            cases.assert_close(found, expected)
    cases.assert_close(model.predict_on_batch(x), reference.predict_on_batch(x))
    assert_same_state(model, reference)


@pytest.mark.slow
def test_two_models_that_share_layers_train_in_turn(strategy):
    """A generator through a frozen critic, and the critic on its own."""

    def build(owner):
        keras.utils.set_random_seed(1)
        with strategy.scope() if owner else contextlib.nullcontext():
            maker = keras.Sequential([keras.Input((3,)), layers.Dense(6)])
            critic = cases.mlp()
            critic.compile("adam", "binary_crossentropy")
            critic.trainable = False
            both = keras.Sequential([keras.Input((3,)), maker, critic])
            both.compile("adam", "binary_crossentropy", steps_per_execution=2)
            critic.trainable = True
            critic.compile("adam", "binary_crossentropy", steps_per_execution=2)
            critic.trainable = False
        return maker, critic, both

    random = np.random.default_rng(0)
    noise = random.normal(size=(8, 3)).astype("float32")
    real = random.normal(size=(8, 6)).astype("float32")
    results = []
    for owner in (True, False):
        maker, critic, both = build(owner)
        losses = []
        for _ in range(3):
            critic.trainable = True
            made = maker.predict(noise, verbose=0)
            losses.append(critic.train_on_batch(real, np.ones((8, 1), "float32")))
            losses.append(critic.train_on_batch(made, np.zeros((8, 1), "float32")))
            critic.trainable = False
            history = both.fit(noise, np.ones((8, 1), "float32"), batch_size=4, shuffle=False,
                               verbose=0)  # fmt: skip
            losses.append(history.history["loss"][0])
        results.append((losses, both.get_weights()))
    cases.assert_close(*results)
