"""Models cut into stages, and trainings to compare them with.

    pipelined(case, stages, steps)     the case's model as a pipeline
    accumulated(case, steps)           the same model in one piece, with as many steps in an update
    cases.compiled(case)               the same model in plain Keras, for one step in an update
    run(case, model)                   fit with validation, evaluate, predict -> Run

`stages` is a number of stages, over which the calls are shared out evenly, or one stage per call.
The models here are those that only matter to pipelines; all others are in `cases`.
"""

import functools
from dataclasses import dataclass
from typing import Any

import cases
import keras
import numpy as np
from keras import layers, ops

import millrace

STEPS = 2  # in an update, where nothing else is said


@functools.cache
def strategy(devices: int = 1) -> millrace.Strategy:
    """One for all tests, on so many of eight virtual CPU devices."""
    return millrace.Strategy(millrace.Strategy(devices="cpu:8").devices[:devices])


def devices_of(stages: int | list[int], device_mapping: list[int] | None = None) -> int:
    """Returns how many devices one pipeline takes; twice as many would be two replicas of it."""
    if device_mapping is not None:
        return max(device_mapping) + 1
    return stages if isinstance(stages, int) else max(stages) + 1


def leaf_calls(items: list[Any]) -> list[Any]:
    """Returns the objects of `get_pipeline_stage_assignment`, those of nested models opened."""
    found: list[Any] = []
    for item in items:
        inner = getattr(item, "pipeline_stage_assignments", None)
        found += [item] if inner is None else leaf_calls(inner)
    return found


def cut(model: keras.Model, stages: int | list[int]) -> None:
    """Assigns the calls of a model, in execution order, to stages."""
    assignment = model.get_pipeline_stage_assignment()
    calls = leaf_calls(assignment)
    if isinstance(stages, int):
        stages = [number * stages // len(calls) for number in range(len(calls))]
    for call, stage in zip(calls, stages, strict=True):
        call.pipeline_stage = stage
    model.set_pipeline_stage_assignment(assignment)


def build(case: cases.Case, model: keras.Model) -> None:
    """Builds a subclassed model: before that, nobody knows its calls."""
    if not model.built and not isinstance(model, keras.Sequential):
        model(case.data(cases.BATCH_SIZE)["x"])


def pipelined(
    case: cases.Case,
    stages: int | list[int] | None = 2,
    steps: int = STEPS,
    executed: int = 2,
    devices: int | None = None,
    **options: Any,
) -> keras.Model:
    """Returns the case's model as a pipeline; `executed` updates are one execution.

    `devices` are those that the stages need, and must be given where scopes say the stages.
    """
    if devices is None:
        devices = devices_of(stages, options.get("device_mapping"))
    model = cases.compiled(case, strategy(devices), steps * executed)
    build(case, model)
    if stages is not None:
        cut(model, stages)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=steps, **options)
    return model


def accumulated(
    case: cases.Case, steps: int = STEPS, executed: int = 2, **options: Any
) -> keras.Model:
    """Returns the case's model in one piece, which accumulates as the pipeline does."""
    model = cases.compiled(case, strategy(1), steps * executed)
    build(case, model)
    model.reset_pipeline_stage_assignment()  # that of scopes
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=steps, **options
    )
    return model


def plain(case: cases.Case) -> keras.Model:
    """Returns the case's model without millrace."""
    model = cases.compiled(case)
    build(case, model)
    return model


@dataclass(frozen=True)
class Run:
    """What a training left behind, and what the trained model says."""

    outcome: cases.Outcome
    evaluated: dict[str, float]
    predicted: Any


def run(case: cases.Case, model: keras.Model) -> Run:
    """Fits with validation, evaluates and predicts; the last batch of each may be smaller."""
    data = case.data(case.rows)
    outcome = fit(case, model, validation_data=cases.first(data, case.rows - 12))
    arguments = {"batch_size": cases.BATCH_SIZE, "verbose": 0}
    evaluated = model.evaluate(**data, return_dict=True, **arguments)
    return Run(outcome, evaluated, model.predict(data["x"], **arguments))


def fit(case: cases.Case, model: keras.Model, **arguments: Any) -> cases.Outcome:
    """Fits for two epochs."""
    data = case.data(case.rows)
    arguments = {
        "batch_size": cases.BATCH_SIZE, "epochs": cases.EPOCHS, **case.fit(data), **arguments
    }  # fmt: skip
    keras.utils.set_random_seed(2)
    return cases.outcome(model, model.fit(**data, **arguments, verbose=0))


def assert_same_runs(found: Run, expected: Run, tolerance: cases.Tolerance) -> None:
    """Asserts that history, all variables, evaluation and predictions are the same."""
    cases.assert_same(found.outcome, expected.outcome, tolerance)
    assert list(found.evaluated) == list(expected.evaluated)
    cases.assert_close(found.evaluated, expected.evaluated, tolerance)
    cases.assert_close(found.predicted, expected.predicted, tolerance)


def assert_bits(found: cases.Outcome, expected: cases.Outcome) -> None:
    """Asserts that losses and all variables are the same to the last bit."""
    assert found.history == expected.history
    for (_, value), (name, other) in zip(found.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(value, other, err_msg=name)


def assert_as_accumulated(
    case: cases.Case,
    stages: int | list[int] | None = 2,
    steps: int = STEPS,
    options: dict[str, Any] | None = None,
    **pipelining: Any,
) -> keras.Model:
    """Asserts that a pipeline trains as the model in one piece. Returns the pipeline."""
    model = pipelined(case, stages, steps, **pipelining)
    found = fit(case, model)
    cases.assert_same(found, in_one_piece(case, steps, **(options or {})), case.tolerance)
    return model


@functools.cache
def in_one_piece(case: cases.Case, steps: int, **options: Any) -> cases.Outcome:
    return fit(case, accumulated(case, steps, **options))


def dropouts() -> keras.Model:
    """Six layers, with the statistics and the random numbers of several stages."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "relu", kernel_regularizer="l2"),
            layers.BatchNormalization(momentum=0.8),
            layers.Dropout(0.3),
            layers.Dense(6, "tanh"),
            layers.Dropout(0.2),
            layers.Dense(1, "sigmoid"),
        ]
    )


@ops.custom_gradient
def explosion(inputs: Any) -> Any:
    """Passes values on; gradients at values of more than 10 become infinite."""

    def grad(*args: Any, upstream: Any = None) -> Any:
        (upstream,) = args if upstream is None else (upstream,)
        return ops.where(ops.abs(inputs) > 10, np.inf, upstream)

    return inputs, grad


class Explodes(layers.Layer):
    def call(self, inputs: Any) -> Any:
        return explosion(inputs)


def explosive() -> keras.Model:
    hidden = [layers.Dense(8, "relu"), Explodes(), layers.Dense(1, "sigmoid")]
    return keras.Sequential([keras.Input((6,)), *hidden])


def tied_dense() -> keras.Model:
    """One layer that is called by the first and by the last stage."""
    layer = layers.Dense(6, "tanh", kernel_regularizer="l2", name="tied")
    inputs = keras.Input((6,))
    hidden = layers.Dense(6, "relu")(layer(inputs))
    hidden = layers.Dropout(0.2)(hidden)
    return keras.Model(inputs, layers.Dense(1, "sigmoid")(layer(hidden)))


TIED_DENSE = [0, 1, 1, 2, 2]


def two_towers() -> keras.Model:
    """A backbone with statistics and random numbers that is called for each of two inputs."""
    backbone = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, use_bias=False),
            layers.BatchNormalization(),
            layers.Dense(8, "relu"),
            layers.Dropout(0.2),
            layers.Dense(4),
        ]
    )
    left, right = keras.Input((6,)), keras.Input((6,))
    apart = layers.Subtract()([backbone(left), backbone(right)])
    return keras.Model([left, right], layers.Dense(1, "sigmoid")(apart))


def pairs(rows: int = cases.WHOLE) -> dict[str, Any]:
    data = cases.table(rows)
    return {"x": [data["x"], data["x"][::-1].copy()], "y": data["y"]}


class Unembed(layers.Layer):
    """Scores for each word, by the table of an Embedding."""

    def __init__(self, embedding: layers.Embedding, **kwargs: Any):
        super().__init__(**kwargs)
        self.embedding = embedding

    def call(self, inputs: Any) -> Any:
        return ops.matmul(inputs, ops.transpose(self.embedding.embeddings))


def tied_embedding() -> keras.Model:
    embedding = layers.Embedding(11, 4, name="words")
    inputs = keras.Input((6,), dtype="int32")
    hidden = layers.Dense(4, "tanh")(embedding(inputs))
    hidden = layers.LayerNormalization()(hidden)
    return keras.Model(inputs, Unembed(embedding)(hidden))


class Block(layers.Layer):
    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.norm = layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(2, 2, dropout=0.1)
        self.feed_forward = layers.Dense(4, "gelu")

    def call(self, inputs: Any, training: Any = None) -> Any:
        hidden = self.norm(inputs)
        hidden = inputs + self.attention(hidden, hidden, use_causal_mask=True, training=training)
        return hidden + self.feed_forward(hidden)


class TinyGpt(keras.Model):
    """Words in and scores of the next words out, with one table for both, on three stages."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        # Of the size that LayerNormalization makes it: Keras's default is a twentieth of it, and
        # so would be blown up with its rounding errors.
        normal = keras.initializers.RandomNormal(stddev=1.0)
        self.embedding = layers.Embedding(11, 4, embeddings_initializer=normal)
        self.positions = layers.Embedding(6, 4)
        self.blocks = [Block(), Block()]
        self.norm = layers.LayerNormalization()

    def call(self, inputs: Any, training: Any = None) -> Any:
        with self.stage(0):
            hidden = self.embedding(inputs) + self.positions(ops.arange(6))
            hidden = self.blocks[0](hidden, training=training)
        with self.stage(1):
            hidden = self.blocks[1](hidden, training=training)
        with self.stage(2):
            return ops.matmul(self.norm(hidden), ops.transpose(self.embedding.embeddings))

    def stage(self, number: int) -> Any:
        return millrace.PipelineStage(number)


def next_words(rows: int = cases.WHOLE) -> dict[str, Any]:
    x = cases.words(rows)["x"]
    return {"x": x, "y": np.roll(x, -1, axis=1)}


def word_scores() -> dict[str, Any]:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {"optimizer": keras.optimizers.SGD(0.1, momentum=0.9), "loss": loss, "metrics": None}
