"""The options in a model's file: what no setter would take is refused, and none is changed."""

import json
import zipfile

import keras
import pytest

import millrace
from millrace.api.strategy.saving import OPTIONS_FILE, load_options
from millrace.base.options import Options
from millrace.errors import OptionError


@pytest.fixture
def model(strategy):
    with strategy.scope():
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    made.compile("sgd", "mse")
    return made


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "its content is not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"feed": 3}', "feed is not a JSON object"),
        ('{"feed": {"prefetch_depth": 0}}', "prefetch_depth must be at least 1"),
        ('{"feed": {"prefetch_depth": null}}', "prefetch_depth must be a whole number"),
        (f'{{"feed": {{"max_block_bytes": 1{"0" * 400}}}}}', "is a number of 1329 bits"),
        ('{"accumulation": {"reduction": "median"}}', "reduction_method must be one of"),
        ('{"accumulation": {"steps": 3, "at_a_time": 2}}', "3 steps in an update"),
        ('{"accumulation": {"dtype": "floaty"}}', "'floaty' is not a dtype"),
        ('{"accumulation": {"dtype": ["float32"]}}', "dtype is not a text"),
        ('{"pipelining": {"schedule": "/etc/passwd"}}', "is no task"),
        ('{"pipelining": {"schedule": "# none"}}', "without tasks"),
        ('{"pipelining": {"schedule": 3}}', "pipeline_schedule is not a text"),
        ('{"pipelining": {"batch_serialization": 2, "schedule": "1f1b"}}', "is a form of"),
        ('{"pipelining": {"device_mapping": [0, "x"]}}', "device_mapping"),
        ('{"pipelining": {"schedule_stages": [-1]}}', "schedule_stages"),
        (
            '{"pipelining": {"update_options": {"xla_gpu_cuda_data_dir": "x"}}}',
            "'xla_gpu_cuda_data_dir' of XLA names files",
        ),
        (
            '{"pipelining": {"forward_options": [{}, {"a": "/tmp/x"}]}}',
            "the option 'a' of XLA names files",
        ),
        ('{"recomputation": {"budget": -1}}', "budget must be bytes"),
        ('{"stages": 3}', "are damaged"),
        ('{"stages": {"num_stages": 1000000000000, "calls": null}}', "are damaged"),
        ('{"stages": {"num_stages": 2, "calls": [["dense", 0]]}}', "are damaged"),
    ],
)
def test_what_no_setter_would_take(model, tmp_path, text, reason):
    (tmp_path / OPTIONS_FILE).write_text(text)
    with pytest.raises(OptionError) as error:
        load_options(model._millrace, str(tmp_path))
    assert reason in str(error.value)
    assert model.name in str(error.value)
    assert model._millrace.setup.options == Options()
    assert model._millrace.setup.stages.assignment() is None


def test_a_stage_far_beyond_the_others(model, tmp_path):
    calls = [[layer.name, 0, 10**12 * number] for number, layer in enumerate(model.layers)]
    data = {"stages": {"num_stages": 2, "calls": calls}}
    (tmp_path / OPTIONS_FILE).write_text(json.dumps(data))
    with pytest.raises(OptionError, match="without a gap"):
        load_options(model._millrace, str(tmp_path))


def with_options(path, options):
    """Returns a copy of a file with these bytes as its options, or without them for None."""
    changed = path.with_stem("changed")
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(changed, "w") as copy:
        for name in whole.namelist():
            content = options if name.endswith(OPTIONS_FILE) else whole.read(name)
            if content is not None:
                copy.writestr(name, content)
    return changed


def test_load_model_raises_it_as_it_is(strategy, model, tmp_path):
    model.save(tmp_path / "whole.keras")
    damaged = with_options(tmp_path / "whole.keras", b'{"feed": "\xff"}')
    with (
        strategy.scope(),
        pytest.raises(OptionError, match=f"^{OPTIONS_FILE}, .*utf-8.* byte\\. Save"),
    ):
        keras.saving.load_model(damaged)


@keras.saving.register_keras_serializable("test_saved_options")
class Net(keras.Model):
    """A graph that the constructor builds, with an operation that Keras names."""

    factors = (2.0,)

    def __init__(self, **kwargs):
        x = keras.Input((4,))
        y = keras.layers.Dense(4, name="first")(x)
        for factor in self.factors:
            y = y * factor
        super().__init__(x, keras.layers.Dense(1, name="last")(y), **kwargs)

    def get_config(self):
        return {"name": self.name}


@pytest.fixture
def saved_net(tmp_path):
    strategy = millrace.Strategy(devices="cpu:2")
    with strategy.scope():
        net = Net()
    net.set_pipeline_stage_assignment("auto", num_stages=2)
    net.save(tmp_path / "net.keras")
    stages = [call.pipeline_stage for call in net.get_pipeline_stage_assignment()]
    return strategy, tmp_path / "net.keras", stages


def test_stages_return_to_a_graph_that_is_built_anew(saved_net):
    strategy, path, stages = saved_net
    with strategy.scope():
        loaded = keras.saving.load_model(path)
    assert [call.pipeline_stage for call in loaded.get_pipeline_stage_assignment()] == stages


def test_a_class_that_has_changed_loads_without_the_options(saved_net, monkeypatch):
    strategy, path, _ = saved_net
    monkeypatch.setattr(Net, "factors", (2.0, 3.0))
    with strategy.scope(), pytest.raises(OptionError, match=r"'multiply.*Remove millrace\.json"):
        keras.saving.load_model(path)
    with strategy.scope():
        loaded = keras.saving.load_model(with_options(path, None))
    assert loaded.get_pipeline_stage_assignment()[0].pipeline_stage is None
