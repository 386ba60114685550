"""`"auto"` for models of open lengths: the lengths of `fit` decide the stages, and nothing else."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import millrace

pytestmark = pytest.mark.quick

VOCABULARY, LENGTH = 20, 6
IDS = np.random.default_rng(0).integers(1, VOCABULARY, (16, LENGTH)).astype("int32")
LONG = np.ones((4, 300), "int32")
MASK = np.arange(LENGTH) < np.arange(1, 17)[:, None]


class Positions(layers.Layer):
    """Has a vector for each of six places, and no more."""

    def build(self, shape):
        self.table = self.add_weight(shape=(LENGTH, shape[-1]), name="table")

    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        table = ops.convert_to_tensor(self.table)
        return x + ops.slice(table, (0, 0), (x.shape[1], x.shape[2]))


class TiedHead(layers.Layer):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def call(self, x):
        return ops.matmul(x, ops.transpose(self.embedding.embeddings))


def decoder_of_two_inputs():
    ids = keras.Input((None,), dtype="int32", name="ids")
    mask = keras.Input((None,), dtype="bool", name="mask")
    embedding = layers.Embedding(VOCABULARY, 8)
    hidden = Positions()(embedding(ids))
    attention = layers.MultiHeadAttention(2, 4)
    hidden += attention(hidden, hidden, attention_mask=ops.expand_dims(mask, 1))
    return keras.Model({"ids": ids, "mask": mask}, TiedHead(embedding)(layers.Dense(8)(hidden)))


def sequential_without_input():
    return keras.Sequential(
        [layers.Embedding(VOCABULARY, 8), Positions(), layers.Dense(VOCABULARY)]
    )


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [layers.Embedding(VOCABULARY, 8), Positions(), layers.Dense(8, "tanh")]
        self.head = layers.Dense(VOCABULARY)

    def call(self, x, training=False):
        for part in self.parts:
            x = part(x)
        return self.head(x)


def attention():
    """Most of its FLOPs are in the attention of long data, and in the head of short data."""
    ids = keras.Input((None,), dtype="int32")
    hidden = layers.Embedding(VOCABULARY, 4)(ids)
    hidden += layers.MultiHeadAttention(1, 4)(hidden, hidden)
    return keras.Model(ids, layers.Dense(VOCABULARY)(layers.Dense(150)(hidden)))


def compiled(make, **options):
    keras.utils.set_random_seed(1)
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, **options)
    return model


def cut_at_fit(strategy, make):
    with strategy.scope():
        model = compiled(make, steps_per_execution=2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=1)
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    return model


def summary(model):
    lines = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    return "\n".join(lines)


def stages(model):
    return [each.pipeline_stage for each in model.get_pipeline_stage_assignment()]


def fit(model, ids):
    model.fit(ids, ids, batch_size=2, shuffle=False, verbose=0)


@pytest.fixture(scope="module")
def two_devices():
    return millrace.Strategy(devices="cpu:2")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(decoder_of_two_inputs, marks=pytest.mark.slow),
        sequential_without_input,
        Subclassed,
    ],
)
def test_fit_decides_and_trains_as_keras(two_devices, make):
    x = {"ids": IDS, "mask": MASK} if make is decoder_of_two_inputs else IDS
    plain, model = compiled(make), cut_at_fit(two_devices, make)
    if make is decoder_of_two_inputs:
        assert "at fit" in summary(model)
    for each in (plain, model):
        keras.utils.set_random_seed(2)  # for weights that fit makes
        each.fit(x, IDS, batch_size=8, shuffle=False, verbose=0)
    assert set(stages(model)) == {0, 1}
    assert "at fit" not in summary(model)
    assert f"int32[8,{LENGTH}]" in summary(model)
    for before, now in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(now, before, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_what_decides_and_what_does_not(two_devices, tmp_path):
    short = cut_at_fit(two_devices, attention)
    fit(short, IDS)
    model = cut_at_fit(two_devices, attention)
    model.predict(IDS, verbose=0)
    model.evaluate(IDS, IDS, verbose=0)
    two_devices.memory_report(model, (IDS, IDS))
    assert set(stages(model)) == {None}
    model.save(tmp_path / "open.keras")
    model.train_on_batch(LONG[:2], LONG[:2])
    of_long = stages(model)
    assert of_long != stages(short)
    fit(model, IDS)  # another length, and an evaluation: the weights stay where they are
    model.evaluate(IDS, IDS, verbose=0)
    assert stages(model) == of_long
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    model.precompile((LONG[:2], LONG[:2]))
    assert stages(model) == of_long
    for batch, expected in (((IDS[:2], IDS[:2]), stages(short)), (((2, 300), "int32"), of_long)):
        model.set_pipeline_stage_assignment("auto", num_stages=2, batch_spec=batch)
        assert stages(model) == expected
    with two_devices.scope():
        loaded = keras.models.load_model(tmp_path / "open.keras")
    assert "at fit" in summary(loaded)
    fit(loaded, LONG)
    assert stages(loaded) == of_long
    loaded.save(tmp_path / "decided.keras")
    with two_devices.scope():
        assert stages(keras.models.load_model(tmp_path / "decided.keras")) == of_long


def test_a_list_is_counted_at_fit(two_devices):
    model = cut_at_fit(two_devices, attention)
    items = model.get_pipeline_stage_assignment()
    for number, item in enumerate(items):
        item.pipeline_stage = int(number > 2)
    model.set_pipeline_stage_assignment(items)
    assert summary(model).count("at fit") == 4  # FLOPs and shares of both
    model.train_on_batch(IDS[:2], IDS[:2])
    assert "at fit" not in summary(model)


@pytest.mark.slow
def test_a_plan_knows_the_lengths(two_devices):
    model = cut_at_fit(two_devices, decoder_of_two_inputs)
    batch = ({"ids": IDS, "mask": MASK}, IDS)
    plan = two_devices.plan(model, batch, memory="1GB")
    assert any(each.update.stages > 1 for each in plan.alternatives)
    assert set(stages(model)) == {None}


class Buckets(keras.utils.PyDataset):
    """Short batches, and then long ones."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return (IDS[:2], IDS[:2]) if index < 4 else (LONG[:2], LONG[:2])


@pytest.mark.slow
def test_a_resumed_training_keeps_the_stages(two_devices, tmp_path):
    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch >= 7:
                raise RuntimeError("breaks")

    whole, broken, resumed = (cut_at_fit(two_devices, attention) for _ in range(3))
    checkpoint = millrace.callbacks.Checkpoint(tmp_path, every_steps=2)
    options = {"epochs": 2, "shuffle": False, "verbose": 0}
    whole.fit(Buckets(), **options)
    with pytest.raises(RuntimeError, match="breaks"):
        broken.fit(Buckets(), callbacks=[checkpoint, Break()], **options)
    resumed.fit(Buckets(), callbacks=[checkpoint], **options)
    assert stages(resumed) == stages(whole)
    for before, now in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(now, before)
