"""Replicas that cost more than they bring: said by numbers that the fit itself measured."""

import pathlib
import re
import subprocess
import sys

import pytest

from millrace.fit.replica_costs import replica_costs
from millrace.processes.shared_memory import SumTimes

MILLRACE = str(pathlib.Path(sys.executable).with_name("millrace"))
SCRIPT = """
import millrace
millrace.distributed.initialize()
import keras, numpy as np
import time
from millrace.processes.shared_memory import SharedMemory

meet = SharedMemory._meet

def meet_late(*arguments):
    begin = time.perf_counter()
    while time.perf_counter() < begin + 2e-3:
        pass
    meet(*arguments)

SharedMemory._meet = meet_late  # so that the short updates cost more on any machine

def train(name, width, rows, accumulation):
    x = np.ones((rows * accumulation * 2 * 40, width), "float32")
    with millrace.Strategy().scope():
        layers = [keras.layers.Dense(width) for _ in range(2)]
        model = keras.Sequential([keras.Input((width,)), *layers], name=name)
    model.compile("sgd", "mse", steps_per_execution=len(x) // rows)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    for _ in range(2):  # said once
        model.fit(x, x, batch_size=rows, shuffle=False, verbose=0)

train("short", 4, 1, 1)
train("long", 256, 256, 8)
"""


@pytest.mark.parametrize(
    ("own", "added", "accumulation", "found"),
    [
        (100e-6, 300e-6, 1, ("400 us", "100 us", "300 us", "0.50x", "per_replica=9 ", "1.5x")),
        (100e-6, 150e-6, 2, ("250 us", "100 us", "150 us", "0.80x", "per_replica=10 ", "1.5x")),
        (100e-6, 99e-6, 1, None),
    ],
)
def test_the_numbers_are_the_medians_of_the_updates(own, added, accumulation, found):
    times = [SumTimes(own, added)] * 20 + [SumTimes(9.0, 0.0)] * 3
    text = replica_costs(times, 2, accumulation)
    if found is None:
        assert text is None
    else:
        assert all(each in text for each in found), text
    assert replica_costs(times[:19], 2, accumulation) is None


@pytest.mark.slow
def test_fit_says_so_once_where_it_is_true(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    result = subprocess.run(
        [MILLRACE, "launch", "--processes", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    said = re.findall(r"(\w+): replicas cost more than they bring", result.stdout + result.stderr)
    # Whether the long ones cost more depends on the machine, but not that a model is named once.
    assert said.count("short") == 1
    assert said.count("long") <= 1
    numbers = r"short: .* takes (\d+) us: .* for (\d+) us, and takes (\d+) us .* train (0\.\d+)x"
    update, own, added, speed = map(
        float, re.search(numbers, result.stdout + result.stderr).groups()
    )
    assert abs(update - own - added) <= 2
    assert abs(speed - 2 * own / (own + added)) < 0.02
