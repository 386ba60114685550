"""The operations of executables in the records of a run."""

import jax
import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace.base.records.compilation import CompileRecord
from millrace.base.records.directory import RunDirectory
from millrace.base.records.run import load
from millrace.base.records.sinks import RecordSinks
from millrace.compilation.executables.executable import compiled_of
from millrace.compilation.executables.log import CompileLog, current_log, logging_to
from millrace.tools.operations.groups import program_of
from millrace.tools.recording.programs import ProgramRecorder, counted_operations


def dense():
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="relu", name="first"),
            layers.Dropout(0.5, name="dropped"),
            layers.Dense(3, name="last"),
        ]
    )


def trained(directory, make=dense, devices=1, optimizer="sgd", prepare=None, **options):
    """Trains with records of operations, and returns these by program, and the executables."""
    strategy = millrace.Strategy(devices=devices, cache_dir=None)
    with strategy.scope():
        model = make()
    options = {"steps_per_execution": 4, "loss": "sparse_categorical_crossentropy"} | options
    model.compile(optimizer, **options)
    if prepare is not None:
        prepare(model)
    recorder = ProgramRecorder(RecordSinks(RunDirectory(directory)))
    executables = {}
    observers = strategy._totals.compile_log.observers
    observers.append(recorder)
    observers.append(lambda new: executables.setdefault(new.record.program, new))
    x = np.ones((32, *model.input_shape[1:]), "float32")
    model.fit(x, np.zeros(32, "int32"), batch_size=4, verbose=0)
    return {each.program: each for each in load(directory).operations}, executables


def by_owner(record):
    return {(group.owner, group.kind): group for group in record.groups}


def test_layers_loss_metrics_and_optimizer_have_their_operations(tmp_path):
    records, executables = trained(tmp_path, optimizer="adam", metrics=["accuracy"])
    record = records["train_run"]
    groups = by_owner(record)
    for layer in ("first", "dropped", "last"):
        assert groups[layer, "forward"].role == "layer"
        assert groups[layer, "backward"].flops > 0
    # products of 4 rows, and as many additions of a bias
    assert groups["last", "forward"].flops >= 2 * 4 * 16 * 3
    assert groups["loss", "forward"].flops > 0 < groups["loss", "backward"].flops
    assert groups["metrics", ""].flops > 0
    adam = groups["Adam", "update"]
    weights = 8 * 16 + 16 + 16 * 3 + 3
    assert adam.role == "optimizer"
    assert adam.flops > 5 * weights
    assert adam.bytes >= 4 * 5 * weights  # gradient, weight, two slots, read; three written
    assert record.steps == 1
    (new,) = (each for name, each in executables.items() if name == "train_run")
    assert record.key == new.record.key
    # XLA counts loops once, and the random bits of the dropout are made in one.
    assert record.flops >= compiled_of(new.executable).cost_analysis()["flops"] * 0.999


def test_accumulation_has_operations_of_its_own(tmp_path):
    records, _ = trained(
        tmp_path,
        prepare=lambda model: model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=4
        ),
    )
    record = records["train_run"]
    groups = by_owner(record)
    weights = 8 * 16 + 16 + 16 * 3 + 3
    accumulation = groups["gradient accumulation", ""]
    assert accumulation.role == "accumulation"
    assert accumulation.flops >= 4 * weights
    assert groups["SGD", "update"].flops >= weights
    assert groups["SGD", "update"].flops < accumulation.flops
    assert record.steps == 4
    assert groups["last", "forward"].flops >= 4 * 2 * 4 * 16 * 3  # of all micro-batches


def test_stages_of_a_pipeline_have_their_own_layers(tmp_path):
    def two_stages(model):
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        assignment = model.get_pipeline_stage_assignment()
        for number, each in enumerate(assignment):
            each.pipeline_stage = int(number > 0)
        model.set_pipeline_stage_assignment(assignment)

    records, _ = trained(tmp_path, devices=2, prepare=two_stages)
    forward, backward = (records[f"train_{each} of stage 0"] for each in ("forward", "backward"))
    assert {each.owner for each in forward.groups if each.role == "layer"} == {"first"}
    assert {each.kind for each in forward.groups} == {"forward"}
    assert ("first", "backward") in by_owner(backward)
    assert by_owner(backward)["gradient accumulation", ""].flops > 0
    last = records["train_backward of stage 1"]
    assert last.stage == 1
    assert {"last", "dropped"} <= {each.owner for each in last.groups}
    assert by_owner(records["train_final of stage 1"])["SGD", "update"].flops > 0


def test_gradients_of_kernels_belong_to_their_layers(tmp_path):
    def images():
        return keras.Sequential(
            [
                keras.Input((12, 12, 3)),
                layers.Conv2D(8, 3, activation="relu", name="first"),
                layers.Conv2D(16, 3, strides=2, activation="relu", name="second"),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )

    records, _ = trained(tmp_path, images)
    groups = by_owner(records["train_run"])
    steps = records["train_run"].steps
    first = 2 * 4 * 10 * 10 * 8 * 27 * steps  # FLOPs of a pass, and of the gradient of a kernel
    second = 2 * 4 * 4 * 4 * 16 * 72 * steps
    products = {
        ("first", "forward"): first,
        ("first", "backward"): first,
        ("second", "forward"): second,
        ("second", "backward"): 2 * second,  # that of its input, too
    }
    for key, flops_of_products in products.items():  # and biases and activations
        assert flops_of_products <= groups[key].flops <= 1.3 * flops_of_products


def test_recomputation_is_a_pass_of_its_own(tmp_path):
    def deep():
        inputs = keras.Input((8,))
        x = layers.Dense(16, activation="gelu", name="again")(inputs)
        x = millrace.layers.RecomputationCheckpoint()(x)
        return keras.Model(inputs, layers.Dense(3, name="last")(x))

    records, _ = trained(
        tmp_path, deep, prepare=lambda model: model.set_recomputation_options(mode="auto")
    )
    groups = by_owner(records["train_run"])
    assert groups["again", "recomputation"].flops >= 2 * 4 * 8 * 16
    assert ("last", "recomputation") not in groups


def test_sums_over_replicas_are_transfers(tmp_path):
    records, _ = trained(tmp_path, devices=2)
    groups = by_owner(records["train_run"])
    assert groups["all-reduce", ""].role == "transfer"
    weights = 8 * 16 + 16 + 16 * 3 + 3
    assert groups["all-reduce", ""].bytes >= 2 * 4 * weights


def test_an_optimizer_that_scales_the_loss_and_its_inner_one(tmp_path):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop())
    records, _ = trained(tmp_path, optimizer=optimizer)
    owners = {each.owner for each in records["train_run"].groups if each.role == "optimizer"}
    assert "RMSprop" in owners


def test_layers_named_as_scopes_are_layers(tmp_path):
    def odd():
        return keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(16, name="sgd"),
                layers.Dense(16, name="while"),
                layers.Dense(3, name="adam"),
            ]
        )

    records, _ = trained(tmp_path, odd)
    groups = by_owner(records["train_run"])
    for name in ("sgd", "adam"):
        assert groups[name, "forward"].role == "layer"
        assert groups[name, "backward"].flops >= 2 * 4 * 16 * 3
    assert groups["SGD", "update"].role == "optimizer"


def test_a_function_has_the_scopes_that_its_author_opened():
    seen = []
    with logging_to(CompileLog()):
        log = current_log()
        log.observers.append(seen.append)

        @millrace.compile
        def run(x):
            with jax.named_scope("doubling"):
                return x * 2 @ np.ones((4, 4), "float32")

        run(np.ones((4, 4), "float32"))
    record, _ = counted_operations(seen[-1], program_of(seen[-1].executable))
    doubling = by_owner(record)["doubling", "forward"]
    assert doubling.flops >= 2 * 4 * 4 * 4


def test_an_error_is_logged_once_and_ends_nothing(tmp_path, caplog, monkeypatch):
    def broken(data):
        raise ValueError("no such wire type")

    monkeypatch.setattr("millrace.tools.operations.groups.read_module", broken)
    RunDirectory(tmp_path).add(CompileRecord("", "", "", 0, None, 0.0, 0.0, 0))
    records, executables = trained(tmp_path, metrics=["accuracy"])
    assert "train_run" in executables
    assert not records
    lines = [each.message for each in caplog.records if "cannot be recorded" in each.message]
    assert len(lines) == 1
    assert "no such wire type" in lines[0]


@pytest.mark.parametrize("mode", ["evaluate", "predict"])
def test_other_loops_have_forward_only(tmp_path, mode):
    strategy = millrace.Strategy(devices=1, cache_dir=None)
    with strategy.scope():
        model = dense()
    model.compile("sgd", "sparse_categorical_crossentropy")
    recorder = ProgramRecorder(RecordSinks(RunDirectory(tmp_path)))
    strategy._totals.compile_log.observers.append(recorder)
    x, y = np.ones((8, 8), "float32"), np.zeros(8, "int32")
    if mode == "evaluate":
        model.evaluate(x, y, verbose=0)
    else:
        model.predict(x, verbose=0)
    (record,) = load(tmp_path).operations
    assert {each.kind for each in record.groups if each.role == "layer"} == {"forward"}
    assert not [each for each in record.groups if each.role == "optimizer"]
