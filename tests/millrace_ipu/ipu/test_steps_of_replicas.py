"""Steps as release 2.5 and later count them: `steps_per_execution` of one replica."""

import itertools
import logging
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from linear_models import linear, rows, two_stages

from millrace.base.options import Accumulation
from millrace.errors import DataError, OptionError, PlanError
from millrace.programs.plan import Mode
from millrace_ipu.ipu.ipu_strategy import IPUStrategy
from millrace_ipu.ipu.keras.extensions.execution_steps import steps_of_epoch, steps_of_execution
from millrace_ipu.ipu.keras.extensions.settings import Settings
from millrace_ipu.ipu.release import NEWEST, release
from millrace_ipu.tensorflow.data import Dataset


@pytest.fixture(autouse=True)
def newest(release, monkeypatch):
    monkeypatch.delenv("MILLRACE_IPU_RELEASE")


def setup_of(replicas, accumulation):
    return SimpleNamespace(
        model=SimpleNamespace(name="m"),
        replicas=replicas,
        accumulation=Accumulation(steps=accumulation),
        stages=SimpleNamespace(assignment=lambda: None),
    )


def counted(setup, mode, per_execution, steps):
    whole = steps_of_epoch(setup, mode, steps)
    return steps_of_execution(setup, Settings(), mode, per_execution, whole)


@pytest.mark.parametrize("version", ["2.4", "3.1"])
@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.PREDICT])
def test_the_values_of_every_error_work(version, mode, monkeypatch):
    monkeypatch.setenv("MILLRACE_IPU_RELEASE", version)
    accepted, refused = 0, 0
    sizes = itertools.product((1, 2, 3, 4), (1, 2, 3, 8), (1, 2, 3, 5, 8, 375), (1, 6, 47, 48, 750))
    for replicas, accumulation, per_execution, steps in sizes:
        setup = setup_of(replicas, accumulation)
        monkeypatch.setenv("MILLRACE_IPU_RELEASE", version)
        try:
            actual = counted(setup, mode, per_execution, steps)
        except (PlanError, DataError) as error:
            refused += 1
            text = str(error)
            if text.startswith("An epoch of 'm' has"):
                assert steps < replicas
                continue
            assert str(steps if version == "2.4" else steps - steps % replicas) in text
            assert str(per_execution) in text
            other = re.search(r"(?:set|unset) MILLRACE_IPU_RELEASE(?:=([\d.]+))?, or ", text)
            if other:
                monkeypatch.setenv("MILLRACE_IPU_RELEASE", other[1] or "")
                whole = re.search(r"for an epoch of (\d+) batches: set", text)
                assert counted(setup, mode, per_execution, int(whole[1]) if whole else steps)
                monkeypatch.setenv("MILLRACE_IPU_RELEASE", version)
            total = re.search(r"Give an epoch (\d+) batches", text)
            advised = re.search(r"steps_per_execution to (\d+)(?: or (\d+))? in compile", text)
            for value in filter(None, advised.groups()):
                whole = int(total[1]) if total else steps
                assert counted(setup, mode, int(value), whole), (text, value)
        else:
            accepted += 1
            update = replicas * (accumulation if mode is Mode.TRAIN else 1)
            assert actual % update == 0
    assert accepted > 50
    assert refused > 50


def test_an_execution_is_one_of_each_replica(system):
    system(2)
    x, y = rows(96)
    model = linear(IPUStrategy(), 6)
    model.set_gradient_accumulation_options(3)
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == 48 // (2 * 3)
    assert model._millrace.totals.executions == 4  # of 2 x 6 batches


def test_the_numbers_of_the_data_do_not_depend_on_the_count(system, monkeypatch):
    system(2)
    x, y = rows(48)
    weights = []
    for version, per_execution in (("2.4", 12), ("2.6", 6)):
        monkeypatch.setenv("MILLRACE_IPU_RELEASE", version)
        model = linear(IPUStrategy(), per_execution)
        model.set_gradient_accumulation_options(2)
        model.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0)
        weights.append(model.get_weights()[0].item())
        assert model.predict(x, batch_size=2, verbose=0).shape == (48, 1)
    assert weights[0] == weights[1] != 0.5


@pytest.mark.parametrize("source", ["arrays", "data set", "endless"])
def test_batches_that_are_too_few_for_all_replicas_are_left_out(source, system, caplog):
    system(2)
    x, y = rows(10)
    strategy = IPUStrategy()
    model, wanted = linear(strategy, 2), linear(strategy, 2)
    arguments = {"batch_size": 2, "shuffle": False}
    data, whole = (x, y), (x[:8], y[:8])
    if source != "arrays":
        data, whole = (
            (Dataset.from_tensor_slices(pair).batch(2, drop_remainder=True),)
            for pair in (data, whole)
        )
        arguments = {}
    if source == "endless":
        data, arguments = (data[0].repeat(),), {"steps_per_epoch": 5}
    with caplog.at_level(logging.WARNING, "millrace"):
        model.fit(*data, epochs=2, verbose=0, **arguments)
    assert "has 5 batches for 2 replicas, which take 2 each. Left out at the end: 1" in caplog.text
    if source == "endless":  # the next epoch continues with the fifth batch
        order = np.r_[0:10, 0:6]
        wanted.fit(x[order], y[order], batch_size=2, shuffle=False, verbose=0)
    else:
        wanted.fit(*whole, epochs=2, verbose=0, **arguments)
    assert int(model.optimizer.iterations) == 4
    assert model.get_weights()[0].item() == wanted.get_weights()[0].item()


@pytest.mark.slow
def test_evaluate_and_predict_leave_out_as_well(system):
    system(2)
    x, y = rows(10)
    model = linear(IPUStrategy(), 100)
    assert model.predict(x, batch_size=2, verbose=0).shape == (8, 1)
    assert model.evaluate(x, y, batch_size=2, verbose=0) is not None
    model.fit(x, y, batch_size=2, validation_data=(x, y), verbose=0)
    with pytest.raises(DataError, match="has 1 batches, and each of 2 replicas takes one"):
        model.predict(x[:2], batch_size=2)


def test_a_model_that_is_built_by_its_data_leaves_out_as_well(system):
    system(2)

    x, y = rows(10)
    with IPUStrategy().scope():
        model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    model.fit(x, y, batch_size=2, epochs=3, verbose=0)
    assert int(model.optimizer.iterations) == 6


@pytest.mark.slow
def test_pipelines_of_replicas(system):
    system(4)
    model = two_stages(IPUStrategy(), 8)
    model.set_pipelining_options(4)
    x, y = rows(64)
    model.fit(x, y, batch_size=2, verbose=0)  # 32 batches: 16 of each replica
    assert int(model.optimizer.iterations) == 4
    model.set_pipelining_options(8)
    model.compile("sgd", "mse", steps_per_execution=4)
    message = (
        r"=4 of .* must be a multiple of gradient_accumulation_steps_per_replica "
        r"= 8. It counts the batches of one replica, of which an epoch of 32 batches has 16, for 2 "
        r"replicas. Release 2.4 .* Set steps_per_execution to 8 in"
    )
    with pytest.raises(PlanError, match=message):
        model.fit(x, y, batch_size=2, verbose=0)
    model.compile("sgd", "mse", steps_per_execution=5)
    with pytest.raises(PlanError, match=r"the 2 micro-batches that the schedule Grouped with 2 st"):
        model.predict(x, batch_size=2)


def test_the_release_is_checked(monkeypatch):
    assert release() == NEWEST
    for text, wanted in {"2.4": (2, 4), " 2.6.0 ": (2, 6), "3.3": (3, 3)}.items():
        monkeypatch.setenv("MILLRACE_IPU_RELEASE", text)
        assert release() == wanted
    for text in ("2", "two", "0.9", "4.0", "2.4-beta"):
        monkeypatch.setenv("MILLRACE_IPU_RELEASE", text)
        with pytest.raises(OptionError, match=r"Set it to 2\.4 for programs whose steps_per_ex"):
            release()


def test_a_number_of_the_other_release_is_named(system, monkeypatch):
    system(2)
    model = linear(IPUStrategy(), 3)
    x, y = rows(12)
    monkeypatch.setenv("MILLRACE_IPU_RELEASE", "2.4")
    message = "Later releases count those of one: unset MILLRACE_IPU_RELEASE .* to 2 or 6 in"
    with pytest.raises(PlanError, match=message):
        model.fit(x, y, batch_size=2, verbose=0)
    monkeypatch.delenv("MILLRACE_IPU_RELEASE")
    model.fit(x, y, batch_size=2, verbose=0)
    model.compile("sgd", "mse", steps_per_execution=4)
    x, y = rows(24)
    with pytest.raises(DataError, match=r"Release 2\.4 counted those of all: set MILLR"):
        model.fit(x, y, batch_size=2, verbose=0)


def test_one_device_counts_as_it_did():
    model = linear(IPUStrategy(), 10)
    x, y = rows(40)
    model.fit(x, y, batch_size=2, verbose=0)
    assert model._millrace.totals.executions == 2


def test_precompile_and_the_memory_report_count_as_fit_does(system):
    system(2)
    strategy = IPUStrategy()
    model = linear(strategy, 3)
    model.set_gradient_accumulation_options(3)
    x, y = rows(24)
    report = strategy.memory_report(model, (x[:2], y[:2]), steps_per_epoch=12)
    assert report.devices
    with strategy.no_recompile():
        model.fit(x, y, batch_size=2, verbose=0)
    assert int(model.optimizer.iterations) == 2
