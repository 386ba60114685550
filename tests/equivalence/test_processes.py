"""Pipelines and replicas over processes train as one device does; a process that dies ends all."""

import pathlib
import re
import signal
import subprocess
import sys
import zipfile

import keras
import pytest

from case_marks import exhaustive

pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path(__file__).parent / "process_script.py"
LAUNCH = [str(pathlib.Path(sys.executable).with_name("millrace")), "launch", "--processes", "2"]
QUICK = [
    "replicas that share out state and weights",
    "tied weights",
    "stages that cross in both directions",
]


def launch(script, *arguments, devices=1, timeout=500, environment=None):
    return subprocess.run(
        [*LAUNCH, "--devices-per-process", str(devices), str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
    )


def same(result):
    assert result.returncode == 0, result.stdout + result.stderr
    return re.findall(r"^same: (.*) \(", result.stdout, re.MULTILINE)


def test_numbers_over_processes_are_those_of_one_device(quick_environment):
    assert same(launch(SCRIPT, *QUICK, devices=2, environment=quick_environment)) == QUICK


@pytest.mark.exhaustive
def test_all_ways_to_lie_over_processes():
    found = same(launch(SCRIPT, devices=2, timeout=1200))
    assert found == re.findall(r'^    "(.*?)": \(', SCRIPT.read_text(), re.MULTILINE)


BEGIN = """
import millrace
millrace.distributed.initialize()
import os, signal, sys, jax, keras, numpy as np
process = jax.process_index()
x = np.ones((64, 4), "float32")
with millrace.Strategy().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=4)
stages, accumulation = [0, 1], 4
"""
PIPELINE = """
model.set_pipeline_stage_assignment(stages)
model.set_pipelining_options(gradient_accumulation_steps_per_replica=accumulation)
"""
ANOTHER = """
with millrace.Strategy().scope():
    layers = [keras.layers.Dense(1 + process), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
model.compile("sgd", "mse", steps_per_execution=4)
"""
UNBUILT = """
keras.utils.set_random_seed(process)
with millrace.Strategy().scope():
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=4)
"""


@pytest.mark.parametrize(
    ("change", "what"),
    [
        exhaustive("model.layers[0].bias.assign(model.layers[0].bias + process)", "weights"),
        ("accumulation = 4 - 2 * process", "options"),
        exhaustive(ANOTHER, "model"),
        (UNBUILT, "weights"),
        (UNBUILT.replace("Dense(4)", "Dense(4 + process)"), "model"),
    ],
)
def test_processes_that_differ_say_so(tmp_path, change, what):
    script = tmp_path / "script.py"
    fit = "model.fit(x, x[:, :1], batch_size=4, verbose=0)"
    script.write_text(BEGIN + change + PIPELINE + fit)
    result = launch(script)
    assert result.returncode == 1
    assert f"do not have the same {what}" in result.stderr
    assert "process 0:" in result.stderr
    assert "process 1:" in result.stderr


DETACHED = """
import millrace
millrace.distributed.initialize()
import keras, numpy as np
x = np.random.default_rng(0).normal(size=(64, 3, 4)).astype("float32")

def build():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((None, 4)), *layers])

def fit(model, rows):
    options = {"batch_size": rows, "epochs": 2, "shuffle": False, "verbose": 0}
    return model.fit(x, x[..., :1], **options).history["loss"]

strategy, plain = millrace.Strategy(), build()
with strategy.scope():
    model = build()
for each in (plain, model):
    each.compile("adam", "mse", steps_per_execution=4 if each is model else 1)
model.set_pipeline_stage_assignment("auto", num_stages=2)  # for the lengths of the first batch
model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
losses = fit(model, 8)
strategy.detach(model)
assert all(variable.value.is_fully_addressable for variable in model.variables)
np.testing.assert_allclose(losses + fit(model, 32), fit(plain, 32) + fit(plain, 32), 1e-5)
for found, expected in zip(model.get_weights(), plain.get_weights()):
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
"""


def test_a_detached_pipeline_is_whole_in_every_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(DETACHED)
    result = launch(script)
    assert result.returncode == 0, result.stdout + result.stderr


BUDGETS = """
import millrace
millrace.distributed.initialize()
import jax, keras, numpy as np
from millrace.errors import PlanError
x = np.random.default_rng(0).normal(size=(4096, 16)).astype("float32")

def train(strategy=None, budget=None, fewer=0, **options):
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(32, "tanh") for _ in range(6 - fewer)]
    layers = [keras.Input((16,)), *hidden, keras.layers.Dense(1)]
    if strategy is None:
        model = keras.Sequential(layers)
    else:
        with strategy.scope():
            model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=8 if strategy else 1)
    if strategy is not None:
        model.set_pipeline_stage_assignment([0] * 4 + [1] * (3 - fewer))
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=8, **options)
        model.set_recomputation_options(budget=budget)
    rows = 256 if strategy else 2048
    losses = model.fit(x, x[:, :1], batch_size=rows, epochs=2, shuffle=False, verbose=0)
    return losses.history["loss"], model.get_weights()

def chosen(strategy):
    (choice,) = strategy.statistics().budgets
    return choice.choice, choice.peak_bytes

plain = train()
for options in ({}, {"fewer": 2, "pipeline_schedule": "gpipe"}):
    local = millrace.Strategy(devices=jax.local_devices()[:2])
    losses, weights = train(local, 0.75, **options)
    expected = chosen(local)
    everywhere = millrace.Strategy(devices=[jax.devices()[0], jax.devices()[2]])
    found, kept = train(everywhere, 0.75, **options)
    choice, peak = chosen(everywhere)
    print("chosen:", choice, peak, expected, flush=True)
    assert found == losses
    for one, other in zip(kept, weights, strict=True):
        np.testing.assert_array_equal(one, other)
    if "fewer" not in options:
        np.testing.assert_allclose(found, plain[0], 1e-6)
        for one, other in zip(kept, plain[1], strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)
try:
    train(millrace.Strategy(devices=[jax.devices()[0], jax.devices()[2]]), 1000)
except PlanError as error:
    print("refused:", error, flush=True)
train(millrace.Strategy(devices=[jax.devices()[0], jax.devices()[2]]), 0.75)  # all can go on
"""


def test_a_budget_is_kept_by_the_fullest_device_of_all_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BUDGETS)
    result = launch(script, devices=2)
    assert result.returncode == 0, result.stdout + result.stderr
    (log,) = re.findall(r"process 1 writes to (\S+)", result.stdout + result.stderr)
    printed = result.stdout, pathlib.Path(log).read_text()
    choices = [re.findall(r"chosen: (on the fullest.*?) \(", each) for each in printed]
    assert len(choices[0]) == 2
    assert choices[0] == choices[1]  # with the same peak
    assert all("choice" in each for each in choices[0])
    refusals = [re.findall(r"refused: (.*)", each)[0] for each in printed]
    assert all("The fullest device of this process has" in each for each in refusals)
    least = [re.findall(r"the smallest takes ([\d,]+)", each) for each in refusals]
    assert least[0] == least[1]
    assert refusals[0] != refusals[1]  # each about its own stages


@pytest.mark.parametrize("victim", [exhaustive(0), 1])
def test_a_process_that_dies_ends_the_others_and_leaves_the_last_checkpoint(tmp_path, victim):
    script = tmp_path / "script.py"
    script.write_text(
        BEGIN
        + PIPELINE
        + f"""
class Die(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2 and process == {victim}:
            os.kill(os.getpid(), signal.SIGKILL)

saves = keras.callbacks.ModelCheckpoint("model.keras")
model.fit(x, x[:, :1], batch_size=4, epochs=1000, verbose=0, callbacks=[saves, Die()])
"""
    )
    result = subprocess.run(
        [*LAUNCH, str(script)], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert result.returncode == 128 + signal.SIGKILL
    assert re.search(rf"process {victim} \(.*\) failed first", result.stderr + result.stdout) or (
        f"process {victim} failed first" in result.stderr + result.stdout
    )
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        assert file.testzip() is None
    assert keras.models.load_model(tmp_path / "model.keras").count_params() == 25


MEASURED = """
import millrace
millrace.distributed.initialize()
import os, time, jax, keras, numpy as np
import millrace.run.processes.agreement
from millrace.base.records.run import load
process = jax.process_index()
x = np.random.default_rng(0).normal(size=(64 * 8 * 20, 256)).astype("float32")
y = x[:, :1]

def make(strategy, **options):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(256, "tanh") for _ in range(6)]
    with strategy.scope():
        model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=160)
    model.set_pipeline_stage_assignment([0] * 3 + [1] * 4)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=8, **options)
    return model

def fit(model, *data):
    return model.fit(*data, batch_size=64, shuffle=False, verbose=0).history["loss"]

weights = {}
for schedule, held in (("auto", (3, 1)), ("1f1b", (2, 1)), ("gpipe", (8, 8))):
    strategy = millrace.Strategy(report_dir=schedule if schedule == "gpipe" else None)
    model = make(strategy, pipeline_schedule=schedule)
    fit(model, x, y)
    assert strategy.statistics().pipeline.last_in_flight[process] == held[process], schedule
    before = strategy.statistics().pipeline.seconds
    for _ in range(3):
        fit(model, x, y)
    after = strategy.statistics().pipeline.seconds
    assert after.updates - before.updates == 60
    spent = {k: v - before.parts.get(k, 0.0) for k, v in after.parts.items()}
    assert set(spent) == {"waiting for devices", "dispatch", "waiting for data"}
    assert all(seconds >= 0 for seconds in spent.values()), spent
    assert spent["waiting for devices"] > 0 and spent["dispatch"] > 0, spent
    weights[schedule] = model.get_weights()
    begin = time.perf_counter()
    fit(model, x, y)
    wall, update_seconds = time.perf_counter() - begin, strategy.statistics().pipeline.seconds.total
    assert 0 < update_seconds - after.total < wall
    print(strategy.statistics())
for schedule in ("auto", "gpipe"):
    for one, other in zip(weights[schedule], weights["1f1b"], strict=True):
        np.testing.assert_array_equal(one, other)

# Records have the same, of each process.
millrace.run.processes.agreement.check_same({"written": "by all"})
loops = [loop for loop in load("gpipe").loops if loop.process == process]
for name, seconds in strategy.statistics().pipeline.seconds.parts.items():
    recorded = sum(loop.update_seconds.get(name, 0.0) for loop in loops)
    assert abs(recorded - seconds) < 1e-6, (name, recorded, seconds)
assert {loop.process for loop in load("gpipe").loops if loop.update_seconds} == {0, 1}

# Weights that one process has set anew, to what they were, are no difference; others are one.
if process == 0:
    model.set_weights(model.get_weights())
fit(model, x, y)
if process == 0:
    model.layers[0].bias.assign(model.layers[0].bias + 1)
try:
    fit(model, x, y)
except millrace.errors.PlanError as error:
    assert "do not have the same weights" in str(error)
else:
    raise AssertionError("different weights were not noticed")
if process == 1:
    model.layers[0].bias.assign(model.layers[0].bias + 1)

# Different data, of which only the last batch differs.
try:
    fit(model, x[: 640 - process], y[: 640 - process])
except millrace.errors.PlanError as error:
    assert "do not have the same last batch" in str(error)
else:
    raise AssertionError("different data was not noticed")
fit(model, x[:640], y[:640])
"""


def test_a_pipeline_says_what_its_time_went_to_and_keeps_its_bits(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os\nos.chdir(os.path.dirname(__file__))\n" + MEASURED)
    result = launch(script)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"pipeline, updates +[\d.]+ s +99\n  waiting for devices", result.stdout)


FAILING = """
class Failing(keras.layers.Layer):
    is_failing = True

    def look(self, x):
        if self.is_failing:
            raise ValueError("not one of the rows that were asked for")
        return x

    def call(self, x):
        spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
        looked = jax.pure_callback(self.look, spec, jax.lax.stop_gradient(x))
        return keras.layers.Identity()(x) + 0 * jax.lax.stop_gradient(looked)

with millrace.Strategy().scope():
    layers = [Failing(), keras.layers.Dense(4), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
model.compile("sgd", "mse", steps_per_execution=4)
stages = [0, 0, 1]
"""
CAUGHT = """
out = open(f"process-{process}", "w") if process else None
try:
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
except Exception as error:
    print("caught", type(error).__name__, error, file=out, flush=True)
"""
AGAIN = """
Failing.is_failing = False
history = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0).history
print("again", process, history["loss"][1] < history["loss"][0], file=out, flush=True)
"""


def test_the_error_of_a_first_step_is_the_one_that_is_raised(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os\nos.chdir(os.path.dirname(__file__))\n" + BEGIN + FAILING + CAUGHT)
    result = launch(script, timeout=200)
    assert "not one of the rows" in result.stdout, result.stdout + result.stderr


def test_nobody_waits_for_a_process_that_has_caught_the_error_of_its_stage(tmp_path):
    script = tmp_path / "script.py"
    parts = [BEGIN, FAILING, PIPELINE, CAUGHT, AGAIN]
    script.write_text("import os\nos.chdir(os.path.dirname(__file__))\n" + "".join(parts))
    result = launch(script, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "caught TaskError Task 0F0 failed" in result.stdout
    assert "again 0 True" in result.stdout
    second = (tmp_path / "process-1").read_text()
    assert "ProcessError Process 0 has left an update of the pipeline: " in second
    assert "TaskError: Task 0F0 failed" in second
    assert "again 1 True" in second


def test_only_the_first_process_shows_a_bar(tmp_path):
    script = tmp_path / "script.py"
    fit = "model.fit(x, x[:, :1], batch_size=4, epochs=2)"
    # Plans are for one process; the log of `fit` says so.
    logs = "import logging\nlogging.basicConfig(level=logging.INFO)\n"
    begin = BEGIN.replace("millrace.Strategy()", "millrace.Strategy(memory='1GB')")
    ends = "\nprint(process, sorted(model.history.history))"
    script.write_text(logs + begin + PIPELINE + fit + ends)
    result = launch(script)
    assert result.returncode == 0, result.stderr
    assert "Epoch 2/2" in result.stdout
    (log,) = re.findall(r"process 1 writes to (\S+)", result.stdout + result.stderr)
    written = pathlib.Path(log).read_text()
    assert "1 ['loss']" in written
    assert "is trained by several processes, and is not planned" in result.stdout + result.stderr
    assert "Epoch" not in written


def test_devices_of_other_processes_only(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import millrace\nmillrace.distributed.initialize()\nimport jax\n"
        "millrace.Strategy(devices=[jax.devices()[0]])"
    )
    result = launch(script)
    assert result.returncode == 1
    assert "belongs to this process, number 1" in result.stderr + result.stdout
