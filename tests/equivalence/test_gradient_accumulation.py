"""Gradient accumulation against plain Keras with one big batch, and against a loop by hand.

micro-batches   0 0 0 | 1 1 1 | 2 2 2 | 3     rows of one update, ACCUMULATION = 3
big batches       0       1       2     3
"""

import cases
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

from case_marks import slow, with_marks

MICRO_BATCH = 2
ACCUMULATION = 3
BIG_BATCH = MICRO_BATCH * ACCUMULATION
EPOCHS = 2


def accumulating(
    case, strategy, steps_per_execution=2 * ACCUMULATION, steps=ACCUMULATION, **options
):
    model = cases.compiled(case, strategy, steps_per_execution)
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=steps, **options
    )
    return model


def fit(case, model, batch_size, **arguments):
    data = case.data(case.rows)
    arguments = {"epochs": EPOCHS, **case.fit(data), **arguments}
    history = model.fit(**data, batch_size=batch_size, shuffle=False, verbose=0, **arguments)
    return cases.outcome(model, history)


def assert_equals_big_batch(case, model, accumulation=ACCUMULATION):
    found = fit(case, model, MICRO_BATCH)
    expected = fit(case, cases.compiled(case), MICRO_BATCH * accumulation)
    cases.assert_same(found, expected, case.tolerance)
    return found


def with_optimizer(name, *args, **kwargs):
    return cases.Case(name, rows=24, compile=cases.optimizer(name, *args, **kwargs))


# Micro-batches whose gradients of 1e-1 cancel to 1e-7 leave a rounding error of 1e-9. Adam divides
# it by its size plus epsilon, so that of plain Keras (1e-7) would make an error of 1e-2 updates.
EPSILON = 1e-4


def loss_scaled():
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(1e-2, epsilon=EPSILON), initial_scale=64.0, dynamic_growth_steps=3
    )


momentum = cases.optimizer("SGD", 0.1, momentum=0.9)


OPTIMIZERS = {
    "sgd": with_optimizer("SGD", 0.1),
    "momentum": with_optimizer("SGD", 0.1, momentum=0.9),
    "adam": with_optimizer("Adam", 1e-2, epsilon=EPSILON),
    "adamw": with_optimizer("AdamW", 1e-2, weight_decay=0.1, epsilon=EPSILON),
    "global-clipnorm": with_optimizer("SGD", 0.1, global_clipnorm=0.05),
    "clipvalue": with_optimizer("SGD", 0.1, clipvalue=0.01),
    "ema": with_optimizer("SGD", 0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3),
    "exponential-decay": cases.Case(
        "decay", rows=24, compile=cases.schedule("ExponentialDecay", 0.1, 2, 0.5)
    ),
    "loss-scaling": cases.Case(
        "loss-scaling", rows=24, compile=cases.binary(optimizer=loss_scaled)
    ),
}

MODELS = {
    "regularizers": cases.Case("regularizers", cases.regularized, rows=24, compile=momentum),
    "own-loss": cases.Case(
        "own-loss", cases.of(cases.OwnLoss, dropout=0.0), rows=24, compile=momentum
    ),
    "dict-inputs-outputs": cases.Case(
        "dict", cases.named_functional, cases.named, 24, cases.two_outputs(optimizer="sgd")
    ),
    "sample-weight": cases.Case(
        "sample-weight",
        rows=24,
        compile=momentum,
        fit=lambda data: {"sample_weight": cases.weights_of_rows(data)},
    ),
    "class-weight": cases.Case(
        "class-weight",
        rows=24,
        compile=momentum,
        fit=lambda data: {"class_weight": {0: 1.0, 1: 3.0}},
    ),
    "auc-and-validation": cases.Case(
        "auc",
        rows=24,
        compile=cases.binary(optimizer="sgd", metrics=lambda: [keras.metrics.AUC(name="auc")]),
        fit=lambda data: {
            "validation_data": cases.first(data, 12), "validation_batch_size": BIG_BATCH
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    with_marks(OPTIMIZERS, slow=("momentum", "adamw", "global-clipnorm", "exponential-decay")),
)
def test_mean_equals_one_big_batch(strategy, name):
    case = OPTIMIZERS[name]
    found = assert_equals_big_batch(case, accumulating(case, strategy))
    assert int(found.model.optimizer.iterations) == EPOCHS * 24 // BIG_BATCH  # updates, not steps


@pytest.mark.parametrize(
    "name", with_marks(MODELS, slow=("dict-inputs-outputs", "auc-and-validation"))
)
def test_mean_equals_one_big_batch_for_other_losses(strategy, name):
    if name == "regularizers" and keras.__version__.startswith("3.13."):
        pytest.skip("in keras 3.13 an activity regularizer is a sum over the rows of a batch")
    assert_equals_big_batch(MODELS[name], accumulating(MODELS[name], strategy))


@pytest.mark.parametrize(
    ("rows", "steps_per_execution"),
    [
        (26, 100),  # a shorter window
        slow(26, 2 * ACCUMULATION),
        (27, 2 * ACCUMULATION),  # with a smaller batch in it
        slow(27, 100),
        (29, 100),  # a smaller batch in a whole window
        slow(29, 2 * ACCUMULATION),
        (4, 2 * ACCUMULATION),  # the only window
        (4, 100),
    ],
)
def test_the_last_window_equals_one_batch_of_its_rows(strategy, rows, steps_per_execution):
    case = cases.Case("ragged", rows=rows, compile=momentum)
    model = accumulating(case, strategy, steps_per_execution)
    found = assert_equals_big_batch(case, model)
    assert int(found.model.optimizer.iterations) == EPOCHS * -(-rows // BIG_BATCH)


@pytest.mark.parametrize("bytes_of_block", [1, 2 * 56, slow(2**20)])
def test_windows_that_blocks_cut_equal_one_big_batch(strategy, bytes_of_block):
    case = cases.Case("blocks", rows=29, compile=cases.optimizer("Adam", 1e-2, epsilon=EPSILON))
    model = accumulating(case, strategy)
    model.set_infeed_queue_options(max_block_bytes=bytes_of_block, max_resident_bytes=0)
    assert_equals_big_batch(case, model)


class Batches(keras.utils.PyDataset):
    """Consecutive rows in batches of these sizes."""

    def __init__(self, data, sizes):
        super().__init__()
        self.data, self.ends = data, np.cumsum([0, *sizes])

    def __len__(self):
        return len(self.ends) - 1

    def __getitem__(self, index):
        begin, end = self.ends[index : index + 2]
        return self.data["x"][begin:end], self.data["y"][begin:end]


@pytest.mark.slow
def test_shapes_that_change_within_a_window_equal_one_big_batch(strategy):
    case = OPTIMIZERS["momentum"]
    data = case.data(24)
    model, big = accumulating(case, strategy, 3), cases.compiled(case)
    found = model.fit(Batches(data, [3, 1, 4, 2, 2, 2, 5, 4]), shuffle=False, verbose=0)
    expected = big.fit(Batches(data, [8, 6, 9]), shuffle=False, verbose=0)
    cases.assert_same(cases.outcome(model, found), cases.outcome(big, expected))


@pytest.mark.slow
def test_an_execution_that_is_the_epoch_need_not_be_whole_updates(strategy):
    case = cases.Case("epoch", rows=22, compile=momentum)
    assert_equals_big_batch(case, accumulating(case, strategy, steps_per_execution=11))
    assert_equals_big_batch(case, accumulating(case, strategy, steps_per_execution=256))


def test_steps_per_epoch_equals_one_big_batch(strategy):
    case = OPTIMIZERS["momentum"]
    model, big = accumulating(case, strategy), cases.compiled(case)
    found = fit(case, model, MICRO_BATCH, steps_per_epoch=6)
    expected = fit(case, big, BIG_BATCH, steps_per_epoch=2)
    cases.assert_same(found, expected)


def test_shuffled_rows_are_those_of_one_big_batch(strategy):
    case = OPTIMIZERS["adam"]
    outcomes = []
    for model, size in ((accumulating(case, strategy), 2), (cases.compiled(case), 6)):
        keras.utils.set_random_seed(5)
        history = model.fit(**case.data(24), batch_size=size, epochs=3, verbose=0)
        outcomes.append(cases.outcome(model, history))
    cases.assert_same(*outcomes)


def test_sum_is_the_mean_times_the_number_of_micro_batches(strategy):
    case = with_optimizer("SGD", 0.02)
    model = accumulating(case, strategy, gradient_accumulation_reduction_method="sum")
    big = cases.compiled(case, optimizer=keras.optimizers.SGD(0.02 * ACCUMULATION))
    found, expected = fit(case, model, MICRO_BATCH), fit(case, big, BIG_BATCH)
    model.optimizer.learning_rate = 0.02 * ACCUMULATION  # the one variable that differs
    cases.assert_same(cases.outcome(model, model.history), expected)
    assert found.epochs == [0, 1]


@pytest.mark.slow
def test_one_step_per_update_is_plain_training(strategy):
    case = cases.Case("plain", cases.normalized, rows=9)
    model = accumulating(case, strategy, steps_per_execution=2, steps=1)
    assert_equals_big_batch(case, model, accumulation=1)


def test_train_on_batch_makes_an_update_of_one_batch(strategy):
    case = OPTIMIZERS["adam"]
    model, reference = accumulating(case, strategy), cases.compiled(case)
    data = case.data(24)
    for begin in (0, 6, 12):
        batch = [leaf[begin : begin + 6] for leaf in (data["x"], data["y"])]
        cases.assert_close(model.train_on_batch(*batch), reference.train_on_batch(*batch))
    cases.assert_same_variables(cases.variables_of(model), cases.variables_of(reference))


def test_an_infinite_gradient_of_one_micro_batch_skips_its_whole_update(strategy):
    def with_infinity(rows):
        data = cases.table(rows)
        data["x"][8, 0] = np.inf  # in the second micro-batch of the second update
        return data

    case = cases.Case(
        "infinity", data=with_infinity, rows=24,
        compile=cases.binary(optimizer=loss_scaled, metrics=None),
    )  # fmt: skip
    found = assert_equals_big_batch(case, accumulating(case, strategy))
    assert all(np.isfinite(w).all() for w in found.model.get_weights())
    assert float(found.model.optimizer.dynamic_scale) < 2.0**15


def by_hand(model, case, accumulation, reduction="mean", dtype=None, batch_size=MICRO_BATCH):
    """Trains a stock model for one epoch with a loop in plain JAX. Returns its variables."""
    data = case.data(case.rows)
    trainable = [v.value for v in model.trainable_variables]
    non_trainable = [v.value for v in model.non_trainable_variables]
    model.optimizer.build(model.trainable_variables)
    optimizer = [v.value for v in model.optimizer.variables]

    @jax.jit
    def gradients_of(trainable, non_trainable, x, y):
        def loss_of(trainable):
            y_pred, new = model.stateless_call(trainable, non_trainable, x, training=True)
            return model.compute_loss(x, y, y_pred), new

        (_, new), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        return gradients, new

    apply = jax.jit(model.optimizer.stateless_apply)
    begins = range(0, case.rows, batch_size)
    windows = [begins[i : i + accumulation] for i in range(0, len(begins), accumulation)]
    for window in windows:
        total, rows = [jnp.zeros(v.shape, dtype or v.dtype) for v in trainable], 0
        for begin in window:
            x, y = (data[name][begin : begin + batch_size] for name in ("x", "y"))
            gradients, non_trainable = gradients_of(trainable, non_trainable, x, y)
            factor = len(x) if reduction == "mean" else 1
            total = [t + g.astype(t.dtype) * factor for t, g in zip(total, gradients, strict=True)]
            rows += factor if reduction == "mean" else 0
        gradients = [t / rows if rows else t for t in total]
        trainable, optimizer = apply(optimizer, gradients, trainable)
    return [np.asarray(v) for values in (trainable, non_trainable, optimizer) for v in values]


def values_after_fit(model, case, batch_size=MICRO_BATCH):
    fit(case, model, batch_size, epochs=1)
    variables = (model.trainable_variables, model.non_trainable_variables)
    return [np.asarray(v.value) for group in (*variables, model.optimizer.variables) for v in group]


def assert_equal_lists(found, expected, tolerance=cases.FLOAT32):
    assert [v.dtype for v in found] == [v.dtype for v in expected]
    cases.assert_close(found, expected, tolerance)


@pytest.mark.parametrize("rows", [24, slow(27)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_each_micro_batch_is_normalized_by_its_own_statistics(strategy, rows, reduction):
    """Batch statistics, moving statistics in order, and a dropout mask for each micro-batch."""
    # Batches of four rows magnify rounding: at a rate of 0.1 the last bits of a product, which are
    # not the same in every process, had become 3e-6 of a variance.
    case = cases.Case(
        "normalized", cases.normalized, rows=rows, compile=cases.optimizer("SGD", 0.01)
    )
    model = accumulating(case, strategy, gradient_accumulation_reduction_method=reduction)
    found = values_after_fit(model, case)
    assert_equal_lists(found, by_hand(cases.compiled(case), case, ACCUMULATION, reduction))


def three_classes():
    return {**cases.three_classes(), "optimizer": keras.optimizers.SGD(0.1, momentum=0.9)}


def plain_convnet():
    return keras.Sequential(
        [keras.Input((6, 6, 1)), layers.Conv2D(2, 3, activation="relu"), layers.Flatten(),
         layers.Dense(3, "softmax")]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("accumulation", "rows", "steps_per_execution"),
    [slow(2, 20, 2), slow(2, 21, 6), slow(16, 70, 16), slow(16, 64, 32), (5, 40, 10)],
)
def test_convnets_equal_one_big_batch(strategy, accumulation, rows, steps_per_execution):
    """Unrolled on CPU: windows of 2 several to a call, of 16 in parts."""
    case = cases.Case("convnet", plain_convnet, cases.images, rows, three_classes)
    model = accumulating(case, strategy, steps_per_execution, accumulation)
    assert_equals_big_batch(case, model, accumulation)


@pytest.mark.slow
def test_convnets_normalize_each_micro_batch(strategy):
    case = cases.Case("convnet", cases.convnet, cases.images, 21, three_classes)
    model = accumulating(case, strategy, 6)
    assert_equal_lists(
        values_after_fit(model, case), by_hand(cases.compiled(case), case, ACCUMULATION)
    )


@pytest.mark.parametrize(
    "dtype",
    [
        None,
        slow("float32"),
        slow(np.float32),
        lambda variable: "float32",
        slow(lambda variable: None),
    ],
    ids=["none", "name", "type", "function", "function-none"],
)
def test_dtypes_of_the_accumulator_that_change_nothing(strategy, dtype):
    case = OPTIMIZERS["adam"]
    assert_equals_big_batch(case, accumulating(case, strategy, dtype=dtype))


def narrow(rows):
    """Gradients of 1, and then of half a unit in the last place of 1 in bfloat16 or float16."""
    half_unit = {"bfloat16": 2.0**-9, "float16": 2.0**-12}[keras.config.dtype_policy().name]
    x = np.full((rows, 1), half_unit, "float32")
    x[0] = 1.0
    return {"x": x, "y": np.ones((rows, 1), "float32")}


def product(y_true, y_pred):
    return y_true * y_pred


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_float32_accumulator_keeps_what_a_narrow_one_loses(strategy, name):
    """Sixteen gradients, the last fifteen too small to be added to the first one."""

    def build():
        layer = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((1,)), layer])

    case = cases.Case(
        "narrow", build, narrow, 16,
        cases.binary(
            optimizer=lambda: keras.optimizers.SGD(1.0), loss=lambda: product, metrics=None
        ),
        policy=name,
    )  # fmt: skip
    half_unit = {"bfloat16": 2.0**-9, "float16": 2.0**-12}[name]
    expected = {None: -1.0, "float32": -(1.0 + 15 * half_unit)}
    for dtype, value in expected.items():
        options = {"gradient_accumulation_reduction_method": "sum", "dtype": dtype}
        model = accumulating(case, strategy, 16, 16, **options)
        assert str(model.trainable_variables[0].dtype) == name
        fit(case, model, 1, epochs=1)
        rounded = jnp.asarray(value, name)
        np.testing.assert_array_equal(np.asarray(model.get_weights()[0], np.float32), rounded)


@pytest.mark.parametrize(
    ("name", "tolerance"), [("bfloat16", cases.BFLOAT16), ("float16", cases.FLOAT16)]
)
def test_half_precision_variables_with_a_float32_accumulator(strategy, name, tolerance):
    case = cases.Case("half", rows=24, compile=cases.optimizer("SGD", 0.1), policy=name)
    model = accumulating(case, strategy, dtype="float32")
    found = values_after_fit(model, case)
    expected = by_hand(cases.compiled(case), case, ACCUMULATION, dtype="float32")
    assert_equal_lists(found, expected, tolerance)


def test_options_apply_to_the_next_fit_and_steps_can_change(strategy):
    case = OPTIMIZERS["sgd"]
    model, big = accumulating(case, strategy), cases.compiled(case)
    for accumulation in (3, 1, 2):
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=accumulation
        )
        found = fit(case, model, MICRO_BATCH)
        expected = fit(case, big, MICRO_BATCH * accumulation)
        cases.assert_same(found, expected)
