import keras
import numpy as np
import pytest

import millrace
from millrace.errors import OptionError, TapError
from millrace.layers import MaybeOutfeed, Outfeed, outfeed_queues
from millrace.programs.taps.maybe_outfeed import MaybeOutfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue

ROWS, WIDTH, STEPS = 4, 6, 20


def data(steps=STEPS):
    random = np.random.default_rng(0)
    x = random.random((steps * ROWS, WIDTH), np.float32)
    return x, random.integers(0, 10, steps * ROWS).astype("float32")


def dense(units, activation="relu"):
    return keras.layers.Dense(units, activation, name=f"Dense_{units}")


def sequential(*outfeeds):
    """Dense_16, and Dense_10 after it; each followed by one of `outfeeds`, where there is one."""
    keras.utils.set_random_seed(1)
    first, second = [*outfeeds, None, None][:2]
    layers = [dense(16), first, dense(10, "softmax"), second]
    return keras.Sequential([keras.Input((WIDTH,)), *filter(None, layers)])


def functional(*outfeeds):
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((WIDTH,))
    layers = [dense(16), dense(10, "softmax")]
    for layer, outfeed in zip(layers, [*outfeeds, None, None], strict=False):
        x = layer(x)
        x = x if outfeed is None else outfeed(x)
    return keras.Model(inputs, x)


class Subclassed(keras.Model):
    def __init__(self, *outfeeds):
        super().__init__()
        keras.utils.set_random_seed(1)
        self.all = sequential(*outfeeds).layers

    def call(self, x):
        for layer in self.all:
            x = layer(x)
        return x


def fit(model, steps=STEPS, learning_rate=0.1, steps_per_execution=1, **kwargs):
    model.compile(
        keras.optimizers.SGD(learning_rate),
        "sparse_categorical_crossentropy",
        steps_per_execution=steps_per_execution,
    )
    x, y = data(steps)
    return model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0, **kwargs)


def activations(steps=STEPS):
    """What the two layers of a plain model return, step by step."""
    model = functional()
    both = keras.Model(model.inputs, [layer.output for layer in model.layers[1:]])
    x = data(steps)[0]
    return [a.reshape(steps, ROWS, -1) for a in both.predict(x, batch_size=ROWS, verbose=0)]


def assert_same_weights(model, other):
    for mine, others in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, others)


@pytest.mark.parametrize("build", [sequential, functional, Subclassed])
@pytest.mark.parametrize("steps_per_execution", [1, STEPS])
def test_outfeed_carries_its_inputs_out_of_every_step(strategy, build, steps_per_execution):
    queue = OutfeedQueue()
    with strategy.scope():
        model = build(Outfeed(queue, name="Dense_16_acts"))
    fit(model, learning_rate=0.0, steps_per_execution=steps_per_execution)
    found = queue.dequeue()
    assert list(found) == ["Dense_16_acts"]
    assert found["Dense_16_acts"].shape == (STEPS, ROWS, 16)
    np.testing.assert_allclose(found["Dense_16_acts"], activations()[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_training_is_the_same_with_and_without_the_layers(strategy, accumulation):
    queue, many = OutfeedQueue(), MaybeOutfeedQueue()
    models = [sequential(), sequential(Outfeed(queue), MaybeOutfeed(many))]
    for model in models:
        strategy.attach(model).set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=accumulation
        )
    histories = [fit(model, steps_per_execution=STEPS, epochs=2).history for model in models]
    assert histories[0]["loss"] == pytest.approx(histories[1]["loss"], rel=1e-6)
    for with_, without in zip(models[1].get_weights(), models[0].get_weights(), strict=True):
        np.testing.assert_allclose(with_, without, rtol=1e-5, atol=1e-7)
    assert queue.dequeue()[models[1].layers[1].name].shape == (2 * STEPS, ROWS, 16)


def test_without_a_strategy_they_are_plain_layers():
    queue, many = OutfeedQueue(), MaybeOutfeedQueue()
    model, plain = sequential(Outfeed(queue), MaybeOutfeed(many)), sequential()
    x = data()[0]
    np.testing.assert_array_equal(model(x), plain(x))
    np.testing.assert_array_equal(model.predict(x, verbose=0), plain.predict(x, verbose=0))
    fit(model)
    fit(plain)
    assert_same_weights(model, plain)
    assert model.count_params() == plain.count_params()
    assert not queue.enqueued
    assert not many.enqueued


def test_a_model_of_a_strategy_that_is_called_or_built(strategy):
    queue = OutfeedQueue()
    with strategy.scope():
        model = sequential(Outfeed(queue, name="acts"))
    model(data()[0])
    assert not queue.enqueued
    fit(model)
    queue.dequeue()
    model(data()[0])
    assert len(queue.dequeue()["acts"]) == 0


def test_evaluate_and_predict_enqueue_too(strategy):
    queue = OutfeedQueue()
    with strategy.scope():
        model = sequential(Outfeed(queue, name="acts"))
    fit(model, 2, learning_rate=0.0)
    queue.dequeue()
    x, y = data()
    model.evaluate(x, y, batch_size=ROWS, verbose=0)
    evaluated = queue.dequeue()["acts"]
    predictions = model.predict(x, batch_size=ROWS, verbose=0)
    np.testing.assert_allclose(evaluated, activations()[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(queue.dequeue()["acts"], evaluated, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        predictions, functional().predict(x, batch_size=ROWS, verbose=0), rtol=1e-5, atol=1e-6
    )


def test_a_shared_layer_enqueues_its_first_inputs(strategy):
    queue = OutfeedQueue()
    outfeed = Outfeed(queue, name="acts")
    with strategy.scope():
        model = functional(outfeed, outfeed)
    fit(model, learning_rate=0.0)
    assert queue.dequeue()["acts"].shape == (STEPS, ROWS, 16)


# Several layers of one queue


@pytest.mark.parametrize("build", [sequential, functional, Subclassed])
@pytest.mark.parametrize(
    ("filters", "taken"),
    [
        (None, ["Dense_16_acts", "Dense_10_acts"]),
        (["Dense_10"], ["Dense_10_acts"]),
        (["Dense_1"], ["Dense_16_acts", "Dense_10_acts"]),
    ],
)
def test_layers_share_a_queue(strategy, build, filters, taken):
    queue = MaybeOutfeedQueue(filters=filters)
    outfeeds = [
        MaybeOutfeed(queue, final_outfeed=False, name="Dense_16_acts"),
        MaybeOutfeed(queue, name="Dense_10_acts"),
    ]
    with strategy.scope():
        model = build(*outfeeds)
    fit(model, learning_rate=0.0, steps_per_execution=STEPS)
    found = queue.dequeue()
    assert list(found) == taken
    expected = dict(zip(["Dense_16_acts", "Dense_10_acts"], activations(), strict=True))
    for key, values in found.items():
        np.testing.assert_allclose(values, expected[key], rtol=1e-5, atol=1e-6)


def test_an_empty_list_of_filters_enqueues_nothing(strategy):
    queue = MaybeOutfeedQueue(filters=[])
    with strategy.scope():
        model = sequential(MaybeOutfeed(queue))
    fit(model)
    assert not queue.enqueued
    assert queue.maybe_dequeue() is None


def test_without_a_final_layer_nothing_arrives(strategy):
    queue = MaybeOutfeedQueue()
    with strategy.scope():
        model = sequential(MaybeOutfeed(queue, final_outfeed=False))
    fit(model)
    assert queue.maybe_dequeue() is None


def test_what_follows_the_final_layer_is_missing(strategy):
    queue = MaybeOutfeedQueue()
    with strategy.scope():
        model = sequential(
            MaybeOutfeed(queue, name="a"), MaybeOutfeed(queue, name="b", final_outfeed=False)
        )
    for _ in range(2):  # also in what is traced later
        fit(model)
        assert list(queue.dequeue()) == ["a"]


def test_two_final_layers(strategy):
    queue = MaybeOutfeedQueue()
    with strategy.scope():
        model = sequential(MaybeOutfeed(queue), MaybeOutfeed(queue))
    with pytest.raises(
        TapError, match="takes one value in each program, and received a second one"
    ):
        fit(model)


# Where Keras does more than call them


@pytest.mark.parametrize("where", ["layers", "model", "inner model"])
def test_recomputation_does_not_hold_values_back(strategy, where):
    queue, many = OutfeedQueue(), MaybeOutfeedQueue()
    with strategy.scope():
        with keras.RematScope(mode="full"):
            model = sequential(Outfeed(queue, name="acts"), MaybeOutfeed(many, name="out"))
            layers = model.layers
        if where == "layers":
            model = keras.Sequential([keras.Input((WIDTH,)), *layers])
        elif where == "inner model":
            model = keras.Sequential([keras.Input((WIDTH,)), model])
    fit(model, learning_rate=0.0)
    model.predict(data()[0], batch_size=ROWS, verbose=0)
    for found, expected in zip(
        (queue.dequeue()["acts"], many.dequeue()["out"]), activations(), strict=True
    ):
        assert len(found) == 2 * STEPS
        np.testing.assert_allclose(found[:STEPS], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[STEPS:], expected, rtol=1e-5, atol=1e-6)


def test_a_dtype_policy_does_not_cast_what_passes(strategy):
    keras.config.set_dtype_policy("mixed_bfloat16")
    queue = OutfeedQueue()
    with strategy.scope():
        layers = [keras.layers.Dense(3, dtype="float32"), Outfeed(queue, name="acts")]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=0)
    assert queue.dequeue()["acts"].dtype == np.float32


def test_masks_and_structures_pass(strategy):
    queue = OutfeedQueue()
    with strategy.scope():
        tokens = keras.Input((5,), dtype="int32")
        x = keras.layers.Embedding(7, 3, mask_zero=True)(tokens)
        x = Outfeed(queue, name="embedded")(x)
        pooled = keras.layers.GlobalAveragePooling1D()(x)
        model = keras.Model(tokens, pooled)
    ids = np.array([[1, 2, 0, 0, 0]] * 2)
    model.compile(loss="mse")
    predicted = model.predict(ids, verbose=0)
    embedded = queue.dequeue()["embedded"][0]
    np.testing.assert_allclose(predicted, embedded[:, :2].mean(axis=1), rtol=1e-6)

    several = OutfeedQueue()
    with strategy.scope():
        a, b = keras.Input((2,)), keras.Input((3,))
        x = Outfeed(several, name="both")({"b": b, "a": a})
        model = keras.Model([a, b], keras.layers.Concatenate()([x["a"], x["b"]]))
    model.predict([np.ones((4, 2)), np.ones((4, 3))], verbose=0)
    found = several.dequeue()["both"]
    assert {key: value.shape for key, value in found.items()} == {"b": (1, 4, 3), "a": (1, 4, 2)}


# Saving


@pytest.mark.slow
def test_a_saved_model_gets_its_queues_again(strategy, tmp_path):
    queue, many = OutfeedQueue(), MaybeOutfeedQueue()
    with strategy.scope():
        model = sequential(
            Outfeed(queue, name="acts"), MaybeOutfeed(many, name="out", final_outfeed=False)
        )
    fit(model)
    model.save(tmp_path / "model.keras")
    with pytest.raises(
        OptionError,
        match=r"'acts' needs a queue, which a config or a file(.|\n)*outfeed_queues\({'acts': q",
    ):
        keras.models.load_model(tmp_path / "model.keras")
    again, others = OutfeedQueue(), MaybeOutfeedQueue()
    with (
        pytest.raises(OptionError, match="MaybeOutfeed 'out' needs a queue"),
        outfeed_queues({"acts": again}),
    ):
        keras.models.load_model(tmp_path / "model.keras")
    with outfeed_queues({"acts": again, "out": others}), strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same_weights(loaded, model)
    assert not loaded.get_layer("out").final_outfeed
    loaded.predict(data()[0], batch_size=ROWS, verbose=0)
    assert again.dequeue()["acts"].shape == (STEPS, ROWS, 16)
    with pytest.raises(OptionError, match="needs a queue"):
        keras.models.clone_model(model)


def test_one_queue_for_all_layers_of_a_clone(strategy):
    queue, other = MaybeOutfeedQueue(), MaybeOutfeedQueue()
    model = sequential(MaybeOutfeed(queue, name="a", final_outfeed=False), MaybeOutfeed(queue))
    with outfeed_queues(other), strategy.scope():
        clone = keras.models.clone_model(model)
    fit(clone)
    assert not queue.enqueued
    assert next(iter(other.dequeue())) == "a"


def test_something_else_than_a_queue():
    with pytest.raises(OptionError, match=r"Outfeed 'a' .* millrace.OutfeedQueue. Received: None"):
        Outfeed(None, name="a")
    with pytest.raises(OptionError, match=r"queue = millrace.MaybeOutfeedQueue\(\)"):
        MaybeOutfeed(OutfeedQueue(), name="a")


# Replicas


@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_replica_gives_its_own_inputs(accumulation):
    queue = MaybeOutfeedQueue()
    with millrace.Strategy(devices=2).scope():
        model = sequential(MaybeOutfeed(queue, name="a", final_outfeed=False), MaybeOutfeed(queue))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    fit(model, learning_rate=0.0, steps_per_execution=STEPS)
    found = list(queue.dequeue().values())
    for values, expected in zip(found, activations(), strict=True):
        whole = expected.reshape(STEPS // 2, 2, ROWS, -1)
        np.testing.assert_allclose(values, whole, rtol=1e-5, atol=1e-6)


# Pipelines


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("filters", [None, ["Dense_10"]])
def test_a_pipeline_gives_the_inputs_of_each_micro_batch(devices, filters):
    queue = MaybeOutfeedQueue(filters=filters)
    outfeeds = [
        MaybeOutfeed(queue, final_outfeed=False, name="Dense_16_acts"),
        MaybeOutfeed(queue, name="Dense_10_acts"),
    ]
    with millrace.Strategy(devices=devices).scope():
        model = sequential(*outfeeds)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=5)
    model.set_pipeline_stage_assignment([0, 1, 1, 1])
    fit(model, learning_rate=0.0, steps_per_execution=STEPS)
    found = queue.dequeue()
    expected = dict(zip(["Dense_16_acts", "Dense_10_acts"], activations(), strict=True))
    assert list(found) == [key for key in expected if filters is None or "Dense_10" in key]
    replicas = devices // 2
    for key, values in found.items():
        lead = (STEPS,) if replicas == 1 else (STEPS // replicas, replicas)
        whole = expected[key].reshape(*lead, ROWS, -1)
        np.testing.assert_allclose(values, whole, rtol=1e-5, atol=1e-6)


def test_a_queue_in_each_stage():
    queues = OutfeedQueue(), OutfeedQueue("last")
    with millrace.Strategy(devices=2).scope():
        model = sequential(Outfeed(queues[0], name="a"), Outfeed(queues[1], name="b"))
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    fit(model, learning_rate=0.0, steps_per_execution=4)
    first, second = activations()
    np.testing.assert_allclose(queues[0].dequeue()["a"], first, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(queues[1].dequeue()["b"], second[-1], rtol=1e-5, atol=1e-6)
