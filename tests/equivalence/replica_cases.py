"""Models as replicas, and what to compare them with.

replicated(case, replicas, steps)            the case's model, each replica on a device
pipelined(case, replicas, stages, steps)     the same as a pipeline, each replica on a few
pipes.in_one_piece(case, replicas * steps)   on one device, with as many batches in an update

batch of the data set    0  1  2  3 | 4  5  6  7 | 8
replica                  0  1  0  1 | 0  1  0  1 | 0        REPLICAS = 2, STEPS = 2
update                   0            1            2
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cases
import jax
import keras
import numpy as np
import pipeline_cases as pipes
import pytest
from keras import layers, ops

from millrace.compilation.executables import executable
from millrace.run.pipelines.runtime.stage_state import StageState

REPLICAS = 2  # where nothing else is said
STEPS = 2  # of each replica in an update
EPSILON = 1e-4  # see test_gradient_accumulation.py


def replicated(
    case: cases.Case,
    replicas: int = REPLICAS,
    steps: int = STEPS,
    executed: int = 2,
    replication: dict[str, Any] | None = None,
    **options: Any,
) -> keras.Model:
    """Returns the case's model as replicas; `executed` updates are one execution."""
    model = cases.compiled(case, pipes.strategy(replicas), replicas * steps * executed)
    pipes.build(case, model)
    model.reset_pipeline_stage_assignment()  # that of scopes
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=steps, **options
    )
    if replication is not None:
        model.set_replication_options(**replication)
    return model


def pipelined(
    case: cases.Case,
    replicas: int = REPLICAS,
    stages: int | list[int] | None = 2,
    steps: int = STEPS,
    executed: int = 2,
    groups: int | None = None,
    replication: dict[str, Any] | None = None,
    **options: Any,
) -> keras.Model:
    """Returns the case's model as replicas of a pipeline on `groups` devices each."""
    if groups is None:
        groups = pipes.devices_of(stages, options.get("device_mapping"))
    model = pipes.pipelined(
        case, stages, steps, replicas * executed, devices=replicas * groups, **options
    )
    if replication is not None:
        model.set_replication_options(**replication)
    return model


def assert_as_one_device(
    case: cases.Case,
    model: keras.Model,
    updates_of: int = REPLICAS * STEPS,
    callbacks: list[Any] | None = None,
    **options: Any,
) -> cases.Outcome:
    """Asserts that replicas train as one device that accumulates as many batches."""
    found = pipes.fit(case, model, callbacks=callbacks)
    cases.assert_same(found, pipes.in_one_piece(case, updates_of, **options), case.tolerance)
    return found


def assert_same_but_for_statistics(
    found: cases.Outcome, expected: cases.Outcome, tolerance: cases.Tolerance = cases.FLOAT32
) -> None:
    """Asserts that trainings are the same, up to what BatchNormalization keeps for evaluation."""

    def others(outcome: cases.Outcome) -> list[tuple[str, np.ndarray]]:
        return [(name, value) for name, value in outcome.variables if "moving_" not in name]

    assert len(others(expected)) < len(expected.variables)
    assert found.epochs == expected.epochs
    cases.assert_close(found.history, expected.history, tolerance)
    cases.assert_same_variables(others(found), others(expected), tolerance)


def values_of(model: keras.Model) -> Iterator[tuple[str, jax.Array]]:
    """Yields name and value of everything that replicas must agree on."""
    for variable in [*model.variables, *model.optimizer.variables]:
        yield variable.path, variable.value


def assert_copies_agree(model: keras.Model, replicas: int) -> None:
    """Asserts that every replica has the same bits of every weight, statistic, seed and slot."""
    for name, value in values_of(model):
        shards = value.addressable_shards
        assert len({shard.device for shard in shards}) == len(shards) == replicas, name
        copies = {np.asarray(shard.data).tobytes() for shard in shards}
        assert len(copies) == 1, f"{name} differs: {[np.asarray(s.data) for s in shards]}"


class Laid(NamedTuple):
    """How a value of a pipeline lay on devices when an execution had ended."""

    devices: tuple[int, ...]
    whole: int  # bytes of the value
    held: int  # bytes of it on one device


def fit_and_watch(
    case: cases.Case, model: keras.Model, replicas: int, **arguments: Any
) -> tuple[cases.Outcome, list[Laid]]:
    """Fits a pipeline, and asserts after each execution that all replicas have the same bits.

    After fit it is too late: the stages are on different devices, and Keras gets one replica's
    copy of each value, so that `model(x)` can put them together.
    """
    laid: list[Laid] = []
    export = StageState._export

    def spy(self: Any, value: Any) -> Any:
        if isinstance(value, jax.Array):
            shards = value.addressable_shards
            ids = tuple(shard.device.id for shard in shards)
            laid.append(Laid(ids, value.nbytes, shards[0].data.nbytes))
            if value.sharding.is_fully_replicated and len(shards) > 1:
                assert len(shards) == replicas
                assert len({np.asarray(shard.data).tobytes() for shard in shards}) == 1
        return export(self, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageState, "_export", spy)
        outcome = pipes.fit(case, model, **arguments)
    assert any(len(each.devices) == replicas for each in laid)
    return outcome, laid


def bytes_on_each_device(variables: list[Any]) -> dict[Any, int]:
    """Returns the bytes of variables that each device holds."""
    held: Counter[Any] = Counter()
    for variable in variables:
        for shard in variable.value.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return dict(held)


def optimizer(name: str, *args: Any, **kwargs: Any) -> Callable[[], dict[str, Any]]:
    """Arguments of compile, for an epsilon that does not magnify rounding."""
    return cases.optimizer(name, *args, epsilon=EPSILON, **kwargs)


def without_magnified_rounding(case: cases.Case) -> cases.Case:
    """Returns the case with another epsilon than Keras's, of 1e-7.

    Replicas add gradients in another order than one device. Where they cancel, as those of a bias
    before BatchNormalization do, what is left over is rounding, which Adam would divide by itself.
    """

    def arguments() -> dict[str, Any]:
        return {**case.compile(), "optimizer": keras.optimizers.Adam(1e-2, epsilon=EPSILON)}

    return dataclasses.replace(case, compile=arguments)


momentum = cases.optimizer("SGD", 0.1, momentum=0.9)


def sum_of_rows(y_true: Any, y_pred: Any) -> Any:
    """A loss whose gradient is one everywhere."""
    return ops.sum(y_pred, axis=-1)


def rows_by_number(rows: int) -> dict[str, Any]:
    """Row k is the unit vector k."""
    return {"x": np.eye(rows, dtype="float32"), "y": np.zeros((rows, 1), "float32")}


def mask_reader() -> keras.Model:
    """After an epoch of `rows_by_number`, row k of its weight is the mask that row k had.

    No other row contributes to the gradient there but with zeros, so nothing is ever rounded.
    """
    dense = layers.Dense(6, use_bias=False, kernel_initializer="zeros")
    return keras.Sequential([keras.Input((MASKS,)), dense, layers.Dropout(0.5)])


def mask_reading() -> dict[str, Any]:
    return {"optimizer": keras.optimizers.SGD(1.0), "loss": sum_of_rows}


MASKS = 22
READS_MASKS = cases.Case("masks", mask_reader, rows_by_number, MASKS, mask_reading)
SUMS = {"gradient_accumulation_reduction_method": "sum"}


def assert_same_masks(found: cases.Outcome, expected: cases.Outcome) -> None:
    """Asserts that all rows had the same dropout masks, and that there were some."""
    (mask, *_), (other, *_) = found.model.get_weights(), expected.model.get_weights()
    assert 0 < np.count_nonzero(other) < other.size
    np.testing.assert_array_equal(mask, other)


class Batches(keras.utils.PyDataset):
    """Consecutive rows in batches of these sizes, and of these lengths if rows are sequences."""

    def __init__(self, data: dict[str, Any], sizes: list[int], lengths: list[int] | None = None):
        super().__init__()
        self.data, self.ends, self.lengths = data, np.cumsum([0, *sizes]), lengths

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        begin, end = self.ends[index : index + 2]
        x = self.data["x"][begin:end]
        return x if self.lengths is None else x[:, : self.lengths[index]], self.data["y"][begin:end]


def generated(data: dict[str, Any], batch_size: int = cases.BATCH_SIZE) -> Iterator[Any]:
    """Yields batches, and does not say how many."""
    for begin in range(0, len(data["y"]), batch_size):
        yield tuple(data[name][begin : begin + batch_size] for name in ("x", "y"))


def by_replica(values: np.ndarray, replicas: int, batch_size: int) -> list[np.ndarray]:
    """Returns the rows of each replica: batch j goes to replica j % replicas."""
    batches = [values[begin : begin + batch_size] for begin in range(0, len(values), batch_size)]
    return [np.concatenate(batches[replica::replicas]) for replica in range(replicas)]


def reduced(values: list[float], mean: float, method: str) -> Any:
    """Returns what is reported of the values of all replicas."""
    return {"none": values[-1], "list": values, "sum": sum(values), "mean": mean}[method]


def still() -> dict[str, Any]:
    """Trains without changing a weight, so that the values of metrics can be computed by hand."""
    return {"optimizer": keras.optimizers.SGD(0.0), "loss": "mse", "metrics": ["mae"]}


STILL = cases.Case("still", rows=cases.RAGGED, compile=still)


def metrics_by_hand(case: cases.Case, rows: int, replicas: int, method: str) -> dict[str, Any]:
    """Returns loss and mae of the case's untrained model, as replicas report them."""
    data = case.data(rows)
    errors = data["y"] - np.asarray(cases.compiled(case)(data["x"]))
    shares = by_replica(errors, replicas, cases.BATCH_SIZE)
    measures = {"loss": lambda e: float(np.mean(e**2)), "mae": lambda e: float(np.mean(np.abs(e)))}
    return {
        name: reduced([measure(share) for share in shares], measure(errors), method)
        for name, measure in measures.items()
    }


def assert_metrics(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Asserts that logs are those; a value for each replica may be a list or an array."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert np.shape(found[name]) == np.shape(value), name
        cases.assert_close(np.asarray(found[name]), np.asarray(value), name=name)


def watch_programs(monkeypatch: Any, strategy: Any) -> Callable[[], list[tuple[str, str]]]:
    """From now on notes what is compiled; the result returns names and texts of the programs."""
    del strategy
    programs: list[tuple[str, str]] = []
    make = executable.share_or_compile

    def spy(lowering: Any, log: Any) -> Any:
        making = make(lowering, log)
        programs.append((lowering.wanted.key.program, making.compiled.as_text()))
        return making

    monkeypatch.setattr(executable, "share_or_compile", spy)
    return lambda: programs


COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")


def collectives(text: str) -> Counter[tuple[str, int]]:
    """Counts the operations between devices of a compiled program, by kind and depth of loops."""
    bodies = _computations(text)
    found: Counter[tuple[str, int]] = Counter()
    pattern = re.compile(rf" ({'|'.join(COLLECTIVES)})(?:-start)?\(")
    for name, depth in _depths(text, bodies).items():
        for line in bodies[name]:
            found.update((kind, depth) for kind in pattern.findall(line))
    return found


def _computations(text: str) -> dict[str, list[str]]:
    """Returns the lines of each computation of a program: `%name (...) -> ... {` to `}`."""
    bodies: dict[str, list[str]] = {}
    name = None
    for line in text.splitlines():
        header = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line)
        if header and not line.startswith((" ", "HloModule")):
            name = header[1]
            bodies[name] = []
        elif name is not None:
            bodies[name].append(line)
    return bodies


def _depths(text: str, bodies: dict[str, list[str]]) -> dict[str, int]:
    """Returns in how many loops each computation stands."""
    (entry,) = re.findall(r"^ENTRY %?([\w.\-]+) ", text, re.MULTILINE)
    depths: dict[str, int] = {}
    waiting = [(entry, 0)]
    while waiting:
        name, depth = waiting.pop()
        if name not in bodies or depths.get(name, -1) >= depth:
            continue
        depths[name] = depth
        for line in bodies[name]:
            inner = depth + (" while(" in line)
            waiting += [(called, inner) for called in re.findall(r"%([\w.\-]+)", line)]
    return depths
