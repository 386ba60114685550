"""The options in a model's file: what no setter would take is refused, and none is changed."""

import json
import zipfile

import keras
import pytest

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


def test_load_model_raises_it_as_it_is(strategy, model, tmp_path):
    model.save(tmp_path / "whole.keras")
    with (
        zipfile.ZipFile(tmp_path / "whole.keras") as whole,
        zipfile.ZipFile(tmp_path / "damaged.keras", "w") as damaged,
    ):
        for name in whole.namelist():
            is_ours = name.endswith(OPTIONS_FILE)
            damaged.writestr(name, b'{"feed": "\xff"}' if is_ours else whole.read(name))
    with (
        strategy.scope(),
        pytest.raises(OptionError, match=f"^{OPTIONS_FILE}, .*utf-8.* byte\\. Save"),
    ):
        keras.saving.load_model(tmp_path / "damaged.keras")
