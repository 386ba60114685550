import logging
import subprocess
import sys

import jax
import pytest

from millrace.errors import DeviceError, DTypeError, OptionError
from millrace_ipu import ipu
from millrace_ipu.ipu.config import IPUConfig, SelectionOrder, current_system
from millrace_ipu.tensorflow.no_operation import notes


@pytest.fixture
def config():
    return IPUConfig()


def test_f07_a_typo_is_an_error_with_a_hint(config):
    with pytest.raises(
        ValueError, match=r"no attribute auto_select_ipu. Did you mean auto_select_"
    ):
        config.auto_select_ipu = 2
    with pytest.raises(OptionError, match=r"io_tiles.num_io_tile\. Did you mean io_tiles.num_io_t"):
        config.io_tiles.num_io_tile = 2
    with pytest.raises(AttributeError, match="It has: poplar_options"):
        _ = config.slices.popular_options


def test_f07_a_value_of_another_type_is_an_error_at_its_assignment(config):
    with pytest.raises(
        TypeError, match=r"IPUConfig.allow_recompute takes bool. Received: 1 of typ"
    ):
        config.allow_recompute = 1
    with pytest.raises(DTypeError, match=r"selection_order takes SelectionOrder. Received: 'AUTO'"):
        config.selection_order = "AUTO"
    with pytest.raises(TypeError, match=r"takes int or list or tuple. Received: \[1, '2'\]"):
        config.auto_select_ipus = [1, "2"]
    with pytest.raises(TypeError, match=r"num_io_tiles takes int. Received: True"):
        config.io_tiles.num_io_tiles = True


def test_f07_a_category_cannot_be_assigned(config):
    with pytest.raises(ValueError, match=r"IPUConfig.io_tiles is a category .* num_io_tiles"):
        config.io_tiles = {"num_io_tiles": 2}


def test_f07_two_ways_to_select_exclude_each_other(config):
    config.auto_select_ipus, config.select_ipus = 1, [0]
    with pytest.raises(ValueError, match=r"auto_select_ipus=1 and select_ipus=\[0\] both choose"):
        config.configure_ipu_system()
    with pytest.raises(ValueError, match=r"different device numbers from 0 on. Received: \[1, 1\]"):
        config.select_ipus = [1, 1]


@pytest.mark.parametrize(
    ("name", "value", "groups"),
    [
        ("auto_select_ipus", 2, [[0, 1]]),
        ("auto_select_ipus", [1, 2], [[0], [1, 2]]),
        ("select_ipus", 3, [[3]]),
        ("select_ipus", (4, 2), [[4], [2]]),
        ("allow_recompute", True, [[0]]),
    ],
)
def test_f07_devices_are_those_of_jax(config, name, value, groups):
    setattr(config, name, value)
    config.configure_ipu_system()
    actual = [[device.id for device in group] for group in current_system().groups]
    assert actual == groups
    assert ipu.ipu_strategy.IPUStrategy().devices == current_system().devices
    last = ipu.ipu_strategy.IPUStrategy(f"/device:IPU:{len(groups) - 1}")
    assert [device.id for device in last.devices] == groups[-1]
    with pytest.raises(ValueError, match="ipu_device must be '/device:IPU:0' up to"):
        ipu.ipu_strategy.IPUStrategy("/device:IPU:7")


def test_f07_too_many_devices_are_an_error_that_lists_those_there_are(config):
    config.auto_select_ipus = 9
    with pytest.raises(DeviceError, match=r"takes 9 devices, and there are 8: \[.*device_count=9"):
        config.configure_ipu_system()
    config.auto_select_ipus = 0
    with pytest.raises(ValueError, match=r"from 1 on. Received: 0. Set auto_select_ipus=1"):
        config.configure_ipu_system()


@pytest.mark.slow
def test_f07_a_fresh_process_makes_the_devices():
    program = (
        "from millrace_ipu import ipu\n"
        "config = ipu.config.IPUConfig()\n"
        "config.auto_select_ipus = 2\n"
        "config.configure_ipu_system()\n"
        "print(len(ipu.ipu_strategy.IPUStrategy().devices))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout == "2\n", run.stderr


def test_f07_another_configuration_resets_and_an_equal_one_does_not(config, caplog):
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    function = jax.jit(lambda x: x + 1)
    function(1.0)
    ipu.config.configure_ipu_system(config, "cpu")
    assert function._cache_size() == 1
    assert not caplog.records
    config.auto_select_ipus = 3  # without effect yet
    assert len(current_system().devices) == 2
    config.configure_ipu_system()
    assert "with other options: it is reset" in caplog.text
    assert function._cache_size() == 0
    assert len(current_system().devices) == 3


def test_f07_options_without_effect_warn_once(config, caplog):
    notes.clear()
    config.optimizations.minimum_remote_tensor_size = 256
    config.floating_point_behaviour.nanoo = True
    config.configure_ipu_system()
    config.configure_ipu_system()
    assert caplog.text.count("optimizations.minimum_remote_tensor_size has no effect") == 1
    assert "NaNWatch" in caplog.text
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 2


def test_f07_a_deprecated_name_warns(config):
    with pytest.warns(DeprecationWarning, match="Set IPUConfig.optimizations.math.fast instead"):
        config.optimizations.enable_fast_math = True


def test_f07_a_configuration_as_plain_data_and_back(config):
    config.selection_order = SelectionOrder.SNAKE
    config.auto_select_ipus = (1, 2)
    config.matmuls.poplar_options = {"some": "option"}
    data = config.to_dict()
    assert data["selection_order"] == "SNAKE"
    assert data["matmuls"] == {"clear_pass_type": False, "poplar_options": {"some": "option"}}
    other = IPUConfig()
    other.from_json(config.to_json())
    assert other.to_dict() == data
    with pytest.raises(ValueError, match="no attribute matmul"):
        other.from_dict({"matmul": {}})
    assert "selection_order = <SelectionOrder.SNAKE: 2>" in repr(config)
    assert repr(IPUConfig()) == "IPUConfig with its defaults"


def test_f07_the_metadata_of_an_attribute(config):
    metadata = config.get_attribute_metadata("io_tiles.num_io_tiles")
    assert (metadata.name, metadata.type, metadata.default) == ("io_tiles.num_io_tiles", "int", 0)
    with pytest.raises(ValueError, match=r"no attribute 'io_tiles.number'"):
        config.get_attribute_metadata("io_tiles.number")


def test_f07_only_a_configuration_can_be_put_in_force():
    with pytest.raises(ValueError, match=r"takes an IPUConfig. Received: 3"):
        ipu.config.configure_ipu_system(3)
