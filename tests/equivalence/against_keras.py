"""Any model under a strategy against plain Keras, from the same weights and the same data.

    compare(Subject(name, build, data, compile)) -> {"one piece": Comparison | Refusal, ...}

    way           under a strategy                        plain Keras, in the same process
    one piece     nothing is set                          the same
    accumulated   ACCUMULATION steps make an update       an optimizer that accumulates as many
    cut           as accumulated, in two stages of        the same as for `accumulated`
                  equal cost, each on its own device
    budget        recomputes within 0.8 of its memory     the same as for `one piece`
    parts         each batch in two parts, micro_batch    the same as for `one piece`
    replicas      on ACCUMULATION devices, of which       the same as for `accumulated`
                  each takes a step of an update
    sharded       as replicas, which share out weights    the same as for `accumulated`
                  and the optimizer's state
    cut, sharded  as sharded, each replica in two stages  the same as for `accumulated`
    resumed       the last epoch is trained from a        the same as for `accumulated`
                  checkpoint of the first, accumulated

An optimizer of Keras that accumulates takes the mean of the gradients of its steps, as millrace
does for steps of equal size; it counts schedules, averages of weights and clipping differently, so
that a Subject with these is compared with accumulated_by_hand.
What millrace refuses is a Refusal with its error. Nothing here judges: tests and tables do.

    losses    largest relative difference of any log of any epoch
    weights   largest |a - b| / (1 + |b|) of any number in any variable of the model: what the other
              tests here hold below 1e-6
    updates   norm of the difference of all trained weights, over the norm of what training changed
              in them. After a small change much of it is the rounding of weights to float32
    same answers  whether the trained models answer `ask` alike

Deep models blow rounding up, so that no two programs of one model agree. Which of them is nearer to
the truth is measured by `reference`: plain Keras in float64, without the random numbers of dropout.
"""

import gc
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import keras
import numpy as np
import pipeline_cases as pipes
from accumulated_by_hand import accumulate_by_hand

import millrace
from millrace.errors import MillraceError

ACCUMULATION = 2
WAYS = ("one piece", "accumulated", "cut")
MORE_WAYS = ("parts", "replicas", "sharded", "cut, sharded", "resumed")
SHARDED = {"replicated_optimizer_state_sharding": True, "replicated_weight_sharding": True}


@dataclass(frozen=True)
class Subject:
    """A model that somebody brings, and how it is trained.

    build: makes the model anew; random numbers of its weights come from Keras's seed.
    data: makes the arguments of `fit` that are data, `x` and `y`; an even number of equal batches.
    compile: makes the arguments of `compile` anew. It is called with what the optimizer is to be
        made with: nothing, or `gradient_accumulation_steps=2`.
    fit: further arguments of `fit`.
    policy: of all layers.
    by_hand: whether accumulation is compared with a loop of hand in place of an optimizer of Keras
        that accumulates: for clipping, schedules and averages, and optimizers that cannot. A
        function makes each batch of a model be so many batches of one update.
    ask: what the trained model is asked: what it generates, for one.
    """

    name: str
    build: Callable[[], keras.Model]
    data: Callable[[], dict[str, Any]]
    compile: Callable[..., dict[str, Any]]
    batch_size: int | None = 4
    epochs: int = 2
    fit: Mapping[str, Any] = field(default_factory=dict)
    policy: str = "float32"
    by_hand: bool | Callable[[keras.Model, int], keras.Model] = False
    ask: Callable[[keras.Model], np.ndarray | None] = lambda model: None


@dataclass(frozen=True)
class Trained:
    """What a training left behind."""

    history: dict[str, list[float]]
    start: list[np.ndarray]  # of the trainable variables
    trainable: list[np.ndarray]
    others: list[np.ndarray]  # statistics, seeds, and all else that layers hold
    seconds: float  # of fit, with tracing and compiling
    answer: np.ndarray | None = None


@dataclass(frozen=True)
class Comparison:
    """How far a training under a strategy is from that of plain Keras. See the top of this file."""

    losses: float
    weights: float
    updates: float
    seconds: float
    seconds_of_keras: float
    same_answers: bool
    stages: tuple[int, ...] = ()  # layer calls on each
    cut_at: str = ""  # the first layer call of stage 1, in execution order


@dataclass(frozen=True)
class Refusal:
    """An error of millrace's own."""

    error: str  # its class
    text: str


def compare(
    subject: Subject, ways: Sequence[str] = WAYS, told: Callable[[str, Any], None] | None = None
) -> dict[str, Comparison | Refusal]:
    """Returns for each of the ways how it compares. `told` hears each as soon as it is there."""
    pipes.strategy(2)  # an error of the devices is none of the model's
    plain: dict[int, Trained] = {}
    results: dict[str, Comparison | Refusal] = {}
    # Equal seeds gave weights that differ in the last bit, once in a long run.
    weights = built(subject).get_weights()
    for way in ways:
        steps = steps_of(way)
        try:
            under_strategy, cut = train(subject, way, weights)
        except MillraceError as error:
            results[way] = Refusal(type(error).__name__, str(error))
        else:
            if steps not in plain:
                plain[steps] = train_plain(subject, steps, weights)
            results[way] = _compared(under_strategy, plain[steps], cut)
        if told is not None:
            told(way, results[way])
    return results


def train_plain(
    subject: Subject, steps: int = 1, weights: Sequence[np.ndarray] | None = None
) -> Trained:
    """Trains in plain Keras, with so many steps in an update."""
    return _fit_plain(subject, built(subject, weights), steps)


def _fit_plain(subject: Subject, model: keras.Model, steps: int) -> Trained:
    if subject.by_hand and steps > 1:
        accumulate = accumulate_by_hand if subject.by_hand is True else subject.by_hand
        accumulate(model, steps).compile(**subject.compile())
        return _fit(replace(subject, batch_size=steps * (subject.batch_size or 1)), model)
    accumulation = {} if steps == 1 else {"gradient_accumulation_steps": steps}
    model.compile(**subject.compile(**accumulation))
    return _fit(subject, model)


@dataclass(frozen=True)
class Errors:
    """How far each of both is from float64, as in a Comparison."""

    losses: float
    losses_of_keras: float
    updates: float
    updates_of_keras: float


def reference(subject: Subject, way: str) -> Errors:
    """Returns the errors of both in one of WAYS, without dropout."""
    steps = steps_of(way)
    subject = replace(subject, build=lambda build=subject.build: _without_dropout(build()))
    exact = train_in_float64(subject, steps)
    trained = train(subject, way)[0], train_plain(subject, steps)
    change = distance(exact.trainable, exact.start)
    updates = [distance(each.trainable, exact.trainable) / change for each in trained]
    losses = [_of_history(each, exact) for each in trained]
    return Errors(*losses, *updates)


def train_in_float64(subject: Subject, steps: int = 1) -> Trained:
    """Trains in plain Keras in float64, from the weights that a model in float32 starts with."""
    weights = built(subject).get_weights()
    with jax.enable_x64(True):
        keras.config.set_floatx("float64")
        try:
            model = built(replace(subject, policy="float64"))
            model.set_weights(weights)
            return _fit_plain(subject, model, steps)
        finally:
            keras.config.set_floatx("float32")
            keras.config.set_dtype_policy("float32")


def _without_dropout(model: keras.Model) -> keras.Model:
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0
    return model


def train(
    subject: Subject, way: str, weights: Sequence[np.ndarray] | None = None
) -> tuple[Trained, dict[str, Any]]:
    """Trains under a strategy in one of all ways. Returns what is to be said of the cut, too.

    Raises:
        MillraceError: if millrace refuses the model.
    """
    if way == "resumed":
        return _resumed(subject, weights), {}
    model = under_strategy(subject, way, weights)
    return _fit(subject, model), cut_of(model) if "cut" in way else {}


def under_strategy(
    subject: Subject, way: str, weights: Sequence[np.ndarray] | None = None
) -> keras.Model:
    """Returns the model, compiled, under a strategy in one of all ways."""
    replicas = ACCUMULATION if way == "replicas" or "sharded" in way else 1
    with pipes.strategy(replicas * (2 if "cut" in way else 1)).scope():
        model = built(subject, weights)
    steps = steps_of(way)
    options = {"gradient_accumulation_steps_per_replica": steps // replicas}
    if "cut" in way:
        model.set_pipeline_stage_assignment("auto", num_stages=2)
        model.set_pipelining_options(**options)
    elif way == "budget":
        model.set_recomputation_options(budget=0.8)
    elif way == "parts":
        model.set_gradient_accumulation_options(micro_batch=(subject.batch_size or 2) // 2)
    elif steps > 1:
        model.set_gradient_accumulation_options(**options)
    if "sharded" in way:
        model.set_replication_options(**SHARDED)
    model.compile(**{"steps_per_execution": steps, **subject.compile()})
    return model


def steps_of(way: str) -> int:
    return 1 if way in ("one piece", "budget", "parts") else ACCUMULATION


def _resumed(subject: Subject, weights: Sequence[np.ndarray] | None) -> Trained:
    with tempfile.TemporaryDirectory() as directory:
        for epochs in (subject.epochs - 1, subject.epochs):
            model = under_strategy(subject, "accumulated", weights)
            checkpoint = millrace.callbacks.Checkpoint(directory)
            fit = {**subject.fit, "callbacks": [checkpoint]}
            trained = _fit(replace(subject, epochs=epochs, fit=fit), model)
    return trained


def cut_of(model: keras.Model) -> dict[str, Any]:
    """Returns the fields of a Comparison that tell where "auto" has cut the model."""
    calls = pipes.leaf_calls(model.get_pipeline_stage_assignment())
    stages = [call.pipeline_stage for call in calls]
    first = calls[stages.index(1)].layer.name
    sizes = tuple(stages.count(stage) for stage in range(2))
    return {"stages": sizes, "cut_at": first}


def built(subject: Subject, weights: Sequence[np.ndarray] | None = None) -> keras.Model:
    keras.config.set_dtype_policy(subject.policy)
    keras.utils.set_random_seed(1)
    model = subject.build()
    if not model.built and not isinstance(model, keras.Sequential):
        rows = subject.batch_size or 1
        model(jax.tree.map(lambda leaf: leaf[:rows], subject.data()["x"]))
    if weights:
        model.set_weights(weights)
    return model


def _fit(subject: Subject, model: keras.Model) -> Trained:
    start = _values(model.trainable_variables)
    began = time.perf_counter()
    keras.utils.set_random_seed(2)
    arguments = {"batch_size": subject.batch_size, "epochs": subject.epochs, **subject.fit}
    history = model.fit(**subject.data(), **arguments, verbose=0).history
    seconds = time.perf_counter() - began
    answer = subject.ask(model)
    values = _values(model.trainable_variables), _values(model.non_trainable_variables)
    del model
    gc.collect()
    return Trained(history, start, *values, seconds, answer)


def _values(variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    return [np.array(variable.value) for variable in variables]


def _compared(found: Trained, expected: Trained, cut: dict[str, Any]) -> Comparison:
    for value, other in zip(found.start, expected.start, strict=True):
        np.testing.assert_array_equal(value, other)  # else nothing would be compared
    assert list(found.history) == list(expected.history)
    return Comparison(
        losses=_of_history(found, expected),
        weights=max(
            _largest(value, other)
            for value, other in zip(
                [*found.trainable, *found.others],
                [*expected.trainable, *expected.others],
                strict=True,
            )
        ),
        updates=distance(found.trainable, expected.trainable)
        / distance(expected.trainable, expected.start),
        seconds=found.seconds,
        seconds_of_keras=expected.seconds,
        same_answers=np.array_equal(found.answer, expected.answer),
        **cut,
    )


def _of_history(found: Trained, expected: Trained) -> float:
    return max(
        _relative(value, other)
        for name, values in expected.history.items()
        for value, other in zip(found.history[name], values, strict=True)
    )


def distance(values: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> float:
    """Returns the norm of the difference of two lists of arrays, in float64."""
    pairs = zip(values, others, strict=True)
    return math.sqrt(
        sum(float(np.square(a.astype("float64") - b.astype("float64")).sum()) for a, b in pairs)
    )


def _relative(value: Any, other: Any) -> float:
    value, other = float(value), float(other)
    assert math.isfinite(other), "plain Keras ends in NaN or infinity: nothing can be compared"
    if not math.isfinite(value):
        return math.inf
    return 0.0 if value == other else abs(value - other) / max(abs(value), abs(other))


def _largest(value: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference as the other tests here bound it; seeds must be equal."""
    assert value.dtype == other.dtype
    if np.issubdtype(other.dtype, np.integer) or other.dtype == bool:
        return 0.0 if np.array_equal(value, other) else math.inf
    value, other = value.astype("float64"), other.astype("float64")
    if not np.isfinite(value).all():
        return math.inf
    return float((np.abs(value - other) / (1 + np.abs(other))).max(initial=0.0))
