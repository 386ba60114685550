"""What leaves the programs of a pipeline is what leaves those of the model in one piece."""

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pipeline_cases as pipes
import pytest
from keras import layers

import millrace
from millrace.base.options import TapRequest
from millrace.base.records.tensors import STATISTICS
from millrace.compilation.executables import executable
from millrace.errors import TapError
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.run.fit.controller import controller_of

EVERYTHING = TapRequest(activations=("*",), micro_gradients=("*",), gradients=("*",))
ROWS = 4  # of a micro-batch
STEPS = 3  # micro-batches in an update
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


class Listener:
    def __init__(self):
        self.blocks = []

    def statistics(self, block):
        self.blocks.append(block)

    def rows(self, entries):
        """Tensors, and all their values so far: "of_steps" or "of_updates", `[entries, n, 8]`."""
        found = [getattr(block, entries) for block in self.blocks]
        found = [rows for rows in found if rows is not None]
        assert len({rows.tensors for rows in found}) == 1
        return found[0].tensors, np.concatenate([rows.values for rows in found])

    def of(self, entries):
        tensors, values = self.rows(entries)
        assert len(set(map(str, tensors))) == len(tensors)
        return {str(tensor): values[:, k] for k, tensor in enumerate(tensors)}


class Sends(layers.Layer):
    """Enqueues what passes through."""

    def __init__(self, queue, **arguments):
        super().__init__(**arguments)
        self.queue = queue

    def call(self, x):
        self.queue.enqueue({"z": x, "a": keras.ops.mean(x)})
        return x


def mlp(queue=None):
    middle = [Sends(queue, name="sends")] if queue is not None else []
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "tanh", name="first", kernel_regularizer="l2"),
            layers.BatchNormalization(momentum=0.8, name="norm"),
            *middle,
            layers.Dropout(0.25, seed=2, name="drop"),
            layers.Dense(6, "relu", name="second"),
            layers.Dense(1, name="third"),
        ]
    )


MLP = {2: [0, 0, 0, 1, 1], 3: [0, 1, 1, 1, 2]}


def small():
    """Its first stage has moving statistics and random numbers."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "tanh", name="first"),
            layers.BatchNormalization(momentum=0.8, name="norm"),
            layers.Dropout(0.25, seed=2, name="drop"),
            layers.Dense(1, name="second"),
        ]
    )


SMALL = [0, 0, 0, 1]


def tied():
    """One layer that is called by the first and by the last stage."""
    layer = layers.Dense(6, "tanh", kernel_regularizer="l2", name="tied")
    inputs = keras.Input((6,))
    hidden = layers.Dense(6, "relu", name="middle")(layer(inputs))
    return keras.Model(inputs, layers.Dense(1, name="last")(layer(hidden)))


TIED = [0, 1, 2, 2]


def nested():
    """A model in a model, cut within the inner one."""
    inner = keras.Sequential(
        [keras.Input((8,)), layers.Dense(5, "tanh", name="left"), layers.Dense(8, name="right")],
        name="inner",
    )
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, "tanh", name="before")(inputs)
    hidden = layers.Add(name="sum")([hidden, inner(hidden)])
    return keras.Model(inputs, layers.Dense(1, name="after")(hidden))


def data(batches):
    random = np.random.default_rng(3)
    x = random.standard_normal((batches * ROWS, 6)).astype("float32")
    return x, x.sum(1, keepdims=True)


def make(build, devices=1, optimizer="adam", executed=2, steps=STEPS):
    keras.utils.set_random_seed(1)
    with pipes.strategy(devices).scope():
        model = build()
    replicas = max(1, devices // 2) if devices > 3 else 1
    model.compile(optimizer, "mse", steps_per_execution=steps * executed * replicas)
    return model


def pipeline(build, stages, devices=None, optimizer="adam", steps=STEPS, executed=2, **options):
    number = max(stages) + 1
    model = make(build, devices or number, optimizer, executed, steps)
    pipes.cut(model, stages)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=steps, **options)
    return model


def in_one_piece(build, optimizer="adam", steps=STEPS, executed=2):
    model = make(build, 1, optimizer, executed, steps)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)
    return model


def fit(model, batches, given=None, **arguments):
    x, y = data(batches) if given is None else given
    return model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0, **arguments)


def watched(model, batches, taps=EVERYTHING, given=None):
    listener, controller = Listener(), controller_of(model)
    controller.watch(listener, taps)
    fit(model, batches, given)
    controller.watchers.unwatch(listener)
    return listener


@functools.cache
def expected(build, batches):
    return watched(in_one_piece(build), batches)


def assert_same_rows(found, wanted, entries, count):
    found, wanted = found.of(entries), wanted.of(entries)
    assert set(found) == set(wanted)
    for tensor, rows in wanted.items():
        assert found[tensor].shape == rows.shape == (count, len(STATISTICS)), tensor
        np.testing.assert_allclose(found[tensor], rows, **CLOSE, err_msg=f"{entries} {tensor}")


CASES = {
    "two": (mlp, MLP[2], {}),
    "three-gpipe": (mlp, MLP[3], {"pipeline_schedule": "gpipe"}),
    "three-zero-bubble": (mlp, MLP[3], {"pipeline_schedule": "zero_bubble"}),
    "one-device": (mlp, MLP[2], {"device_mapping": [0, 0], "devices": 1}),
    "nested": (nested, [0, 0, 1, 1, 1], {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values())
def test_every_tensor_is_reported_once_and_as_in_one_piece(case):
    build, stages, options = case
    batches = 7  # two updates of three, and one of one
    found, wanted = watched(pipeline(build, stages, **options), batches), expected(build, batches)
    assert_same_rows(found, wanted, "of_steps", 7)
    assert_same_rows(found, wanted, "of_updates", 3)
    assert [(block.steps, block.updates) for block in found.blocks] == [
        (1, 0), (1, 0), (1, 1), (1, 0), (1, 0), (1, 1), (1, 1)
    ]  # fmt: skip


@pytest.mark.slow
def test_tensors_have_the_stage_at_which_they_arise():
    tensors, _ = watched(pipeline(mlp, MLP[3]), 3).rows("of_steps")
    found = [(tensor.stage, tensor.kind, tensor.name) for tensor in tensors]
    assert found == [
        (0, "activation", "first"),
        (0, "gradient", "first/kernel"),
        (0, "gradient", "first/bias"),
        (1, "activation", "norm"),
        (1, "activation", "drop"),
        (1, "activation", "second"),
        (1, "gradient", "norm/gamma"),
        (1, "gradient", "norm/beta"),
        (1, "gradient", "second/kernel"),
        (1, "gradient", "second/bias"),
        (2, "activation", "third"),
        (2, "gradient", "third/kernel"),
        (2, "gradient", "third/bias"),
    ]


def numbers(value):
    """The eight statistics, by NumPy."""
    value = np.asarray(value, np.float64)
    shares = (value == 0).mean(), np.isnan(value).sum(), np.isinf(value).sum()
    norm = np.sqrt(np.square(value).sum())
    return np.array([value.mean(), value.std(), value.min(), value.max(), norm, *shares])


@pytest.mark.slow
def test_statistics_are_those_of_numpy():
    """Of a plain Keras model, whose gradients are written down here."""

    def build():
        hidden = [layers.Dense(5, "tanh", name="first"), layers.Dense(1, name="second")]
        return keras.Sequential([keras.Input((6,)), *hidden])

    found = watched(pipeline(build, [0, 1], optimizer="sgd"), STEPS)
    x, y = data(STEPS)
    keras.utils.set_random_seed(1)
    weights = [jnp.asarray(v.value) for v in build().trainable_variables]

    def loss(weights, x, y):
        hidden = jnp.tanh(x @ weights[0] + weights[1])
        outputs = hidden @ weights[2] + weights[3]
        return jnp.square(outputs - y).mean(), (hidden, outputs)

    steps, updates = found.of("of_steps"), found.of("of_updates")
    names = ["first/kernel", "first/bias", "second/kernel", "second/bias"]
    total = [0.0] * 4
    for step in range(STEPS):
        rows = slice(step * ROWS, (step + 1) * ROWS)
        gradients, (hidden, outputs) = jax.grad(loss, has_aux=True)(weights, x[rows], y[rows])
        total = [t + g / STEPS for t, g in zip(total, gradients, strict=True)]
        for name, value in (("first", hidden), ("second", outputs)):
            row = steps[f"activation {name}"][step]
            np.testing.assert_allclose(row, numbers(value), **CLOSE)
        for name, value in zip(names, gradients, strict=True):
            np.testing.assert_allclose(steps[f"gradient {name}"][step], numbers(value), **CLOSE)
    for name, value in zip(names, total, strict=True):
        np.testing.assert_allclose(updates[f"gradient {name}"][0], numbers(value), **CLOSE)


@pytest.mark.slow
def test_a_shared_weight_has_a_micro_gradient_at_each_stage():
    found = watched(pipeline(tied, TIED), STEPS)
    tensors, _ = found.rows("of_steps")
    names = [(t.stage, t.name) for t in tensors if t.kind == "gradient" and "tied" in t.name]
    assert names == [(0, "tied/kernel"), (0, "tied/bias"), (2, "tied/kernel"), (2, "tied/bias")]
    names = [(t.stage, t.name) for t in tensors if t.kind == "activation" and "tied" in t.name]
    assert names == [(0, "tied"), (2, "tied#1")]
    wanted = watched(in_one_piece(tied), STEPS)
    assert_same_rows(found, wanted, "of_updates", 1)


# The last update of 13 has one batch.
@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "batches"), [("1f1b", 13), ("zero_bubble", 12)])
def test_replicas_of_a_pipeline_report_each_batch(schedule, batches):
    model = pipeline(small, SMALL, devices=4, steps=2, executed=1, pipeline_schedule=schedule)
    wanted = watched(in_one_piece(small, steps=4), batches)
    found = watched(model, batches)
    assert_same_rows(found, wanted, "of_steps", batches)
    assert_same_rows(found, wanted, "of_updates", -(-batches // 4))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
def test_what_a_layer_enqueues_arrives_in_all_three_loops(devices):
    queue = OutfeedQueue()
    model = pipeline(lambda: mlp(queue), [0, 0, 0, 1, 1, 1], devices, steps=2, executed=1)
    x, y = data(8)
    axes = (8,) if devices == 2 else (4, 2)
    loops = (
        lambda: fit(model, 8),
        lambda: model.evaluate(x, y, batch_size=ROWS, verbose=0),
        lambda: model.predict(x, batch_size=ROWS, verbose=0),
    )
    for run in loops:
        run()
        found = queue.dequeue()
        assert list(found) == ["z", "a"]
        assert found["z"].shape == (*axes, ROWS, 8)
        assert found["a"].shape == axes
        np.testing.assert_allclose(found["z"].mean((-2, -1)), found["a"], rtol=1e-5, atol=1e-6)
    one = mlp(OutfeedQueue())
    one.set_weights(model.get_weights())
    hidden = keras.Model(one.inputs, one.get_layer("norm").output)
    np.testing.assert_allclose(
        found["z"].reshape(-1, 8), hidden.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )


def test_leaves_of_two_stages_are_one_value():
    queue = OutfeedQueue()

    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = layers.Dense(5), layers.Dense(1)

        def call(self, x):
            with millrace.PipelineStage(0):
                hidden = self.first(x)
            with millrace.PipelineStage(1):
                outputs = self.second(hidden)
            queue.enqueue((hidden, {"out": outputs, "in": keras.ops.sum(hidden)}))
            return outputs

    def build():
        model = Two()
        model(keras.Input((6,)))
        return model

    model = make(build, 2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=STEPS)
    fit(model, 6)
    hidden, rest = queue.dequeue()
    assert hidden.shape == (6, ROWS, 5)
    assert list(rest) == ["out", "in"]
    assert rest["out"].shape == (6, ROWS, 1)
    np.testing.assert_allclose(rest["in"], hidden.sum((1, 2)), rtol=1e-5, atol=1e-5)


class Shows(keras.optimizers.SGD):
    """Enqueues gradients by the names of their variables."""

    def __init__(self, queue, before=False, key=lambda v: v.path, **arguments):
        super().__init__(0.1, **arguments)
        self.queue, self.before, self.key = queue, before, key

    def stateless_apply(self, values, gradients, weights):
        if self.before:
            self.enqueue(gradients, self._trainable_variables)
        return super().stateless_apply(values, gradients, weights)

    def tap_micro_gradients(self, gradients, variables):
        if not self.before:
            self.enqueue(gradients, variables)

    def enqueue(self, gradients, variables):
        pairs = list(zip(variables, gradients, strict=True))
        self.queue.enqueue({self.key(v): g for v, g in reversed(pairs)})


@pytest.mark.slow
@pytest.mark.parametrize(("before", "schedule"), [(True, "1f1b"), (False, "zero_bubble")])
def test_what_an_optimizer_enqueues_is_one_value_of_all_stages(before, schedule):
    queues = OutfeedQueue(), OutfeedQueue()
    arguments = {"before": before, "global_clipnorm": 1.0}
    model = pipeline(
        mlp, MLP[3], optimizer=Shows(queues[0], **arguments), pipeline_schedule=schedule
    )
    fit(model, 6)
    fit(in_one_piece(mlp, Shows(queues[1], **arguments)), 6)
    found, wanted = (
        {name.split("/", 1)[1]: value for name, value in queue.dequeue().items()}
        for queue in queues
    )
    assert list(found) == list(wanted)  # from the last variable to the first
    for name, value in wanted.items():
        assert value.shape[0] == (2 if before else 6)
        np.testing.assert_allclose(found[name], value, **CLOSE, err_msg=name)


@pytest.mark.slow
def test_what_an_optimizer_makes_of_all_gradients_leaves_too():
    """A norm over all stages, which only the last one has."""
    queue = OutfeedQueue()

    class Norm(Shows):
        def enqueue(self, gradients, variables):
            total = sum(keras.ops.sum(keras.ops.square(g)) for g in gradients)
            self.queue.enqueue((keras.ops.sqrt(total), gradients[0] / total))

    found = watched(pipeline(small, SMALL, optimizer=Norm(queue, before=True)), STEPS)
    norm, first = queue.dequeue()
    each = [rows[0, STATISTICS.index("norm")] for rows in found.of("of_updates").values()]
    np.testing.assert_allclose(norm, [np.linalg.norm(each)], rtol=1e-5)
    assert first.shape == (1, 6, 8)


def test_replicas_show_the_gradients_of_each():
    queue = OutfeedQueue()
    model = pipeline(small, SMALL, devices=4, optimizer=Shows(queue), steps=2, executed=1)
    fit(model, 8)
    shapes = {name.split("/", 1)[1]: v.shape for name, v in queue.dequeue().items()}
    assert shapes["first/kernel"] == (4, 2, 6, 8)
    assert shapes["second/bias"] == (4, 2, 1)


@pytest.mark.parametrize(
    ("build", "stages", "key", "said"),
    [
        (tied, TIED, lambda v: v.path.split("/", 1)[-1],
         r"dicts that all have \['bias', 'kernel'\].*stages \[0, 1, 2\]"),
        (small, SMALL, None, r"values that are no dicts.*stages \[0, 1\].*before_apply"),
    ],
)  # fmt: skip
def test_micro_gradients_that_do_not_fit_together_are_refused(build, stages, key, said):
    class List(Shows):
        def enqueue(self, gradients, variables):
            self.queue.enqueue(list(gradients))

    optimizer = List(OutfeedQueue()) if key is None else Shows(OutfeedQueue(), key=key)
    with pytest.raises(TapError, match=said):
        fit(pipeline(build, stages, optimizer=optimizer), STEPS)


def test_a_queue_of_a_layer_and_of_gradients_is_refused():
    queue = OutfeedQueue()
    model = pipeline(lambda: mlp(queue), [0, 0, 0, 1, 1, 1], optimizer=Shows(queue))
    with pytest.raises(TapError, match=r"one from a layer.*tap_micro_gradients.*queue for each"):
        fit(model, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
def test_watching_changes_no_weight(devices):
    plain, looked_at = (pipeline(small, SMALL, devices=devices) for _ in range(2))
    fit(plain, 12)
    watched(looked_at, 12)
    for mine, theirs in zip(looked_at.variables, plain.variables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7, err_msg=mine.path)


@pytest.mark.slow
def test_statistics_of_every_third_update():
    """Over executions of two updates, and from where an earlier fit has come to."""
    model = pipeline(small, SMALL)
    listener, controller = Listener(), controller_of(model)
    controller.watch(listener, TapRequest(activations=("*",), gradients=("*",), every=3))
    fit(model, 4 * STEPS)
    fit(model, 4 * STEPS)
    controller.watchers.unwatch(listener)
    for entries, of_one in (("of_steps", STEPS), ("of_updates", 1)):
        _, values = listener.rows(entries)
        due = np.repeat(np.arange(8) % 3 == 0, of_one)
        assert (values[~due][..., 6:] == -1).all()
        assert np.isnan(values[~due][..., :6]).all()
        assert np.isfinite(values[due]).all()
        assert (values[due][..., 6:] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
def test_a_halted_update_is_not_applied(devices):
    """Batch 5 of 12 has a NaN: of the updates of two batches, two are applied."""
    replicas = devices // 2
    x, y = data(12)
    x[5 * ROWS] = np.nan

    def run(given, executed):
        model = pipeline(small, SMALL, devices=devices, steps=2 // replicas, executed=executed)
        taps = TapRequest(gradients=("*",), stops=True)
        listener = watched(model, 12, taps, given)
        return model, listener, controller_of(model).functions.running

    model, listener, function = run((x, y), 6)
    assert function.halted.step == 4
    assert len(function.halted.batches) == 2
    for k, batch in enumerate(function.halted.batches):
        np.testing.assert_array_equal(batch[0], x[(4 + k) * ROWS : (5 + k) * ROWS])
    assert [(block.steps, block.updates) for block in listener.blocks] == [(2, 1)] * 3
    assert int(model.optimizer.iterations) == 2
    plain, _, function = run((x[: 4 * ROWS], y[: 4 * ROWS]), 2)
    assert function.halted is None
    for mine, theirs in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7, err_msg=mine.path)


def test_statistics_of_updates_alone_come_once_for_each():
    found = watched(pipeline(small, SMALL), 6, TapRequest(gradients=("second/*",)))
    assert [(block.steps, block.updates) for block in found.blocks] == [(3, 1)] * 2
    assert list(found.of("of_updates")) == ["gradient second/kernel", "gradient second/bias"]
    assert all(block.of_steps is None for block in found.blocks)


@pytest.mark.slow
def test_programs_without_taps_are_those_of_no_taps(monkeypatch):
    """Nor do patterns that match nothing change them."""
    texts = []

    def spy(lowering, log):
        texts.append((lowering.wanted.key.program, lowering.lowered.as_text()))
        return make(lowering, log)

    make = executable.share_or_compile
    monkeypatch.setattr(executable, "share_or_compile", spy)
    fit(pipeline(small, SMALL), 3)
    plain, texts = texts, []
    nothing = ("none of them",)
    watched(
        pipeline(small, SMALL), 3, TapRequest(activations=nothing, gradients=nothing, stops=True)
    )
    assert len(plain) == 9  # forward, backward, zeros, final of two stages; logs
    assert sorted(texts) == sorted(plain)  # threads compile them


@pytest.mark.slow
def test_statistics_are_of_gradients_without_the_scale_of_the_loss():
    keras.config.set_dtype_policy("mixed_float16")
    found, wanted = watched(pipeline(small, SMALL), STEPS), watched(in_one_piece(small), STEPS)
    norm = STATISTICS.index("norm")
    for entries in ("of_steps", "of_updates"):
        mine, theirs = found.of(entries), wanted.of(entries)
        for tensor, rows in theirs.items():
            np.testing.assert_allclose(
                mine[tensor][:, norm], rows[:, norm], rtol=0.01, atol=1e-4, err_msg=tensor
            )
