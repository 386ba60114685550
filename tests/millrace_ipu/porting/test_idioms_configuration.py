"""Idioms of configurations, of releases with and without `IPUConfig`."""

import pytest
from idioms import idiom

from millrace.compilation.executables.sharing import sharing
from millrace.errors import PlanError
from millrace_ipu.errors import UnsupportedNameError
from millrace_ipu.ipu.release import release
from millrace_ipu.tensorflow.no_operation import notes

FIT = """
import numpy as np
from tensorflow import keras

def fit(per_execution=1, batches=8):
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=per_execution)
        x = np.ones((2 * batches, 3), np.float32)
        model.fit(x, x[:, :1], batch_size=2, verbose=0)
    return int(model.optimizer.iterations)
"""


@pytest.mark.slow
@idiom("Devices", "`ipu.utils.create_ipu_config()`, `ipu.utils.auto_select_ipus(cfg, 2)`")
@idiom("Devices", "`ipu.utils.configure_ipu_system(cfg)`")
@idiom(
    "Steps and batches", "`steps_per_execution` of a program with `create_ipu_config()`: in total"
)
def test_a_configuration_of_an_early_release(program):
    text = f"""{FIT}
from tensorflow.python import ipu
cfg = ipu.utils.create_ipu_config(
    profiling=False, use_poplar_text_report=False, max_cross_replica_sum_buffer_size=10000000,
    selection_order=ipu.utils.SelectionOrder.AUTO)
cfg = ipu.utils.set_ipu_model_options(cfg, compile_ipu_code=False)
cfg = ipu.utils.set_recomputation_options(cfg, allow_recompute=True)
ipu.utils.set_optimization_options(cfg, combine_matmuls=True)
cfg = ipu.utils.auto_select_ipus(cfg, 2)
ipu.utils.configure_ipu_system(cfg)
print(fit(per_execution=2), ipu.utils.get_num_of_ipus_in_device("/device:IPU:0"))
"""
    assert program(text) == "4 2\n"
    assert release() == (2, 3)
    with pytest.raises(PlanError, match=r"as release 2\.4 did; an epoch has 8\. Later releases"):
        program(text.replace("fit(per_execution=2)", "fit(per_execution=1)"))


@idiom("Devices", "`utils.select_ipus(opts, indices=[2, 0])`")
@idiom("Devices", "`utils.set_floating_point_behaviour_options(opts, inv=True, ...)`")
@idiom("Devices", "`utils.set_convolution_options(opts, {...})`, `set_matmul_options`")
def test_other_options_of_an_early_release(program, caplog):
    notes.clear()
    text = f"""{FIT}
from tensorflow.python import ipu
from tensorflow.python.ipu import utils
from tensorflow.python.ipu.utils import ExecutionProfileType
opts = utils.create_ipu_config(
    profiling=True, profile_execution=ExecutionProfileType.NO_PROFILE, report_directory="x")
opts = utils.select_ipus(opts, indices=[2, 0])
utils.set_floating_point_behaviour_options(opts, inv=True, div0=True, oflo=True, esr=False)
opts = utils.set_convolution_options(opts, {{"availableMemoryProportion": "0.2"}})
opts = utils.set_matmul_options(opts, {{"partialsType": "half"}}, clear_pass_type=True)
opts = utils.set_io_tile_options(opts, 32)
opts = utils.set_ipu_connection_type(opts, utils.DeviceConnectionType.ON_DEMAND, ipu_version=2)
opts = utils.set_norm_options(opts, use_stable_statistics=True)
opts = utils.set_report_options(opts, report_options={{}})
utils.configure_ipu_system(opts)
print([device.id for device in ipu.ipu_strategy.IPUStrategy("/device:IPU:1").devices])
print(opts.device_connection.type.name, opts.select_ipus)
"""
    assert program(text) == "[0]\nON_DEMAND [2, 0]\n"
    for name in ("set_matmul_options", "set_report_options", "create_ipu_config(report_directory"):
        (line,) = (each for each in caplog.messages if each.startswith(name))
        assert "has no effect. Remove it: XLA decides this itself, and POPLAR_ENGINE_OP" in line
    assert "profile_execution" not in caplog.text


def test_mistakes_in_options_of_an_early_release(program):
    start = "from tensorflow.python.ipu import utils\n"
    with pytest.raises(TypeError, match="auto_select_ipus takes int or list or tuple"):
        program(f"{start}utils.auto_select_ipus(utils.create_ipu_config(), '2')")
    with pytest.raises(UnsupportedNameError, match=r"experimental\.multi_replica_distribution"):
        program(f"{start}utils.set_experimental_multi_replica_distribution_options(0, 2, 1)")


@pytest.mark.slow
@idiom("Devices", "`ipu.config.reset_ipu_configuration()` before another configuration")
@idiom("Devices", "`cfg.auto_select_ipus = [1, 1]`, one device for training and one for evaluation")
@idiom("Devices", "`ipu.config.configure_ipu_system(cfg)`")
def test_a_configuration_is_reset(program, caplog):
    text = f"""{FIT}
from tensorflow.python import ipu
for number in ([1, 1], 2, 4):
    cfg = ipu.config.IPUConfig()
    cfg.auto_select_ipus = number
    ipu.config.configure_ipu_system(cfg)
    print(ipu.utils.get_num_of_ipus_in_device(), fit())
    ipu.config.reset_ipu_configuration()
"""
    assert program(text) == "1 8\n2 4\n4 2\n"
    assert "was configured before" not in caplog.text


@idiom("Devices", "`cfg.device_connection.type = DeviceConnectionType.ON_DEMAND`")
@idiom("Devices", "`cfg.ipu_model.compile_ipu_code = False`, on a host without devices")
@idiom("Devices", "`setattr(cfg, name, value)` and `cfg.from_dict(...)` from a file of settings")
def test_categories_of_options(program):
    text = f"""{FIT}
import json
from tensorflow.python import ipu
from tensorflow.python.ipu.config import DeviceConnectionType, IPUConfig, SelectionOrder
cfg = IPUConfig()
cfg.from_dict(json.loads('{{"auto_select_ipus": 2, "io_tiles": {{"num_io_tiles": 64}}}}'))
cfg.device_connection.type = DeviceConnectionType.ON_DEMAND
cfg.device_connection.enable_remote_buffers = True
cfg.ipu_model.compile_ipu_code = False
cfg.ipu_model.version = "ipu2"
cfg.optimizations.merge_infeed_io_copies = True
cfg.floating_point_behaviour.esr = ipu.config.StochasticRoundingBehaviour.ON
for name, value in {{"selection_order": SelectionOrder.ZIGZAG, "allow_recompute": True}}.items():
    setattr(cfg, name, value)
cfg.convolutions.poplar_options = {{"availableMemoryProportion": "0.6"}}
cfg.convolutions.poplar_options["partialsType"] = "half"
cfg.matmuls.poplar_options.update({{"partialsType": "half"}})
cfg.configure_ipu_system()
print(fit(), ipu.utils.running_on_ipu_model(), cfg.convolutions.poplar_options["partialsType"])
"""
    assert program(text) == "4 False half\n"


@idiom("Logs and caches", '`POPLAR_ENGINE_OPTIONS=\'{"autoReport.all": "true"}\'`, for a profile')
def test_a_profile_that_the_environment_asks_for(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", "")
    sharing.clear()  # equal programs of other tests
    text = f"""{FIT}
import os
from tensorflow.python import ipu
os.environ["POPLAR_ENGINE_OPTIONS"] = '{{"autoReport.all": "true"}}'
cfg = ipu.config.IPUConfig()
cfg.configure_ipu_system()
print(fit())
"""
    assert program(text) == "8\n"
    assert len(list(tmp_path.glob("tf_report__*/framework.json"))) == 1
