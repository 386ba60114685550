"""Reports, plans and commands for devices that are described, as users call them."""

import pathlib
import re
import resource
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers
from target_programs import Target

import millrace
from millrace.compilation.export.file import environment
from millrace.errors import DeviceError, UnsupportedError
from millrace.run.fit.described import NotPresentError

ROOT = pathlib.Path(__file__).parents[2]


def build(target, units=512, depth=3, **options):
    with target.scope():
        hidden = [layers.Dense(units, "relu") for _ in range(depth)]
        model = keras.Sequential([keras.Input((units,)), *hidden, layers.Dense(4)])
    model.compile("adam", "mse", **options)
    return model


def batch(rows, units=512):
    return ((rows, units), "float32"), ((rows, 4), "float32")


@pytest.mark.quick
def test_what_is_predicted_is_what_is_compiled(kind):
    target = Target(kind)
    model = build(target.strategy)
    report = target.strategy.memory_report(model, batch(256))
    (program,) = [each for each in target.programs if each.name == "train_run"]
    (device,) = report.devices
    ahead = report.devices[0].stages[0].batches - 256 * 516 * 4
    assert device.peak == program.peak + ahead
    assert device.devices == (f"{kind}:0",)
    assert device.stages[0].parameters == 4 * model.count_params()
    plan = target.strategy.plan(model, batch(256))
    assert plan.target == target.strategy.devices[0].device_kind.replace("NVIDIA ", "NVIDIA ")
    assert plan.chosen.peak == device.peak
    assert 0 < plan.chosen.least_seconds < plan.chosen.seconds
    assert plan.chosen.flops == pytest.approx(6 * 256 * 512 * (512 * 3 + 4), rel=0.2)
    assert "at least" in str(plan)
    assert "estimated" in str(plan)


@pytest.mark.quick
def test_nothing_runs(kind):
    target = Target(kind)
    model = build(target.strategy)
    x, y = np.zeros((8, 512), "float32"), np.zeros((8, 4), "float32")
    for call in (
        lambda: model.fit(x, y),
        lambda: model.evaluate(x, y),
        lambda: model.predict(x),
        lambda: model.train_on_batch(x, y),
    ):
        with pytest.raises(NotPresentError, match="has a target, whose devices are described"):
            call()
    with pytest.raises(DeviceError, match="described and not here"):
        target.strategy.run(millrace.compile(lambda x: x + 1), [x])
    with pytest.raises(UnsupportedError, match="Leave measure out"):
        target.strategy.plan(model, batch(8), measure=True)


def test_a_plan_stays_within_less_memory():
    target = millrace.Strategy(target="h100")
    model = build(target, depth=4)
    rows = 2**17
    free = target.plan(model, batch(rows)).chosen.peak
    plan = target.plan(model, batch(rows), memory=int(0.7 * free))
    assert plan.chosen.peak <= 0.7 * free
    plan.apply()
    again = target.memory_report(model, batch(plan.batch_size), budget=int(0.7 * free))
    assert again.fits


def test_a_tpu_that_is_too_small():
    target = millrace.Strategy(target="v5e")
    model = build(target, units=8192, depth=2)
    report = target.memory_report(model, batch(2**18, 8192))
    assert report.fits is False
    assert report.devices[0].peak > report.devices[0].limit
    assert report.changes


@pytest.mark.parametrize("target", ["h100:4", "v5e:2x2"])
def test_layouts_of_several_devices_are_compared(target):
    strategy = millrace.Strategy(target=target)
    plan = strategy.plan(build(strategy, depth=7), batch(512))
    assert {each.update.layout for each in plan.alternatives} >= {"4 x 1"}
    assert len({each.update.layout for each in plan.alternatives}) > 1


@pytest.mark.quick
def test_a_model_larger_than_this_machine():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    target = millrace.Strategy(target="h100:8")
    model = build(target, units=16_384, depth=16)  # 17 GB of weights, and twice as much of Adam
    model.set_replication_options(
        replicated_optimizer_state_sharding=True, replicated_weight_sharding=True
    )
    report = target.memory_report(model, batch(8, 16_384))
    (device,) = report.devices
    state = 3 * 4 * model.count_params()
    assert device.stages[0].parameters + device.stages[0].optimizer_state == pytest.approx(
        state / 8, rel=0.02
    )
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < 1.5e9


@pytest.mark.quick
def test_executables_are_exported(kind, tmp_path):
    target = millrace.Strategy(target=kind)
    build(target).precompile(batch(64))
    assert target.export_executables(tmp_path) == 3
    facts = environment(target.devices[0])
    assert "processor" not in facts
    assert ("version of the platform" in facts) == (kind == "v5e")


def test_the_key_of_a_program_differs_from_the_cpu_s_in_its_devices_only(kind):
    keys = []
    for strategy in (millrace.Strategy(target=kind), millrace.Strategy(devices=1)):
        build(strategy, depth=1).precompile((batch(64)[0],))
        (export,) = strategy._totals.exports._exports.values()
        keys.append({(field.aspect, field.name): field.value for field in export.key.fields})
    different = {name for name in keys[0] | keys[1] if keys[0].get(name) != keys[1].get(name)}
    # A block of one step is a program by itself on a CPU, there or not.
    of_platform = {"platform", "kind of device", "strategy", "steps in a block", "model object"}
    assert {name for _, name in different} <= of_platform


TRAIN = """
import sys
import keras, numpy as np
x, y = np.zeros((1000, 512), "float32"), np.zeros((1000, 4), "float32")
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(512, "relu"), keras.layers.Dense(4)
    def call(self, x):
        return self.out(self.hidden(x))
model = Own()
model(x[:2])
model.compile("adam", "mse")
print("arguments", sys.argv[1:])
if "early" in sys.argv:
    sys.exit()
if "predict" in sys.argv:
    model.predict(x)
model.fit(x, y, batch_size=100, epochs=2)
print("never reached")
"""
OWN_STRATEGY = """
import millrace
import keras, numpy as np
with millrace.Strategy(devices="cpu:2").scope():
    model = keras.Sequential([keras.Input((512,)), keras.layers.Dense(512), keras.layers.Dense(4)])
model.compile("sgd", "mse")
def batches():
    while True:
        yield np.zeros((64, 512), "float32"), np.zeros((64, 4), "float32")
model.fit(batches(), steps_per_epoch=10)
"""


def command(*words):
    line = "from millrace.tools.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", line, *map(str, words)], capture_output=True, text=True, check=False
    )


@pytest.mark.quick
def test_a_script_is_planned_up_to_its_fit(tmp_path):
    script, saved = tmp_path / "train.py", tmp_path / "plan.json"
    script.write_text(TRAIN)
    result = command("plan", "--target", "h100:2", "--save", saved, script, "--seed", 1)
    assert result.returncode == 0, result.stderr
    assert "arguments ['--seed', '1']" in result.stdout
    assert "never" not in result.stdout
    assert re.search(r"own\S*, updates of float32\[100,512\]", result.stdout)
    plan = millrace.TrainingPlan.load(saved)
    assert plan.devices == ("h100:0", "h100:1")
    assert plan.chosen.update.rows == 100


def test_a_script_with_a_strategy_gets_the_target(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(OWN_STRATEGY)
    result = command("memory", "--target", "v5e", "--rows", 4096, script)
    assert result.returncode == 0, result.stderr
    assert "batches of float32[4096,512], float32[4096,4]" in result.stdout
    assert "v5e:0" in result.stdout


@pytest.mark.parametrize(
    ("word", "message"),
    [("early", "has ended without a call of fit()"), ("predict", "calls predict() of 'own")],
)
def test_a_script_that_does_not_come_to_its_fit(tmp_path, word, message):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    result = command("memory", "--target", "h100", script, word)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.quick  # CI runs every example
def test_the_example_prints_what_its_page_says():
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "target.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    page = (ROOT / "docs" / "targets.md").read_text()
    (shown,) = re.findall(r"It prints\n\n```text\n(.*?)```", page, re.DOTALL)

    def words(text):
        return re.sub(r"[-+]?\d[\w.,%:-]*( [KMG]?B\b)?", "0", text).split()

    assert words(result.stdout) == words(shown)
