"""A `train_step` of one's own under everything: an update is that of plain Keras's big batch."""

import functools

import numpy as np
import pytest

import millrace
from case_marks import slow
from millrace.callbacks import NaNWatch
from millrace.errors import ModelError
from own_steps import (
    BATCH,
    KINDS,
    NOT_CUT,
    ROWS,
    Clipped,
    Forwarding,
    InTurn,
    OfTheGuide,
    RowByRow,
    SharpnessAware,
    ShowsNorm,
    Simple,
    TwoLosses,
    data,
    made,
)

# Way -> devices, rows of a batch, options.
WAYS = {
    "accumulated": (1, BATCH // 4, {"gradient_accumulation_steps_per_replica": 4}),
    "in parts": (1, BATCH, {"micro_batch": BATCH // 4}),
    "on replicas": (2, BATCH // 2, {}),
    "on replicas, accumulated": (2, BATCH // 4, {"gradient_accumulation_steps_per_replica": 2}),
}
NEAR = 1e-6


@functools.cache
def of_keras(kind):
    """What plain Keras makes of the big batch: history and values."""
    return fitted(made(kind), BATCH)


def fitted(model, rows, **arguments):
    arrays = [np.repeat(array, model.repeats, axis=0) for array in data()]
    rows *= model.repeats
    history = model.fit(*arrays, batch_size=rows, epochs=2, shuffle=False, verbose=0, **arguments)
    return history.history, {v.path: np.array(v.value) for v in model.variables}


def under_strategy(kind, devices=1, **options):
    with millrace.Strategy(devices=devices).scope():
        model = made(kind)
    if options:
        model.set_gradient_accumulation_options(**options)
    return model


def check(kind, found):
    (history, values), (logs_of_keras, values_of_keras) = found, of_keras(kind)
    assert sorted(history) == sorted(logs_of_keras)
    if issubclass(kind, (OfTheGuide, Forwarding)):  # others log their last micro-batch
        for name, expected in logs_of_keras.items():
            np.testing.assert_allclose(history[name], expected, rtol=NEAR)
    for value, expected in zip(values.values(), values_of_keras.values(), strict=True):
        if np.issubdtype(expected.dtype, np.floating) and not issubclass(kind, ShowsNorm):
            assert np.max(np.abs(value - expected) / (1 + np.abs(expected))) <= NEAR


def cases(ways, kinds=KINDS):
    every = [(way, kind) for way in ways for kind in kinds]
    quick = {"accumulated": (*FAST, RowByRow, TwoLosses)}
    fast = [(way, kind) for way, kind in every if kind in quick.get(way, FAST)]
    return [case if case in fast else pytest.param(*case, marks=pytest.mark.slow) for case in every]


FAST = (OfTheGuide, InTurn)
IN_TURN = (InTurn, TwoLosses, SharpnessAware)


@pytest.mark.parametrize(("way", "kind"), cases(WAYS))
def test_an_update_is_that_of_the_big_batch(way, kind):
    devices, rows, options = WAYS[way]
    model = under_strategy(kind, devices, **options)
    if way == "in parts" and kind in IN_TURN:
        with pytest.raises(ModelError, match=r"gradients 2 times in turn.*micro_batch='whole'"):
            fitted(model, rows)
    else:
        check(kind, fitted(model, rows))


def in_stages(kind):
    model = under_strategy(kind, devices=2)
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    return model


@pytest.mark.parametrize(
    "kind",
    [kind if kind in FAST else slow(kind) for kind in KINDS if kind not in NOT_CUT],
)
def test_one_differentiated_function_is_cut_into_stages(kind):
    check(kind, fitted(in_stages(kind), BATCH // 4))


@pytest.mark.parametrize("kind", NOT_CUT)
def test_what_stages_cannot_have_is_named(kind):
    with pytest.raises(ModelError, match=NOT_CUT[kind]) as caught:
        fitted(in_stages(kind), BATCH // 4)
    if "takes several gradients" in NOT_CUT[kind]:
        assert "own_steps.py" in str(caught.value)  # with its line
        assert "ops.mean(ops.square(guesses - y))" in str(caught.value)


@pytest.mark.parametrize("kind", [OfTheGuide, InTurn, slow(TwoLosses)])
def test_state_is_sharded(kind):
    model = under_strategy(kind, devices=2)
    model.set_replication_options(
        replicated_optimizer_state_sharding=True, replicated_weight_sharding=True
    )
    check(kind, fitted(model, BATCH // 2))


@pytest.mark.slow
@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("kind", [OfTheGuide, InTurn, ShowsNorm])
def test_backward_recomputes_within_a_budget(kind, accumulates):
    kind = type("Deep", (kind,), {"widths": (8,) * 12, "repeats": 16})
    model = under_strategy(kind)
    model.set_recomputation_options(budget=0.8)
    if accumulates:
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    rows = BATCH // 2 if accumulates else BATCH
    check(kind, fitted(model, rows))


def test_gradients_that_a_step_computes_by_itself_are_not_recomputed():
    model = under_strategy(RowByRow)
    model.set_recomputation_options(budget=0.5)
    with pytest.raises(ModelError, match=r"computes its gradients by itself.*mode='none'"):
        fitted(model, BATCH)


def test_gradients_are_watched():
    x, y = data()
    x[ROWS // 2] = np.nan  # in the first row of the second update
    model = under_strategy(Clipped)
    watch = NaNWatch()
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[watch])
    assert int(model.optimizer.iterations) == 1
    assert all(np.isfinite(v).all() for v in model.get_weights())


def test_an_epoch_that_ends_within_an_update_of_gradients_in_turn_is_refused():
    model = under_strategy(InTurn, gradient_accumulation_steps_per_replica=3)
    with pytest.raises(ModelError, match=r"runs its micro-batches 2 times.*multiple of 3"):
        fitted(model, BATCH // 2)


def test_a_step_that_hands_no_gradients_to_an_optimizer_is_refused():
    class Own(Simple):
        def train_step(self, state, data):
            trainable, others, optimizer, metrics = state
            return {}, ([0.9 * value for value in trainable], others, optimizer, metrics)

    model = under_strategy(Own, gradient_accumulation_steps_per_replica=2)
    with pytest.raises(ModelError, match=r"takes no gradients by jax.grad"):
        fitted(model, BATCH)
    fitted(under_strategy(Own), BATCH)
