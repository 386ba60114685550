"""F6, F64, F65: reports that POPLAR_ENGINE_OPTIONS asks for."""

import json
import os
import pathlib
import re
import weakref

import jax
import keras
import numpy as np
import pytest
from examples_of_ipu import load

import millrace
from millrace.base.threads.scoped_value import Notes
from millrace.compilation.cache.use import use_cache
from millrace.compilation.executables.sharing import sharing
from millrace.errors import OptionError
from millrace_ipu import ipu
from millrace_ipu.ipu import program_reports
from millrace_ipu.ipu.engine_options import AutoReport, auto_report
from millrace_ipu.tensorflow import no_operation

ALL = {"autoReport.all": "true"}
NAME = re.compile(r"tf_report__\d{4}-\d\d-\d\d__\d\d-\d\d-\d\d\.\d{3}__(\d+)")
X = np.arange(128, dtype="float32").reshape(32, 4) / 128


@pytest.fixture(autouse=True)
def own_reports(monkeypatch, tmp_path):
    """Begins without reports, in a directory of its own."""
    monkeypatch.setattr(program_reports, "_sinks", weakref.WeakSet())
    monkeypatch.setattr(program_reports, "_taker", [])
    monkeypatch.setattr(no_operation, "notes", Notes())
    monkeypatch.delenv("POPLAR_ENGINE_OPTIONS", raising=False)
    monkeypatch.chdir(tmp_path)
    sharing.clear()  # equal programs of other tests


@pytest.fixture
def ask(monkeypatch):
    def set_options(**options):
        text = json.dumps({f"autoReport.{name}": value for name, value in options.items()})
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", text)

    return set_options


def of_model(*, stages=0, accumulation=1, name="mlp"):
    layers = [keras.layers.Dense(8, "tanh", name="first"), keras.layers.Dense(1, name="last")]
    model = keras.Sequential([keras.Input((4,)), *layers], name=name)
    if stages:
        model.set_pipeline_stage_assignment([0, 1])
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=accumulation, device_mapping=[0, 1]
        )
    elif accumulation > 1:
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=accumulation
        )
    model.compile("sgd", "mse", steps_per_execution=2 * accumulation)
    return model


def fit(model, epochs=1, batch_size=4):
    keras.utils.set_random_seed(0)
    return model.fit(X, X[:, :1], batch_size=batch_size, epochs=epochs, verbose=0).history


def reports(root="."):
    """The directories, by program, in the order in which they were made."""
    paths = [path for path in sorted(pathlib.Path(root).iterdir()) if NAME.fullmatch(path.name)]
    return {(one := framework(path))["model"] + ":" + one["program"]: path for path in paths}


def framework(path):
    return json.loads((path / "framework.json").read_text())


def test_f64_each_program_leaves_a_directory_once(system, ask):
    system(1)
    ask(all="true")
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = of_model()
        fit(model)
        found = reports()
        assert list(found) == ["mlp:train"]
        model.evaluate(X, X[:, :1], batch_size=4, verbose=0)
        model.predict(X, batch_size=4, verbose=0)
        assert list(reports()) == ["mlp:train", "mlp:test", "mlp:predict"]
        fit(model, epochs=2)  # once more: the same program, and the same directory
        model.predict(X, batch_size=4, verbose=0)
    assert list(reports()) == ["mlp:train", "mlp:test", "mlp:predict"]
    assert all(NAME.fullmatch(path.name)[1] == str(os.getpid()) for path in reports().values())
    facts = framework(found["mlp:train"])
    assert (facts["stages"], facts["replicas"], facts["gradient_accumulation"]) == (1, 1, 1)
    assert facts["versions"]["keras"] == keras.__version__
    assert [each["program"] for each in facts["executables"]] == ["train_run"]
    run = millrace.records.load(found["mlp:train"])
    assert [loop.mode for loop in run.loops] == ["train", "train"]
    assert [each.epoch for each in run.epochs] == [1, 1, 2]
    assert run.processes[0].pid == os.getpid()
    assert run.memory["train"].peak.bytes > 0
    assert "report.html" in os.listdir(found["mlp:train"])


def test_f64_without_the_variable_there_is_none(system):
    system(1)
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        fit(of_model())
    assert os.listdir() == []
    assert not strategy._totals.sinks


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"all": "false"}, {}, {"directory": "elsewhere"}])
def test_f64_options_that_ask_for_nothing(system, ask, options):
    system(1)
    ask(**options)
    with ipu.ipu_strategy.IPUStrategy().scope():
        fit(of_model())
    assert os.listdir() == []


@pytest.mark.slow
def test_f64_training_is_the_same_with_reports(system, ask):
    system(2)
    losses = []
    for options in ({}, {"all": "true"}):
        ask(**options)
        keras.utils.set_random_seed(1)
        with ipu.ipu_strategy.IPUStrategy().scope():
            losses.append(fit(of_model(stages=2, accumulation=4), epochs=3)["loss"])
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_f64_the_stages_of_a_pipeline_are_one_program(system, ask):
    system(2)
    ask(all="true", directory="made/here")
    with ipu.ipu_strategy.IPUStrategy().scope():
        fit(of_model(stages=2, accumulation=4))
    found = reports("made/here")
    assert list(found) == ["mlp:train"]
    facts = framework(found["mlp:train"])
    assert (facts["stages"], facts["gradient_accumulation"], facts["replicas"]) == (2, 4, 1)
    assert facts["schedule"] in ("1f1b", "grouped")
    programs = {each["program"] for each in facts["executables"]}
    assert {"train_forward of stage 0", "train_backward of stage 1"} <= programs
    assert len(facts["devices"]) == 2


@pytest.mark.slow
def test_f65_the_report_has_a_row_of_tasks_for_each_device(system, ask):
    """The trace shows accumulation as tasks of micro-batches, before one update."""
    system(2)
    ask(all="true", executionProfileProgramRunCount="3")
    with ipu.ipu_strategy.IPUStrategy().scope():
        fit(of_model(stages=2, accumulation=4), epochs=4)
    run = millrace.records.load(reports()["mlp:train"])
    assert {(span.stage, span.group) for span in run.timeline.spans} == {(0, 0), (1, 1)}
    assert {span.micro_batch for span in run.timeline.spans} == {0, 1, 2, 3}
    assert 0 < run.timeline.bubble < 1
    assert 1 <= len(run.traces) <= 3


@pytest.mark.slow
def test_f65_the_report_has_operations_of_layers_optimizer_and_accumulation(system, ask):
    system(2)
    ask(all="true")
    with ipu.ipu_strategy.IPUStrategy().scope():
        fit(of_model(stages=2, accumulation=4))
    run = millrace.records.load(reports()["mlp:train"])
    groups = [group for program in run.operations for group in program.groups]
    owners = {(group.owner, group.role) for group in groups}
    assert {("first", "layer"), ("last", "layer"), ("SGD", "optimizer")} <= owners
    assert "accumulation" in {group.role for group in groups}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"all": "true", "outputExecutionProfile": "false"}, {"outputGraphProfile": "true"}],
)
def test_f64_the_profile_of_executions_can_be_left_out(system, ask, options):
    system(2)
    ask(**options)
    with ipu.ipu_strategy.IPUStrategy().scope():
        fit(of_model(stages=2, accumulation=4))
    run = millrace.records.load(reports()["mlp:train"])
    assert run.traces == ()
    assert run.memory["train"].peak.bytes > 0


@pytest.mark.slow
def test_f64_the_profile_of_the_graph_can_be_left_out(system, ask):
    system(2)
    ask(all="true", outputGraphProfile="false", executionProfileProgramRunCount=1)
    with ipu.ipu_strategy.IPUStrategy().scope():
        fit(of_model(stages=2, accumulation=4), epochs=4)
    run = millrace.records.load(reports()["mlp:train"])
    assert (len(run.memory), len(run.traces)) == (0, 1)


@pytest.mark.slow
def test_f64_another_batch_size_is_another_program(system, ask):
    system(1)
    ask(all="true")
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = of_model()
        fit(model)
        fit(model, batch_size=8)
        fit(model)
    paths = sorted(path for path in pathlib.Path().iterdir())
    assert [framework(path)["executables"][0]["batch"] for path in paths] == [
        "float32[4,4], float32[4,1]",
        "float32[8,4], float32[8,1]",
    ]
    assert "shape" in framework(paths[1])["executables"][0]["cause"]


@pytest.mark.slow
def test_f64_two_models_have_their_own(system, ask):
    system(1)
    ask(all="true")
    with ipu.ipu_strategy.IPUStrategy().scope():
        for name in ("one", "other"):
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(len(name))], name=name)
            model.compile("sgd", "mse", steps_per_execution=2)
            fit(model)
    assert list(reports()) == ["one:train", "other:train"]
    for path in reports().values():
        run = millrace.records.load(path)
        assert {loop.model for loop in run.loops} == {framework(path)["model"]}


@pytest.mark.slow
def test_f64_validation_in_fit_is_a_program_of_its_own(system, ask):
    system(1)
    ask(all="true")
    with ipu.ipu_strategy.IPUStrategy().scope():
        of_model().fit(X, X[:, :1], 4, epochs=2, validation_data=(X, X[:, :1]), verbose=0)
    found = reports()
    assert list(found) == ["mlp:train", "mlp:test"]
    run = millrace.records.load(found["mlp:test"])
    assert {each.mode for each in run.executions} == {"test"}
    assert [loop.outcome for loop in run.loops] == ["finished"]


@pytest.mark.slow
def test_f64_it_may_be_set_in_python_after_the_strategy(system, monkeypatch):
    system(1)
    strategy = ipu.ipu_strategy.IPUStrategy()
    os.environ["POPLAR_ENGINE_OPTIONS"] = json.dumps(ALL)
    try:
        with strategy.scope():
            fit(of_model())
    finally:
        del os.environ["POPLAR_ENGINE_OPTIONS"]
    assert list(reports()) == ["mlp:train"]


def test_f64_a_function_of_the_strategy_leaves_a_report(system, ask):
    system(1)
    ask(all="true")
    strategy = ipu.ipu_strategy.IPUStrategy()

    @millrace.compile
    def triple(x):
        return 3 * x

    for _ in range(2):
        assert strategy.run(triple, [X]).sum() == pytest.approx(3 * X.sum())
    assert list(reports()) == [":triple"]
    assert millrace.records.load(reports()[":triple"]).compilations[0].program == "triple"


@pytest.mark.slow
def test_f64_a_program_of_the_cache_leaves_none(system, ask, tmp_path):
    use_cache(tmp_path / "cache")
    system(1)
    origins, left = [], []
    try:
        for options in ({}, {"all": "true"}, {"all": "true"}):
            ask(**options)
            strategy = ipu.ipu_strategy.IPUStrategy()
            with strategy.scope():
                strategy.run(jax.jit(lambda x: x * 6.125), [X])
            origins.append(strategy.compile_log[0].origin.value)
            left.append(len([name for name in os.listdir() if NAME.fullmatch(name)]))
            jax.clear_caches()
            sharing.clear()
    finally:
        use_cache(None)
    # The text of the options is part of the key: with another one the program is compiled.
    assert origins == ["compiled", "compiled", "cache"]
    assert left == [0, 1, 1]


@pytest.mark.slow
def test_f64_a_directory_that_cannot_be_written_does_not_end_training(system, ask, caplog):
    system(1)
    pathlib.Path("file").write_text("")
    ask(all="true", directory="file/reports")
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = of_model()
        assert len(fit(model, epochs=2)["loss"]) == 2
        model.predict(X, batch_size=4, verbose=0)
    texts = [each.getMessage() for each in caplog.records if "Reports of pro" in each.getMessage()]
    assert len(texts) == 1
    assert 'Set "autoReport.directory" in POPLAR_ENGINE_OPTIONS' in texts[0]


WRONG = [
    ('{"autoReport.all": "true"', "is no JSON"),
    ("autoReport.all=true", "is no JSON"),
    ('["autoReport.all"]', "is no JSON object"),
    ('{"autoReport.all": "maybe"}', "'maybe', which is not 'true' or 'false'"),
    ('{"autoReport.outputGraphProfile": 3}', "3, which is not 'true' or 'false'"),
    ('{"autoReport.outputArchive": ""}', "'', which is not 'true' or 'false'"),
    ('{"autoReport.all": true, "autoReport.directory": ""}', "'', which is not a directory"),
    ('{"autoReport.all": true, "autoReport.directory": 7}', "7, which is not a directory"),
    (
        '{"autoReport.all": true, "autoReport.executionProfileProgramRunCount": "-1"}',
        "'-1', which is not a number of runs",
    ),
    (
        '{"autoReport.all": true, "autoReport.executionProfileProgramRunCount": true}',
        "True, which is not a number of runs",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_f64_mistakes_are_named(text, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        auto_report(text)


RIGHT = [
    ("", None),
    ("  ", None),
    ("{}", None),
    ('{"autoReport.all":"true"}', AutoReport(pathlib.Path("."))),
    ('{"autoReport.all": true}', AutoReport(pathlib.Path("."))),
    ('{"autoReport.all":"True","autoReport.directory":"./a"}', AutoReport(pathlib.Path("a"))),
    (
        '{"autoReport.all":"1","autoReport.executionProfileProgramRunCount":"5"}',
        AutoReport(pathlib.Path("."), 5),
    ),
    (
        '{"autoReport.outputExecutionProfile":"true"}',
        AutoReport(pathlib.Path("."), has_graph=False),
    ),
    (
        '{"autoReport.outputArchive":"true"}',
        AutoReport(pathlib.Path("."), has_graph=False, has_execution=False),
    ),
]


@pytest.mark.parametrize(("text", "report"), RIGHT)
def test_f64_engine_options_are_read(text, report):
    assert auto_report(text) == report


def test_f64_other_engine_options_warn_once(caplog):
    for _ in range(2):
        auto_report('{"debug.allowOutOfMemory": "true"}')
    (record,) = caplog.records
    assert "POPLAR_ENGINE_OPTIONS debug.allowOutOfMemory has no effect" in record.getMessage()


@pytest.mark.slow
def test_f06_checkpoints_lower_the_peak_of_the_report(system, ask, monkeypatch):
    """The program with the split LSTM, with seven checkpoints and with none."""
    script = load("recompute_lstm")
    monkeypatch.setattr(script, "UNITS", 8)
    monkeypatch.setattr(script, "FEATURES", 16)
    ask(all="true")
    peaks = []
    for checkpoints in (0, 7):
        script.configure()
        with ipu.ipu_strategy.IPUStrategy().scope():
            model = script.compiled(script.create_model(64, checkpoints))
        model.fit(script.create_dataset(64), verbose=0)
        path = max(pathlib.Path().glob("tf_report__*"))
        run = millrace.records.load(path)
        memory = run.memory["train_backward of stage 0"]
        # Liveness, step by step; the areas of its roles add up to it.
        assert len(memory.curve) > 50
        curve = list(map(sum, zip(*areas(memory), strict=True)))
        assert memory.peak.bytes == max(memory.curve) == max(curve)
        assert "popnn_lstm" in memory.recomputation  # without checkpoints, as one segment
        peaks.append(memory.peak.bytes)
    without, peak = peaks
    assert peak < 0.7 * without


def areas(memory):
    return [area.curve for area in memory.areas]
